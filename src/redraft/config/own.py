"""Custom cells: grids that start from a paper's cells, in a file that is treated as a paper.

The file is `experiments/own/cells.yaml`, which `redraft run --set` writes, or the file of `--cells` or `snakemake
--config cells=…`. An environment variable passes the latter to jobs, and a frozen copy of the code has it in its
folder of experiments.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redraft.config.cell import Cell
from redraft.config.read import merge
from redraft.config.tables import CellTable, Column, Row, TableFile
from redraft.errors import UserError
from redraft.layout import code_root

VARIABLE = "REDRAFT_CELLS"
"""Environment variable with the path of a custom file of cells."""
OWN = "own"
"""Paper of the cells that `redraft run --set` makes."""
CELLS = "cells.yaml"
PARTS = ("tables.yaml", "figures.yaml", "claims.yaml", "hyperparameters.yaml", "reported.yaml")
"""Files that may be next to a custom file with the name `cells.yaml`, as for any paper."""


def cells_file() -> Path | None:
    """File of the environment variable; None if that is not set.

    Raises:
        UserError: if the file is missing.
    """
    file = Path(named) if (named := os.environ.get(VARIABLE)) else None
    if file and not file.is_file():
        raise UserError("no such file of cells", key="--cells", value=str(file))
    return file


def paper_of(file: Path) -> str:
    """Paper of a file of cells: the file's stem, or the name of its folder if the file is `cells.yaml`."""
    # Resolved, since `cells.yaml` alone has no folder before its name.
    return file.resolve().parent.name if file.name == CELLS else file.stem


def place(file: Path) -> Path:
    """Path of a file of cells in a frozen copy, where it is a paper like any other."""
    return Path("experiments") / paper_of(file) / CELLS


def files(file: Path) -> dict[str, Path]:
    """The file and the files that belong to it, by their path in a frozen copy."""
    found = {CELLS: file}
    # A file with another name may share its folder with anything.
    if file.name == CELLS:
        beside = [file.parent / name for name in PARTS] + sorted(file.parent.glob("reported/*.csv"))
        found |= {path.relative_to(file.parent).as_posix(): path for path in beside if path.is_file()}
    return {f"{place(file).parent.as_posix()}/{name}": path for name, path in found.items()}


def located(at: Path) -> Path:
    """File of the code of this process, from its path in a frozen copy."""
    file = cells_file()
    return files(file).get(at.as_posix(), code_root() / at) if file else code_root() / at


def stated(cell: Cell) -> dict[str, Any]:
    """Fields that a cell sets, as in its file, without name, paper and base."""
    return cell.model_dump(mode="json", exclude_unset=True, exclude={"paper", "name", "base"})


def over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Fields of a cell that starts from `base` and sets the fields of `change`, merged mapping by mapping.

    A part of another kind takes over no field, since fields of one kind mean nothing in another. A factor of the base
    does not multiply a field of the trainer that `change` sets.
    """
    kept = {name: part for name, part in base.items() if not _of_another_kind(part, change.get(name))}
    trainer = change.get("trainer")
    if isinstance(trainer, dict) and "trainer_factors" in kept:
        factors = kept["trainer_factors"].items()
        # Else the base's factor would multiply the value that the change sets.
        kept["trainer_factors"] = {name: factor for name, factor in factors if name not in trainer}
    return merge(kept, change)


def _of_another_kind(part: Any, change: Any) -> bool:
    both = isinstance(part, dict) and isinstance(change, dict)
    # A change without a kind is one of the same part.
    return both and change.get("kind", part.get("kind")) != part.get("kind")


def difference(base: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
    """The smallest change with `over(base, change) == cell`."""
    found = {}
    for name, part in cell.items():
        before = base.get(name)
        if isinstance(part, dict) and isinstance(before, dict) and not _of_another_kind(before, part):
            # Keys of the base only are not mentioned: a change cannot remove them, and `over` restores them.
            part = {key: value for key, value in part.items() if key not in before or before[key] != value}  # noqa: PLW2901
            if part:
                found[name] = part
        elif name not in base or part != before:
            found[name] = part
    return found


def default_tables(cells: Iterable[Cell]) -> TableFile:
    """The table of a file that declares none: each cell next to its base, which is its baseline."""
    by_base: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.base:
            by_base.setdefault(cell.base, []).append(cell)
    rows = []
    for base, own in by_base.items():
        rows += [Row(label="(base)", cell=base, group=base, baseline=base)]
        rows += [Row(label=cell.name, cell=cell.name, group=base, baseline=base) for cell in own]
    if not rows:
        return TableFile()
    # Above 100, so that it is no table of a paper.
    table = CellTable(number=101, title="Your runs", baseline=rows[0].cell, columns=COLUMNS, rows=rows, note=NOTE)
    return TableFile(tables=[table])


COLUMNS = [
    Column(name="tokens_m", title="Tokens decoded (M)", quantity="tokens_decoded", scale=1e-6, decimals=3),
    Column(name="tokens_relative", title="Tokens / base", quantity="tokens_decoded", relative="ratio"),
    Column(name="generation_s", title="Generation (s)", quantity="generation_seconds", decimals=1),
    Column(name="speedup", title="Speedup of generation", quantity="generation_seconds", relative="speedup"),
    Column(name="accuracy", title="Accuracy (%)", quantity="accuracy:all", decimals=1),
    Column(
        name="accuracy_points",
        title="Accuracy, points more",
        quantity="accuracy:all",
        relative="difference",
        decimals=1,
    ),
]
NOTE = "Each cell next to the cell that it starts from. Intervals are over seeds; ratios pair the seeds that both have."
