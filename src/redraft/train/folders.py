"""Folders that are either whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redraft.errors import UserError
from redraft.files import NO_SPACE, sync


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
        if _says_no_space(error):
            raise UserError("no space left to write this folder; nothing was overwritten", file=folder) from None
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _says_no_space(error: Exception) -> bool:
    """True for a full disk's error; safetensors and tokenizers raise types of their own, with its text."""
    return getattr(error, "errno", None) in NO_SPACE or any(os.strerror(number) in str(error) for number in NO_SPACE)


def linked_folder(source: Path, folder: Path) -> None:
    """A folder with the files of another, without a copy of their contents where the file system can do that."""
    with atomic_folder(folder) as unfinished:
        shutil.copytree(source, unfinished, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
