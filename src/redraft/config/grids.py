"""Expansion of grids into cells."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from redraft.config import own
from redraft.config.cell import Cell, CellFile, Exclusion, Grid
from redraft.config.read import check_known, merge, parse
from redraft.errors import UserError


class Expanded(NamedTuple):
    """Cells of a paper by name, in the order of the file; exclusions by the name of the cell; names of cells by
    grid."""

    cells: dict[str, Cell]
    excluded: dict[str, Exclusion]
    grids: dict[str, list[str]]


def expand(paper: str, content: CellFile, file: Path, cell_of: Callable[[str], Cell]) -> Expanded:
    """Expand all grids of a paper's parsed `cells.yaml`; `cell_of` returns the cell of a grid's `base`.

    Raises:
        UserError: if a combination is not a valid cell, an exclusion has an unknown axis or label, or two grids define
            one cell differently.
    """
    found = Expanded({}, {}, {})
    for grid in content.grids:
        for axis, of_axis in ((axis, labels) for each in grid.exclude for axis, labels in each.when.items()):
            check_known([axis], grid.axes, "no such axis", file, "exclude.when")
            check_known(of_axis, grid.axes[axis], "no such label", file, f"exclude.when.{axis}")
        base = cell_of(grid.base) if grid.base else None
        for labels in itertools.product(*grid.axes.values()):
            name = "-".join(label for label in labels if label)
            chosen = dict(zip(grid.axes, labels, strict=True))
            matching = (e for e in grid.exclude if all(chosen[axis] in values for axis, values in e.when.items()))
            if exclusion := next(matching, None):
                found.excluded[name] = exclusion
                continue
            cell = _cell(paper, name, grid, labels, file, base)
            if found.cells.setdefault(name, cell) != cell:
                raise UserError("two grids define this cell differently", file=file, key="grids", value=name)
            found.grids.setdefault(grid.name, []).append(name)
    return found


def _cell(paper: str, name: str, grid: Grid, labels: tuple[str, ...], file: Path, base: Cell | None) -> Cell:
    content: dict = grid.cell
    for fragments, label in zip(grid.axes.values(), labels, strict=True):
        content = merge(content, fragments[label])
    if base:
        content = own.over(own.stated(base), content) | {"base": base.id}
    try:
        return parse(Cell, {"paper": paper, "name": name, **content}, file)
    except UserError as error:
        combined = ", ".join(f"{axis}: {label or '(empty)'}" for axis, label in zip(grid.axes, labels, strict=True))
        raise error.replace(
            message=f"cell {name}: {error.message}; it is the combination of {combined} in grid {grid.name}; "
            "add it to the grid's `exclude` or correct the labels",
            file=file,
        ) from None
