"""Reading and writing of files. A file is either complete or absent, never half written."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and an exhausted quota."""
TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.tmp")
"""Names of unfinished files of `atomic`."""
UNFINISHED = re.compile(r"\.(step|global_step)[-_]\d+")
"""Names of unfinished folders of `atomic_folder` in a run."""

NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)
"""Error numbers of a file or folder that may not be read or written, or is the other of the two."""


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk.

    Without it a power cut could keep the name of a new file and lose its content. Errors of file systems that cannot
    flush folders are ignored.
    """
    # Folders can be opened for reading only.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def socket_folder(longest: int) -> str:
    """Folder for sockets whose name has at most so many bytes: that of temporary files, or else a shorter one.

    Linux limits a socket's path to 107 bytes, and libraries append names to `TMPDIR`, which is long in jobs of many
    clusters.

    Raises:
        UserError: if no folder that can be written to is short enough.
    """
    own = tempfile.gettempdir()
    for folder in (own, *SHORT_FOLDERS):
        if len(os.fsencode(folder)) <= longest and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise UserError(
        "no folder of temporary files has a name that is short enough for sockets",
        key="TMPDIR",
        value=own,
        allowed=f"at most {longest} bytes, or /tmp writable",
    )


@contextmanager
def errors_of_full_disk(file: Path) -> Iterator[None]:
    """Raise a UserError that names the file if the block finds no space left."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise UserError("no space left to write this file; nothing was overwritten", file=file) from None
        raise


@contextmanager
def errors_of_reading(file: Path, *damage: type[Exception]) -> Iterator[None]:
    """Raise a UserError that names the file if it cannot be read, or if reading it raises one of the types in
    `damage`."""
    try:
        if file.exists() and not file.is_file():  # a named pipe would block, and pandas reads a folder as a data set
            kind = "folder" if file.is_dir() else "device"
            raise UserError(f"this is a {kind} and no file", file=file)
        yield
    except FileNotFoundError:
        raise UserError("this file is missing", file=file) from None
    except damage as error:
        # Messages of libraries may have pages, or none.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"this file is damaged ({first})", file=file) from None
    except OSError as error:
        raise UserError(f"this file cannot be read ({error.strerror or error})", file=file) from None


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextmanager
def atomic(file: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `file`. It replaces `file` if the block succeeds, else it is removed.

    Raises:
        UserError: if there is no space left; `file` is unchanged.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with errors_of_full_disk(file):
            yield temporary
            _as_umask_allows([temporary])
            sync(temporary)
            temporary.replace(file)
            sync(file.parent)
    finally:
        # Also after KeyboardInterrupt; after a success it was renamed.
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder next to `folder`. It replaces `folder` if the block succeeds, else it is removed.

    Raises:
        UserError: if there is no space left; `folder` is unchanged.
    """
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        _as_umask_allows(path for path in unfinished.rglob("*") if path.is_file())
        for path in [*unfinished.rglob("*"), unfinished]:
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        # A folder that is not empty cannot be replaced by `rename`, so the old one is removed first.
        unfinished.rename(folder)
        sync(folder.parent)
    except Exception as error:
        # safetensors and tokenizers raise their own types, whose text has the message of the full disk
        if getattr(error, "errno", None) in NO_SPACE or any(os.strerror(number) in str(error) for number in NO_SPACE):
            raise UserError("no space left to write this folder; nothing was overwritten", file=folder) from None
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unfinished(folder: Path) -> list[Path]:
    """Files and folders below `folder` that killed processes left unfinished, or live ones have not finished yet."""
    found: list[Path] = []
    for path in sorted(folder.rglob(".*")):  # a folder comes before its content
        if TEMPORARY.fullmatch(path.name) or UNFINISHED.fullmatch(path.name):
            # Files below an unfinished folder are removed with it.
            found += [] if any(path.is_relative_to(other) for other in found) else [path]
    return found


def remove(paths: Iterable[Path]) -> None:
    """Remove files and whole folders."""
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _as_umask_allows(files: Iterable[Path]) -> None:
    """Give files the mode of new ones: libraries that write through temporary files leave them unreadable to others."""
    status = Path("/proc/self/status")
    shown = re.search(r"^Umask:\s*(\d+)", status.read_text(), re.MULTILINE) if status.exists() else None
    if shown:
        umask = int(shown[1], 8)
    else:  # can only be read by setting it
        os.umask(umask := os.umask(0o077))
    for file in files:
        if file.stat().st_nlink == 1:  # a link's mode is that of the file elsewhere, which may be someone else's
            file.chmod(0o666 & ~umask)


def _link(source: str | Path, target: str | Path) -> None:
    """Make a hard link where the file system supports it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def linked_folder(source: Path, folder: Path) -> None:
    """Make a folder with the files of another one, by hard links where the file system supports them, else by
    copies."""
    with atomic_folder(folder) as unfinished:
        shutil.copytree(source, unfinished, copy_function=_link, dirs_exist_ok=True)


def write_atomically(file: Path, content: bytes | str) -> None:
    """Write a complete file or nothing."""
    with atomic(file) as temporary:
        # Bytes, so that line feeds stay as they are on every system.
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(file: Path, content: Any) -> None:
    """Write a complete file of indented JSON or nothing."""
    write_atomically(file, json_text(content))


def json_text(content: Any) -> str:
    """Indented JSON with a line feed at its end; a ValueError for NaN and infinity."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def read_json(file: Path, *, finite: bool = False) -> Any:
    """Parse a JSON file; a UserError if it is missing, not JSON, or has a key twice or (`finite`) NaN or infinity."""
    with errors_of_reading(file, ValueError, RecursionError):
        text = file.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_no_number if finite else None, object_pairs_hook=json_object)


def read_json_lines(file: Path) -> list[Any]:
    """Parse a JSON Lines file; a UserError if it is missing, or a line is not JSON or has a key twice or NaN."""
    with errors_of_reading(file, ValueError, RecursionError):
        lines = file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line, parse_constant=_no_number, object_pairs_hook=json_object) for line in lines]


class RepeatedKeyError(ValueError):
    """A key that occurs twice in a JSON object.

    Attributes:
        key: the key.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} occurs twice")
        self.key = key


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object (`object_pairs_hook`), or a RepeatedKeyError: Python would take the last value of the key."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return content


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def check_length(file: Path, key: str, found: int, declared: int | None) -> None:
    """Raise a UserError if a file of lines has another number of them than is declared; None declares nothing."""
    # A file cut between two lines looks complete; only a declared number finds it.
    if declared is not None and found != declared:
        problem = "this file is cut off" if found < declared else "this file is longer than declared"
        raise UserError(problem, file=file, key=key, value=found, allowed=str(declared))


