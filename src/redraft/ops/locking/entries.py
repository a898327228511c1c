"""Entries of a folder's lease: the files `lease/000001.json`, `lease/000002.json` and so on.

The last entry names the owner of the folder. The entries before it are the history of the run's processes, from which
manifests count preemptions.

A new entry is created as a hard link to a complete file. Of several processes that create the same link, exactly one
succeeds, also on NFS. Entries are never removed and numbers are never reused. A single lease file that is removed and
created again would be unsafe: a process that is suspended between its check and its creation of the file could replace
an owner that it never checked.

An owner touches its entry regularly as a heart-beat. An observer compares the time of the last heart-beat with that of
a file that it touches itself on the same file system, so that the clocks of machines need not agree.
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
from redraft.ops.locking.owner import Liveness, Owner, judge

FOLDER = "lease"
"""Name of the folder of entries."""


class Content(BaseModel):
    """Content of an entry."""

    model_config = ConfigDict(extra="ignore")

    owner: Owner
    run: str = ""
    """Fingerprint of the run in the folder, or `EVALUATION` of `locking.lease`."""
    log: str = ""
    """The owner's log file, for error messages."""
    resumed_from: int | None = None
    """Number of finished steps when the owner started; None until it has loaded its checkpoint."""
    released: str | None = None
    """Time of the release, ISO 8601, UTC; None if the owner still works or died."""
    end: str | None = None
    """`finished`, or the name of the exception that ended the owner's work."""

    @property
    def text(self) -> str:
        """The content as JSON."""
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
        """True if the owner has released the folder."""
        return self.content is not None and self.content.released is not None

    def judge(self, now: float) -> Liveness:
        """Judge whether the owner is alive at a time of the file system's clock, in seconds."""
        # A heart-beat may come after `now` was read, and clocks of machines differ.
        return judge(self.content.owner if self.content else None, max(now - self.beat, 0.0))

    def __str__(self) -> str:
        return str(self.content.owner) if self.content else "a process whose lease cannot be read"


def entry_file(folder: Path, number: int) -> Path:
    """File of an entry."""
    return folder / FOLDER / f"{number:06d}.json"


def latest(folder: Path) -> Entry | None:
    """Last entry; None if the folder never had an owner."""
    files = _files(folder)
    return read_entry(files[-1]) if files else None


def history(folder: Path) -> list[Entry]:
    """All entries, the oldest first."""
    return [read_entry(file) for file in _files(folder)]


def read_entry(file: Path) -> Entry:
    """One entry and its heart-beat."""
    number = int(file.stem)
    with file.open("rb") as handle:  # opening a file makes an NFS client revalidate its cached attributes
        beat, text = os.fstat(handle.fileno()).st_mtime, handle.read()
    try:
        return Entry(number, file, Content.model_validate_json(text), beat)
    # Of another version of this code, for example. Its owner is unknown, so only heart-beats count.
    except ValidationError:
        return Entry(number, file, None, beat)


def _files(folder: Path) -> list[Path]:
    """Files of all entries, the oldest first."""
    try:
        files = [file for file in (folder / FOLDER).iterdir() if file.suffix == ".json" and file.stem.isdigit()]
    except FileNotFoundError:
        return []
    return sorted(files, key=lambda file: int(file.stem))


@contextmanager
def complete_file(folder: Path, content: Content) -> Iterator[Path]:
    """Write a complete file next to the entries, for `link` and `filesystem_time`; the end of the block removes it.

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
    """Create an entry from a complete file; False if another process created it first.

    Raises:
        UserError: if the file system has no hard links, without which a folder could get two owners.
    """
    os.utime(complete)  # the owner's first heart-beat
    try:
        os.link(complete, entry)
    except FileExistsError:
        # NFS repeats a request whose reply was lost; the existing file may then be the link of this very request.
        with suppress(FileNotFoundError):
            return os.path.samefile(complete, entry)
        return False
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise UserError(
                "this file system has no hard links, which leases need",
                file=entry.parent,
                allowed="a local disk, NFS, Lustre or similar",
            ) from None
        raise
    return True


def filesystem_time(file: Path) -> float:
    """Current time in seconds by the clock of a file system; touches the file, which must be this process's own."""
    os.utime(file)
    return file.stat().st_mtime
