"""One process at a time in a run's folder, on one machine or on several that share a file system.

Whoever works in a folder holds the last entry of `lease/`: 000001.json, 000002.json and so on. To take the folder is to
make the next entry, by a hard link from a complete file, of which file systems let exactly one process succeed, NFS
included. Entries are never removed and numbers never used again, so that a process which was stopped for however long
between looking and taking cannot take over from somebody that it did not look at. What stands before the last entry is
the history: one entry for each process that took part, which is what a manifest says of preemptions.

An owner shows that it lives by touching its entry. The ages of heart-beats are compared with a file that the observer
itself touches on the same file system, so that clocks of machines need not agree.
"""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from redraft.errors import UserError
from redraft.files import NO_SPACE, write_atomically
from redraft.ops.owner import EXPIRED_SECONDS, Owner, Verdict, judge, process, this_process

BEAT_SECONDS = 15.0
"""Between heart-beats."""
LOOK_SECONDS = 1.0
"""Between looks at a silent owner, while it is waited for a heart-beat or for the end of patience with it."""
PATIENCE_SECONDS = 2 * EXPIRED_SECONDS
"""For what a dead owner has left running on this machine; silence on another ends sooner, by itself."""
FOLDER = "lease"
EVALUATION = "evaluation"
"""What is run by whoever samples a run's policies, in the same folder. No fingerprint reads so."""


class LeaseLost(UserError):
    """Another process has taken the folder, and this one must not write into it."""


class Content(BaseModel):
    """What an entry says."""

    model_config = ConfigDict(extra="ignore")

    owner: Owner
    run: str = ""
    """Fingerprint of what is run in the folder."""
    log: str = ""
    """Where the owner's messages go, for people."""
    resumed_from: int | None = None
    """Steps that were done when it began; None if it did not come so far."""
    released: str | None = None
    """When it left the folder, ISO 8601, UTC; None if it is there, or died."""
    end: str | None = None
    """How it ended: `finished`, or the name of what stopped it."""


class Entry(NamedTuple):
    """A file under `lease/`."""

    number: int
    file: Path
    content: Content | None
    """None if it cannot be read."""
    beat: float
    """When it was last touched, in seconds by the file system's clock."""

    @property
    def free(self) -> bool:
        """Whether its owner has left."""
        return self.content is not None and self.content.released is not None

    def judge(self, now: float) -> Verdict:
        """Whether its owner lives, at that time of the file system's."""
        return judge(self.content.owner if self.content else None, max(now - self.beat, 0.0))

    def __str__(self) -> str:
        return str(self.content.owner) if self.content else "a process whose lease cannot be read"


class Lease:
    """A folder that this process holds.

    Attributes:
        number: of its entry.
        content: that it says.
    """

    def __init__(self, folder: Path, number: int, content: Content) -> None:
        self.folder, self.number, self.content = folder, number, content
        self.file = _file(folder, number)

    @property
    def token(self) -> str:
        """What `check_held` takes, in whichever process."""
        return self.content.owner.token

    def check(self) -> None:
        """Make sure that the folder is still this process's; to be called before anything is written into it.

        Raises:
            LeaseLost: if it is not.
        """
        check_held(self.folder, self.token)

    def beat(self) -> None:
        """Show that this process lives. An entry that is gone stays so: `check` will notice."""
        with suppress(OSError):
            os.utime(self.file)

    def add_process(self, pid: int) -> None:
        """Count a process that this one started: the folder is not free before that has ended too."""
        owner = self.content.owner
        self._update(owner=owner.model_copy(update={"processes": [*owner.processes, process(pid)]}))

    def uses(self, devices: Sequence[str]) -> None:
        """Record the GPUs that this process has got, by their names in CUDA_VISIBLE_DEVICES; perhaps none."""
        self._update(owner=self.content.owner.model_copy(update={"devices": ",".join(devices) or None}))

    def resumed_from(self, step: int) -> None:
        """Record how many steps were done when this process began."""
        self._update(resumed_from=step)

    def release(self, end: str = "finished") -> None:
        """Leave the folder to the next.

        Nothing is written if another has taken it. If it cannot be written, since the disk is full, the next takes the
        folder as from an owner that died.
        """
        with suppress(UserError, OSError):
            self._update(released=_now(), end=end)

    def _update(self, **fields: Any) -> None:
        self.check()
        self.content = self.content.model_copy(update=fields)
        write_atomically(self.file, _text(self.content))


