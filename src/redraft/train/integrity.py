"""Checks that files are still what they were when a checkpoint was declared complete.

Sizes are compared first: they tell a truncated file without reading it. Then every byte is hashed, several files at a
time, since a flipped bit in the middle of an optimizer's state would train on unnoticed. What that costs stands in
docs/faults.md.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from redraft.files import sha256, sync

THREADS = min(16, os.cpu_count() or 1)
"""Files that are hashed at once; hashing leaves Python's lock to others."""


def measure(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Sizes in bytes and hashes of these files of a folder, by their names in it; they are on the disk then."""
    names = [str(file.relative_to(folder)) for file in sorted(files)]
    for name in names:
        sync(folder / name)
    return {"bytes": {name: (folder / name).stat().st_size for name in names}, "sha256": _hashes(folder, names)}


def damage(folder: Path, recorded: Mapping[str, Mapping[str, Any]], *, sizes_only: bool = False) -> str:
    """Describe the first damage among the files of a folder; empty if there is none.

    Args:
        folder: of a checkpoint.
        recorded: what `measure` said of it; without sizes if it was written before they were recorded.
        sizes_only: leave out the hashes.
    """
    for name in recorded["sha256"]:
        if not (folder / name).is_file():
            return f"{name} is missing"
    for name, size in recorded.get("bytes", {}).items():
        if (found := (folder / name).stat().st_size) != size:
            return f"{name} is damaged: it has {found} bytes and had {size}"
    if not sizes_only:
        found_hashes = _hashes(folder, list(recorded["sha256"]))
        for name, expected in recorded["sha256"].items():
            if found_hashes[name] != expected:
                return f"{name} is damaged: its SHA-256 is not what it was"
    return ""


def _hashes(folder: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: sha256(folder / name), names), strict=True))


def set_aside(checkpoint: Path, why: str) -> Path:
    """Rename a damaged checkpoint, so that none takes it for one; returns where it lies now.

    Says so on standard error, in one line.
    """
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}-{number}")
    checkpoint.rename(aside)
    print(f"{checkpoint}: {why}; set aside as {aside.name}", file=sys.stderr, flush=True)
    return aside


def remove_set_aside(folder: Path) -> None:
    """Remove damaged checkpoints, when enough whole ones stand beside them."""
    for aside in folder.glob("damaged-*"):
        shutil.rmtree(aside)
