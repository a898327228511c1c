"""Lease on a run's folder: one process at a time works in it, on one machine or on several with a shared file system.

The owner of a folder holds the last of its entries (`locking.entries`). It touches the entry as a heart-beat and
checks before each write that the entry is still the last one. A process that is stopped between that check and the
write, for longer than its silence is tolerated, could still write once; no lease can exclude that.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.ops.locking.entries import (
    Content,
    Entry,
    complete_file,
    entry_file,
    filesystem_time,
    history,
    latest,
    link,
)
from redraft.ops.locking.owner import EXPIRED_SECONDS, process, this_process
from redraft.ops.locking.termination import exit_on_sigterm

BEAT_SECONDS = 15.0
"""Time between heart-beats."""
LOOK_SECONDS = 1.0
"""Time between looks at a silent owner."""
PATIENCE_SECONDS = 2 * EXPIRED_SECONDS
"""Longest wait for the child processes of a dead owner on this machine."""
EVALUATION = "evaluation"
"""Stands for the fingerprint where a run's policies are sampled in its folder. No fingerprint reads so."""


class LeaseLost(UserError):
    """Another process has taken the folder; this one must not write into it."""


class Lease:
    """Ownership of a folder by this process, with the file, number and content of its entry."""

    def __init__(self, folder: Path, number: int, content: Content) -> None:
        self.folder, self.number, self.content = folder, number, content
        self.file = entry_file(folder, number)

    @property
    def token(self) -> str:
        """Token by which `check_owner` knows the owner in any process."""
        return self.content.owner.token

    def check(self) -> None:
        """Refuse to go on if the folder has another owner; call this before each write.

        Raises:
            LeaseLost: if it has.
        """
        check_owner(self.folder, self.token)

    def beat(self) -> None:
        """Show that this process lives. An entry that was removed stays so, and `check` notices it."""
        with suppress(OSError):
            os.utime(self.file)

    def add_process(self, pid: int) -> None:
        """Record a child process: the folder becomes free only after it has ended too."""
        owner = self.content.owner
        self._update(owner=owner.model_copy(update={"processes": [*owner.processes, process(pid)]}))

    def record_devices(self, devices: Sequence[str]) -> None:
        """Record this process's GPUs, if any, by their names in CUDA_VISIBLE_DEVICES."""
        self._update(owner=self.content.owner.model_copy(update={"devices": ",".join(devices) or None}))

    def record_resume(self, step: int) -> None:
        """Record the number of steps that were done when this process began."""
        self._update(resumed_from=step)

    def release(self, end: str = "finished") -> None:
        """Leave the folder to the next process.

        Nothing is written if another process has taken the folder. On a full disk nothing can be written; the next
        process then takes the folder as it does from a dead owner.
        """
        with suppress(UserError, OSError):
            self._update(released=datetime.now(UTC).isoformat(timespec="seconds"), end=end)

    def _update(self, **fields: Any) -> None:
        self.check()
        self.content = self.content.model_copy(update=fields)
        write_atomically(self.file, self.content.text)


def check_owner(folder: Path, token: str) -> None:
    """Refuse to go on unless the owner with this token holds the folder; a LeaseLost if it does not."""
    last = latest(folder)
    if last is None or last.content is None or last.content.owner.token != token or last.free:
        raise LeaseLost(
            "another process has taken this folder; this one stops and has written nothing since",
            file=folder,
            key="owner",
            value=str(last) if last else None,
        )


@contextmanager
def lease(folder: Path, run: str = "", log: Path | None = None) -> Iterator[Lease]:
    """Hold a folder during the block. SIGTERM ends the block in good order, as Ctrl-C does.

    Args:
        folder: folder of the run.
        run: the run's fingerprint.
        log: file of this process's messages, named to a process that is refused.

    Raises:
        UserError: if another process holds the folder, or the file system is full or has no hard links.
    """
    held = take(folder, run, log)
    end = "finished"
    with exit_on_sigterm(), _beating(held):
        try:
            yield held
        except BaseException as error:
            end = type(error).__name__
            raise
        finally:
            held.release(end)


def take(folder: Path, run: str = "", log: Path | None = None, wait: Callable[[float], Any] = time.sleep) -> Lease:
    """Take a folder that is free or whose owner is dead.

    A silent owner on another machine is waited for: it lives if a heart-beat comes within `EXPIRED_SECONDS` of its last
    one, and is dead if none does.

    Raises:
        UserError: as `lease`.
    """
    content = Content(owner=this_process(), run=run, log=str(log or ""))
    with complete_file(folder, content) as complete:
        while True:
            last = latest(folder)
            if last is not None and not last.free:
                _wait_for_the_end(folder, last, complete, wait)
            number = last.number + 1 if last else 1
            if link(complete, entry_file(folder, number)):
                return Lease(folder, number, content)
            wait(LOOK_SECONDS)


def _wait_for_the_end(folder: Path, owner: Entry, clock: Path, wait: Callable[[float], Any]) -> None:
    """Return when the owner is dead or another process has taken the folder; a UserError if the owner lives."""
    waited = 0.0
    while (last := latest(folder)) is not None and last.number == owner.number and not last.free:
        verdict = last.judge(filesystem_time(clock))
        if verdict.state == "dead":
            print(f"{folder}: taken over from {last}: {verdict.why}", file=sys.stderr, flush=True)
            return
        if verdict.state == "alive" or last.beat > owner.beat or waited > PATIENCE_SECONDS:
            age, content = filesystem_time(clock) - last.beat, last.content
            log = f"; its log: {content.log}" if content and content.log else ""
            since = f" since {content.owner.started}" if content else ""
            raise UserError(
                f"another process works in this folder{since} ({verdict.why}; heart-beat {max(age, 0):.0f} s ago{log})",
                file=folder,
                key="owner",
                value=str(last),
                hint="wait for it, or end it first",
            )
        if not waited:
            print(f"{folder}: waiting for a sign of life of {last}: {verdict.why}", file=sys.stderr, flush=True)
        wait(LOOK_SECONDS)
        waited += LOOK_SECONDS


@contextmanager
def _beating(held: Lease) -> Iterator[None]:
    """Send heart-beats from a thread."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            held.beat()

    thread = threading.Thread(target=beat, name="heart-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def participants(folder: Path, run: str, steps: int) -> list[dict[str, Any]]:
    """Describe the processes that took part in a run, in order, for its manifest.

    Processes that found all steps done are left out, and those of another experiment in the same folder. `ended` of a
    process that died is its last heart-beat.
    """
    found = []
    for entry in history(folder):
        content = entry.content
        if content is None or content.run != run:
            continue
        if content.resumed_from is not None and content.resumed_from >= steps:
            continue
        owner = content.owner
        found.append(
            {
                "host": owner.host,
                "slurm_job": owner.slurm_job,
                "slurm_restarts": owner.slurm_restarts,
                "devices": owner.devices,
                "resumed_from": content.resumed_from,
                "started": owner.started,
                "ended": content.released or datetime.fromtimestamp(entry.beat, UTC).isoformat(timespec="seconds"),
                "end": content.end,
            }
        )
    return found