@contextmanager
def lease(folder: Path, run: str = "", log: Path | None = None) -> Iterator[Lease]:
    """Hold a folder for as long as the block takes; SIGTERM ends the block as Ctrl-C does.

    Args:
        folder: of the run.
        run: fingerprint of what is run.
        log: where this process's messages go, for whoever is refused.

    Raises:
        UserError: if another process holds it, or the file system is full or has no hard links.
    """
    held = take(folder, run, log)
    end = "finished"
    with _terminated_by_exit(), _beating(held):
        try:
            yield held
        except BaseException as error:
            end = type(error).__name__
            raise
        finally:
            held.release(end)


def take(folder: Path, run: str = "", log: Path | None = None, wait: Callable[[float], Any] = time.sleep) -> Lease:
    """Take a folder that is free or whose owner is dead.

    An owner on another machine that says nothing is waited for: a heart-beat shows that it lives, at the latest after
    `BEAT_SECONDS`, and `EXPIRED_SECONDS` without one that it does not.

    Args:
        folder: of the run.
        run: fingerprint of what is run.
        log: where this process's messages go.
        wait: passes seconds.

    Raises:
        UserError: as `lease`.
    """
    content = Content(owner=this_process(), run=run, log=str(log or ""))
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    with _complete_file(folder / FOLDER, content) as complete:
        while True:
            last = latest(folder)
            if last is not None and not last.free:
                _wait_for_the_end(folder, last, complete, wait)
            number = last.number + 1 if last else 1
            if _link(complete, _file(folder, number)):
                return Lease(folder, number, content)
            wait(LOOK_SECONDS)


def _wait_for_the_end(folder: Path, owner: Entry, clock: Path, wait: Callable[[float], Any]) -> None:
    """Return when the owner is dead, or somebody else was faster.

    Raises:
        UserError: if it lives.
    """
    waited = 0.0
    while (last := latest(folder)) is not None and last.number == owner.number and not last.free:
        verdict = last.judge(_filesystem_time(clock))
        if verdict.state == "dead":
            print(f"{folder}: taken over from {last}: {verdict.why}", file=sys.stderr, flush=True)
            return
        if verdict.state == "alive" or last.beat > owner.beat or waited > PATIENCE_SECONDS:
            raise _refusal(folder, last, verdict, _filesystem_time(clock) - last.beat)
        if not waited:
            print(f"{folder}: waiting for a sign of life of {last}: {verdict.why}", file=sys.stderr, flush=True)
        wait(LOOK_SECONDS)
        waited += LOOK_SECONDS


def _refusal(folder: Path, entry: Entry, verdict: Verdict, age: float) -> UserError:
    content = entry.content
    log = f"; its log: {content.log}" if content and content.log else ""
    since = f" since {content.owner.started}" if content else ""
    return UserError(
        f"another process works in this folder{since} ({verdict.why}; heart-beat {max(age, 0):.0f} s ago{log})",
        file=folder, key="owner", value=str(entry), allowed="one at a time; wait for it, or end it first",
    )  # fmt: skip


def latest(folder: Path) -> Entry | None:
    """The last entry, whether its owner is there or not; None if the folder was never taken."""
    numbers = _numbers(folder)
    return read_entry(folder, max(numbers)) if numbers else None


