"""Reading and writing of files that are complete or absent, and never half written."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and an exhausted quota."""


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk: a power cut could keep a name and lose its content.

    File systems that cannot flush folders are left alone.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


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
    """Raise a UserError that names the file if it is missing or, as `damage` says, cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise UserError("this file is missing", file=file) from None
    except damage as error:
        raise UserError(f"this file is damaged ({str(error).splitlines()[0]})", file=file) from None


@contextmanager
def atomic(file: Path) -> Iterator[Path]:
    """Yield a temporary path beside `file`, which replaces it if the block succeeds and is removed if it fails.

    Raises:
        UserError: if there is no space left; `file` stays as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with errors_of_full_disk(file):
            yield temporary
            sync(temporary)
            temporary.replace(file)
            sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, renamed to it when the block ends well, removed when it does not.

    Raises:
        UserError: if there is no space left; what stood at `folder` stays as it was.
    """
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for path in [*unfinished.rglob("*"), unfinished]:
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        sync(folder.parent)
    except Exception as error:
        # safetensors and tokenizers raise custom types, with the text of a full disk's error
        if getattr(error, "errno", None) in NO_SPACE or any(os.strerror(number) in str(error) for number in NO_SPACE):
            raise UserError("no space left to write this folder; nothing was overwritten", file=folder) from None
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def linked_folder(source: Path, folder: Path) -> None:
    """A folder with the files of another, without a copy of their contents where the file system can do that."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    with atomic_folder(folder) as unfinished:
        shutil.copytree(source, unfinished, copy_function=link, dirs_exist_ok=True)


def write_atomically(file: Path, content: bytes | str) -> None:
    """Write a complete file or nothing."""
    with atomic(file) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(file: Path, content: Any) -> None:
    """Write a complete file of indented JSON or nothing."""
    write_atomically(file, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(file: Path) -> Any:
    """Parse a JSON file; a UserError if it is missing or not JSON."""
    with errors_of_reading(file, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))


def read_json_lines(file: Path) -> list[Any]:
    """Parse a JSON Lines file; a UserError if it is missing or a line is not JSON."""
    with errors_of_reading(file, ValueError):
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def numbers_of_records(records: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Numbers of the records of steps, a line a record, with nested keys joined by dots; lists are left out."""
    import pandas as pd

    single = [{key: value for key, value in record.items() if not isinstance(value, list)} for record in records]
    return pd.json_normalize(single).apply(pd.to_numeric)


def sha256(file: Path) -> str:
    """Hash of a file's content, hexadecimal; a UserError if it is missing."""
    with errors_of_reading(file), file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_parquet(file: Path, columns: tuple[str, ...], *, only: bool = False) -> "pd.DataFrame":
    """Read a Parquet file that has at least these columns; with `only` no others are read.

    Raises:
        UserError: if it is missing, damaged or lacks a column.
    """
    import pandas as pd  # here, so that the configuration package need not load it

    with errors_of_reading(file, OSError, ValueError):
        frame = pd.read_parquet(file, columns=list(columns) if only else None)
    for column in columns:
        if column not in frame:
            raise UserError("this file lacks a column", file=file, key=column, allowed=", ".join(columns))
    return frame
