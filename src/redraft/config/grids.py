"""Expansion of grids into cells."""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from redraft.config import own
from redraft.config.cell import Cell, CellFile, Exclusion, Grid
from redraft.config.read import check_known, merge, parse
from redraft.errors import UserError

MOST_COMBINATIONS = 10_000
"""Largest number of combinations of a grid; reading them takes ten seconds."""
FEW_COMBINATIONS = 100
"""Combinations that are tried for the hint of an error."""


class Expanded(NamedTuple):
    """Cells of a paper by name, in the order of the file; exclusions by the name of the cell; names of cells by
    grid."""

    cells: dict[str, Cell]
    excluded: dict[str, Exclusion]
    grids: dict[str, list[str]]


def expand(paper: str, content: CellFile, file: Path, cell_of: Callable[[str, str], Cell]) -> Expanded:
    """Expand all grids of a paper's parsed `cells.yaml`; `cell_of` returns the cell of a grid's `base`, given its key.

    Raises:
        UserError: if a combination is not a valid cell, an exclusion has an unknown axis or label, a grid has too many
            combinations, or two grids define one cell differently.
    """
    found = Expanded({}, {}, {})
    for number, grid in enumerate(content.grids):
        key = f"grids.{number}"
        _check_exclusions(grid, file, key)
        # Before the first is parsed: each further axis multiplies their number.
        if (combinations := math.prod(map(len, grid.axes.values()))) > MOST_COMBINATIONS:
            raise UserError(
                f"this grid has {combinations:,} combinations", file=file, key=key, allowed=f"{MOST_COMBINATIONS:,}"
            )
        base = cell_of(grid.base, f"{key}.base") if grid.base else None
        for labels in itertools.product(*grid.axes.values()):
            name = _name(labels)
            # Before the cell is parsed: combinations are excluded because they would be invalid.
            if exclusion := _exclusion(grid, labels):
                found.excluded[name] = exclusion
                continue
            cell = _cell(paper, grid, labels, file, base, key)
            # Grids may overlap, such as a comparison and a sweep through one of its cells.
            if found.cells.setdefault(name, cell) != cell:
                raise UserError("two grids define this cell differently", file=file, key=key, value=name)
            found.grids.setdefault(grid.name, []).append(name)
    return found


def _name(labels: tuple[str, ...]) -> str:
    """Name of the cell of a combination of labels."""
    return "-".join(label for label in labels if label)


def _check_exclusions(grid: Grid, file: Path, key: str) -> None:
    """Raise a UserError for an exclusion with an unknown axis or label."""
    for i, exclusion in enumerate(grid.exclude):
        when = f"{key}.exclude.{i}.when"
        check_known(exclusion.when, grid.axes, "no such axis", file, when)
        for axis, labels in exclusion.when.items():
            check_known(labels, grid.axes[axis], "no such label", file, f"{when}.{axis}")


def _exclusion(grid: Grid, labels: tuple[str, ...]) -> Exclusion | None:
    """The first exclusion of a combination of labels."""
    chosen = dict(zip(grid.axes, labels, strict=True))
    matching = (e for e in grid.exclude if all(chosen[axis] in values for axis, values in e.when.items()))
    return next(matching, None)


def _parsed(paper: str, grid: Grid, labels: tuple[str, ...], file: Path, base: Cell | None) -> Cell:
    """The cell of a combination of labels; the key of an error is that of the cell, without the grid."""
    content: dict = grid.cell
    for fragments, label in zip(grid.axes.values(), labels, strict=True):
        content = merge(content, fragments[label])
    if base:
        # After the merge of fragments, so that the kind of the finished cell decides what the base gives.
        content = own.over(own.stated(base), content) | {"base": base.id}
    name = _name(labels)
    return parse(Cell, {"paper": paper, "name": name, **content}, file)


def _cell(paper: str, grid: Grid, labels: tuple[str, ...], file: Path, base: Cell | None, key: str) -> Cell:
    """The cell of a combination of labels.

    Raises:
        UserError: if it is not valid. If its label is valid in another combination, the hint is to exclude this one;
            otherwise the label itself is wrong.
    """
    try:
        return _parsed(paper, grid, labels, file, base)
    except UserError as error:
        name = _name(labels)
        path = (error.key or "").split(".")
        # The name follows from the labels, so that no fragment has this key.
        if error.key == "name":
            raise error.replace(message=f"a cell would have the name {name!r}: {error.message}", key=key) from None
        fragments = {"cell": grid.cell} | {
            f"axes.{axis}.{label or '(empty)'}": grid.axes[axis][label]
            for axis, label in zip(grid.axes, labels, strict=True)
        }
        depths = {where: _depth(fragment, path) for where, fragment in fragments.items()}
        # The fragment that sets most of the key's path; of equals the last, which overrides those before it.
        where = max(reversed(depths), key=depths.__getitem__)
        combined = ", ".join(f"{axis}: {label or '(empty)'}" for axis, label in zip(grid.axes, labels, strict=True))
        message = f"cell {name}: {error.message}; it is the combination of {combined} in grid {grid.name}"
        changes = {"message": message, "file": file, "key": f"{key}.{where}.{error.key}"}
        if _valid_elsewhere(paper, grid, labels, base, where):
            changes["hint"] = "correct this key, or add the combination to the grid's `exclude`"
        raise error.replace(**changes) from None


def _depth(fragment: Any, path: Sequence[str]) -> int:
    """Number of leading parts of a path that a fragment has."""
    for depth, part in enumerate(path):
        if not isinstance(fragment, dict) or part not in fragment:
            return depth
        fragment = fragment[part]
    return len(path)


def _valid_elsewhere(paper: str, grid: Grid, labels: tuple[str, ...], base: Cell | None, where: str) -> bool:
    """Test for a valid combination with the same label; `where` is the key of the label in its grid."""
    for i, axis in enumerate(grid.axes):
        if where == f"axes.{axis}.{labels[i] or '(empty)'}":
            others = [[labels[i]] if j == i else list(each) for j, each in enumerate(grid.axes.values())]
            for combination in itertools.islice(itertools.product(*others), FEW_COMBINATIONS):
                with suppress(UserError):
                    # An excluded combination proves nothing: it may be invalid for this label too.
                    if not _exclusion(grid, combination):
                        return bool(_parsed(paper, grid, combination, Path(), base))
    return False
