"""Lease on a run's folder: one process at a time writes to it, on one machine or several with a shared file system.

The owner of a folder holds the last of its entries (`locking.entries`). It touches the entry as a heart-beat and checks
before each write that the entry is still the last one. A process that is suspended between this check and its write,
for longer than `EXPIRED_SECONDS`, could still write once; no lease can prevent that.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.messages import echo
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
from redraft.ops.locking.termination import exit_on_signal

BEAT_SECONDS = 15.0
"""Time between heart-beats."""
POLL_SECONDS = 1.0
"""Time between checks of a silent owner."""
ORPHANS_SECONDS = 2 * EXPIRED_SECONDS
"""Longest wait for the child processes of a dead owner on this machine."""
EVALUATION = "evaluation"
"""Replaces the fingerprint in the lease of a process that samples a run's policies. No fingerprint equals it."""
TAKING = "taking"
"""The same for a process that takes a run from another paper, and trains nothing."""


class LeaseLost(UserError):
    """Another process owns the folder; this one must not write into it."""


class Lease:
    """Ownership of a folder by this process: the file, number and content of its entry."""

    def __init__(self, folder: Path, number: int, content: Content) -> None:
        self.folder, self.number, self.content = folder, number, content
        self.file = entry_file(folder, number)
        self.token = content.owner.token
        """Identifies the owner to `check_owner`, also in other processes."""

    def check(self) -> None:
        """Check that this process still owns the folder; call this before each write.

        Raises:
            LeaseLost: if the folder has another owner.
        """
        check_owner(self.folder, self.token)

    def beat(self) -> None:
        """Send a heart-beat. This never recreates a removed entry, which `check` reports."""
        with suppress(OSError):
            os.utime(self.file)

    def add_process(self, pid: int) -> None:
        """Record a child process: the folder becomes free only after the child has ended too."""
        owner = self.content.owner
        self._update(owner=owner.model_copy(update={"processes": [*owner.processes, process(pid)]}))

    def record_devices(self, devices: Sequence[str]) -> None:
        """Record this process's GPUs by their names in CUDA_VISIBLE_DEVICES."""
        self._update(owner=self.content.owner.model_copy(update={"devices": ",".join(devices) or None}))

    def record_resume(self, step: int) -> None:
        """Record the number of steps that were finished when this process started."""
        self._update(resumed_from=step)

    def release(self, end: str = "finished") -> None:
        """Release the folder for the next process.

        Nothing is written if another process owns the folder. On a full disk the release cannot be written; the next
        process then takes over as from a dead owner.
        """
        with suppress(UserError, OSError):
            self._update(released=datetime.now(UTC).isoformat(timespec="seconds"), end=end)

    def _update(self, **fields: Any) -> None:
        self.check()
        self.content = self.content.model_copy(update=fields)
        # The new file has the time of now, so this is a heart-beat too.
        write_atomically(self.file, self.content.text)


def check_owner(folder: Path, token: str) -> None:
    """Raise LeaseLost unless the owner with this token still holds the folder."""
    last = latest(folder)
    content = last.content if last else None
    if content is None or content.owner.token != token or content.released:
        raise LeaseLost(
            "another process has taken over this folder; this process stops and has written nothing since",
            file=folder,
            key="owner",
            value=str(last) if last else None,
        )


@contextmanager
def lease(folder: Path, run: str = "", log: Path | None = None) -> Iterator[Lease]:
    """Hold the lease of a folder during the block. SIGTERM and SIGHUP end the block by an exception, as Ctrl-C does.

    Args:
        folder: folder of the run.
        run: the run's fingerprint.
        log: this process's log file, shown to processes that find the folder in use.

    Raises:
        UserError: if another process holds the folder, or the file system is full or has no hard links.
    """
    # Before signals are handled: while this waits there is nothing to release, and a signal may end it at once.
    owned = acquire(folder, run, log)
    end = "finished"
    with exit_on_signal(), _heart_beats(owned):
        try:
            yield owned
        except BaseException as error:
            end = type(error).__name__
            raise
        finally:
            owned.release(end)


def acquire(folder: Path, run: str = "", log: Path | None = None, wait: Callable[[float], Any] = time.sleep) -> Lease:
    """Acquire the lease of a folder that is free or whose owner is dead.

    If the owner is silent and on another machine, wait: it is alive if a heart-beat follows within `EXPIRED_SECONDS` of
    the last one, and dead otherwise.

    Args:
        folder: folder of the run.
        run: the run's fingerprint.
        log: this process's log file.
        wait: called with a number of seconds between checks.

    Raises:
        UserError: as `lease`.
    """
    content = Content(owner=this_process(), run=run, log=str(log or ""))
    with complete_file(folder, content) as complete:
        while True:
            last = latest(folder)
            if last is not None and not last.free:
                # The complete file is this process's own: touching it reads the clock of the file system.
                _wait_until_dead(folder, last, complete, wait)
            # If another process links this number first, the loop judges that process.
            number = last.number + 1 if last else 1
            if link(complete, entry_file(folder, number)):
                return Lease(folder, number, content)
            wait(POLL_SECONDS)


def _wait_until_dead(folder: Path, owner: Entry, clock: Path, wait: Callable[[float], Any]) -> None:
    """Return when the owner is dead or was replaced; raise a UserError if it is alive."""
    waited = 0.0
    while (last := latest(folder)) is not None and last.number == owner.number and not last.free:
        liveness = last.judge(filesystem_time(clock))
        if liveness.state == "dead":
            echo(f"{folder}: taken over from {last}: {liveness.reason}", err=True)
            return
        # A heart-beat since the first look proves that the owner lives. Child processes of a dead one may never end.
        if liveness.state == "alive" or last.beat > owner.beat or waited > ORPHANS_SECONDS:
            age, content = max(filesystem_time(clock) - last.beat, 0), last.content
            log = f"; its log: {content.log}" if content and content.log else ""
            since = f" since {content.owner.started}" if content else ""
            raise UserError(
                f"another process works in this folder{since} ({liveness.reason}; heart-beat {age:.0f} s ago{log})",
                file=folder,
                key="owner",
                value=str(last),
                hint="wait until it has ended, or end it",
            )
        if not waited:
            echo(f"{folder}: waiting for a heart-beat of {last}: {liveness.reason}", err=True)
        wait(POLL_SECONDS)
        waited += POLL_SECONDS


@contextmanager
def _heart_beats(owned: Lease) -> Iterator[None]:
    """Send heart-beats from a thread."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            owned.beat()

    # A daemon, so that it does not keep a process alive whose main thread has ended.
    thread = threading.Thread(target=beat, name="heart-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def participants(folder: Path, run: str, steps: int) -> list[dict[str, Any]]:
    """Describe the processes that trained a run, in order, for its manifest.

    This leaves out processes that started after the last step, and processes of other configurations in the same
    folder. For a process that died, `ended` is the time of its last heart-beat.
    """
    described = []
    for entry in history(folder):
        content = entry.content
        if content is None or content.run != run:
            continue
        if content.resumed_from is not None and content.resumed_from >= steps:
            continue
        owner = content.owner
        described.append(
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
    return described