def history(folder: Path) -> list[Entry]:
    """All entries, the oldest first."""
    return [read_entry(folder, number) for number in sorted(_numbers(folder))]


def took_part(folder: Path, run: str, steps: int) -> list[dict[str, Any]]:
    """The processes that took part in a run, in order, as its manifest names them.

    One that only found all steps done is left out. `ended` of one that died is its last heart-beat.

    Args:
        folder: of the run.
        run: its fingerprint; processes of another experiment in the same folder are left out.
        steps: of the run in all.
    """
    return [
        _part(entry, content)
        for entry in history(folder)
        if (content := entry.content) is not None
        if content.run == run and (content.resumed_from is None or content.resumed_from < steps)
    ]


def _part(entry: Entry, content: Content) -> dict[str, Any]:
    owner = content.owner
    return {
        "host": owner.host, "slurm_job": owner.slurm_job, "slurm_restarts": owner.slurm_restarts,
        "devices": owner.devices, "resumed_from": content.resumed_from, "started": owner.started,
        "ended": content.released or datetime.fromtimestamp(entry.beat, UTC).isoformat(timespec="seconds"),
        "end": content.end,
    }  # fmt: skip


def check_held(folder: Path, token: str) -> None:
    """Make sure that a folder is held by the owner with that token.

    Raises:
        LeaseLost: if it is not.
    """
    last = latest(folder)
    if last is None or last.content is None or last.content.owner.token != token or last.free:
        raise LeaseLost(
            "another process has taken this folder; this one stops and has written nothing since",
            file=folder, key="owner", value=str(last) if last else None,
        )  # fmt: skip


def read_entry(folder: Path, number: int) -> Entry:
    """One entry."""
    file = _file(folder, number)
    with file.open("rb") as handle:  # opening makes NFS ask the server anew
        beat, text = os.fstat(handle.fileno()).st_mtime, handle.read()
    try:
        return Entry(number, file, Content.model_validate_json(text), beat)
    except ValidationError:
        return Entry(number, file, None, beat)


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder / FOLDER)
    except FileNotFoundError:
        return []
    return [int(name[:6]) for name in names if name.endswith(".json") and name[:6].isdigit()]


def _file(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"{number:06d}.json"


def _text(content: Content) -> str:
    return content.model_dump_json(indent=2) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _complete_file(folder: Path, content: Content) -> Iterator[Path]:
    """A file with the whole content that is no entry yet."""
    complete = folder / f".{content.owner.token}.{os.getpid()}.tmp"
    try:
        complete.write_text(_text(content), encoding="utf-8")
        yield complete
    except OSError as error:
        if error.errno in NO_SPACE:
            raise UserError("no space left to write this file; nothing was overwritten", file=complete) from None
        raise
    finally:
        complete.unlink(missing_ok=True)


def _link(complete: Path, entry: Path) -> bool:
    """Make an entry of a complete file; whether that succeeded.

    Raises:
        UserError: if the file system has no hard links, without which this cannot be safe.
    """
    os.utime(complete)  # an owner's first heart-beat
    try:
        os.link(complete, entry)
    except FileExistsError:
        return _same_file(complete, entry)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise UserError("this file system has no hard links, which leases need", file=entry.parent,
                            allowed="a local disk, NFS, Lustre or the like") from None  # fmt: skip
        raise
    return True


def _same_file(complete: Path, entry: Path) -> bool:
    """Whether the link was made after all: NFS repeats a request whose answer was lost, and then says it exists."""
    with suppress(FileNotFoundError):
        return os.path.samefile(complete, entry)
    return False


def _filesystem_time(file: Path) -> float:
    """The time by the clock of the file system that an own file lies on."""
    os.utime(file)
    return file.stat().st_mtime


@contextmanager
def _beating(held: Lease) -> Iterator[None]:
    """Heart-beats from a thread of their own."""
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


@contextmanager
def _terminated_by_exit() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that what has to be left in order is. Only a main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
