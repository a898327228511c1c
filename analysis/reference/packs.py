"""Packs of small files: `.tar.xz` files, since what their files have in common is stored once."""

import io
import lzma
import tarfile
from collections.abc import Iterable
from pathlib import Path

from redraft.files import atomic, errors_of_reading

LARGEST = 1_000_000_000
"""Bytes of all files in a pack; a small one from elsewhere could fill the memory."""


def name_of(path: Path, root: Path) -> str:
    """Name of a file in a pack or an archive: that below the folder of results, after `results`."""
    return f"results/{path.relative_to(root).as_posix()}"


def write_pack(file: Path, content: Iterable[Path], root: Path) -> None:
    """Write a complete pack, or nothing. Equal files make equal packs.

    Args:
        file: the pack.
        content: files; one that is listed twice is there once.
        root: folder of results.
    """
    with atomic(file) as temporary, tarfile.open(temporary, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as pack:
        for path in sorted(set(content)):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name_of(path, root))  # its time and owner are 0
            entry.size = len(data)
            pack.addfile(entry, io.BytesIO(data))


def read_pack(file: Path) -> dict[str, bytes]:
    """Files of a pack by their names, which are anyone's: they may lead to any folder.

    Raises:
        UserError: if the pack is missing or damaged.
    """
    damage = (tarfile.TarError, lzma.LZMAError, EOFError)
    with errors_of_reading(file, *damage), tarfile.open(file, "r:xz") as pack:
        found, size = {}, 0
        for entry in pack:
            if (size := size + entry.size) > LARGEST:
                raise tarfile.TarError(f"it holds more than {LARGEST / 1e6:.0f} MB")
            content = pack.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise tarfile.TarError(f"{entry.name} is no file")
            found[entry.name] = content.read()
    return found
