"""Entries of a folder's lease: the files `lease/000001.json`, `lease/000002.json` and so on.

The last entry names the owner of the folder. The entries before it are the history, one for each process that took
part; manifests count preemptions by it.

A new entry is a hard link to a complete file. File systems let exactly one of several such links succeed, NFS included.
Entries are never removed and numbers never used again. A single file that is removed and made again would not do: a
process that is stopped between looking and taking could then replace an owner that it has never looked at.

An owner shows that it lives by touching its entry: a heart-beat. An observer compares the time of the last heart-beat
with that of a file which it touches itself on the same file system, so that clocks of machines need not agree.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from redraft.errors import UserError
from redraft.files import errors_of_full_disk
from redraft.ops.locking.owner import Owner, Verdict, judge

FOLDER = "lease"
"""Name of the folder of entries."""


class Content(BaseModel):
    """Content of an entry."""

    model_config = ConfigDict(extra="ignore")

    owner: Owner
    run: str = ""
    """Fingerprint of the run in the folder, or another word for the owner's work."""
    log: str = ""
    """File of the owner's messages, for people."""
    resumed_from: int | None = None
    """Number of steps that were done when the owner began; None before it knows."""
    released: str | None = None
    """Time at which the owner left, ISO 8601, UTC; None if it is there or died."""
    end: str | None = None
    """`finished`, or the name of the exception that ended the owner's work."""

    @property
    def text(self) -> str:
        """The content as it is written."""
        return self.model_dump_json(indent=2) + "\n"


class Entry(NamedTuple):
    """A file under `lease/`."""

    number: int
    file: Path
    content: Content | None
    """None if the file cannot be read."""
    beat: float
    """Time of the last heart-beat, in seconds by the file system's clock."""

    @property
    def free(self) -> bool:
        """True if the owner has left."""
        return self.content is not None and self.content.released is not None

    def judge(self, now: float) -> Verdict:
        """Judge whether the owner lives at a time of the file system's clock."""
        return judge(self.content.owner if self.content else None, max(now - self.beat, 0.0))

    def __str__(self) -> str:
        return str(self.content.owner) if self.content else "a process whose lease cannot be read"


def entry_file(folder: Path, number: int) -> Path:
    """File of an entry."""
    return folder / FOLDER / f"{number:06d}.json"


def latest(folder: Path) -> Entry | None:
    """Last entry; None if nobody ever took the folder."""
    numbers = _numbers(folder)
    return read_entry(folder, max(numbers)) if numbers else None


def history(folder: Path) -> list[Entry]:
    """All entries, the oldest first."""
    return [read_entry(folder, number) for number in sorted(_numbers(folder))]


def read_entry(folder: Path, number: int) -> Entry:
    """One entry and its heart-beat."""
    file = entry_file(folder, number)
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


@contextmanager
def complete_file(folder: Path, content: Content) -> Iterator[Path]:
    """Write a complete file beside the entries, for `link` and `filesystem_time`; removed with the end of the block.

    Raises:
        UserError: if the disk is full.
    """
    complete = folder / FOLDER / f".{content.owner.token}.{os.getpid()}.tmp"
    complete.parent.mkdir(parents=True, exist_ok=True)
    try:
        with errors_of_full_disk(complete):
            complete.write_text(content.text, encoding="utf-8")
            yield complete
    finally:
        complete.unlink(missing_ok=True)


def link(complete: Path, entry: Path) -> bool:
    """Make an entry of a complete file; False if another process made it first.

    Raises:
        UserError: if the file system has no hard links, without which two could take one folder.
    """
    os.utime(complete)  # an owner's first heart-beat
    try:
        os.link(complete, entry)
    except FileExistsError:  # NFS repeats a request whose answer was lost, and then finds the file that it made
        with suppress(FileNotFoundError):
            return os.path.samefile(complete, entry)
        return False
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise UserError(
                "this file system has no hard links, which leases need",
                file=entry.parent,
                allowed="a local disk, NFS, Lustre or the like",
            ) from None
        raise
    return True


def filesystem_time(file: Path) -> float:
    """Present time by the clock of the file system on which this process's own file lies."""
    os.utime(file)
    return file.stat().st_mtime