def steps_in(folder: Path, suffix: str = "") -> dict[int, Path]:
    """Files or folders `step-<number>` of a folder by that number, ascending, however many digits they have."""
    names = re.compile(rf"step-(\d+){re.escape(suffix)}")
    # By number: as texts, step-10000 would be before step-9999.
    found = {int(name[1]): path for path in folder.glob("step-*") if (name := names.fullmatch(path.name))}
    return dict(sorted(found.items()))


def numbers_of_records(records: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Data frame of the numbers in step records, one row per record. Nested keys are joined by dots, lists are
    dropped."""
    import pandas as pd

    single = [{key: value for key, value in record.items() if not isinstance(value, list)} for record in records]
    return pd.json_normalize(single).apply(pd.to_numeric)


def sha256(file: Path) -> str:
    """Hash of a file's content, hexadecimal; a UserError if it cannot be read."""
    with errors_of_reading(file), file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def hashes(*files: Path) -> dict[str, str]:
    """SHA-256 hashes of files, by file name."""
    return {file.name: sha256(file) for file in files}


def own_hash_file(file: Path) -> Path:
    """File with the hash of a file that no record names."""
    return file.with_name(f"{file.name}.sha256")


def read_parquet(file: Path, columns: tuple[str, ...], *, only: bool = False) -> "pd.DataFrame":
    """Read a Parquet file that has at least these columns; with `only` just these columns are read.

    Raises:
        UserError: if it is missing, damaged or lacks a column.
    """
    import pandas as pd  # here, since the configuration package imports this module and does not need pandas

    with errors_of_reading(file, OSError, ValueError):
        # Rollouts and generations have checksums, which are compared only with this flag.
        frame = pd.read_parquet(file, columns=list(columns) if only else None, page_checksum_verification=True)
    for column in columns:
        if column not in frame:
            raise UserError("this file lacks a column", file=file, key=column, allowed=", ".join(columns))
    return frame
