"""Variants of a cell by settings of a command line (`redraft run --set`), kept in a file that a person may edit."""

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from redraft.config import own
from redraft.config.base import parse_lenience
from redraft.config.cell import Cell, CellFile
from redraft.config.experiment import Run
from redraft.config.load import Experiments
from redraft.config.read import merge, parse, read_yaml
from redraft.errors import UserError
from redraft.files import write_atomically

SET, NAME = "--set", "--name"
GIVEN = ("paper", "name", "base")
"""Fields of a cell that follow from the command's other arguments."""
GRID = "variants"
"""Name of the grids that are added to the file."""
HEADING = """\
# Cells that `redraft run --set` has made, each from the cell that `base` names. Edit and remove what you like; what is
# added goes to the end. Git does not know this file, unless you add it (docs/quickstart.md).
title: Your runs
source: yours
grids:
"""


def keep(
    experiments: Experiments, cell_id: str, settings: Sequence[str], name: str, runs: Sequence[tuple[int, str]]
) -> str:
    """Write a variant of a cell into the file of custom cells, unless it is there; its runs have to make sense.

    Settings are `key=value`, with a dotted key of `Cell` and a value as YAML has it.

    Returns:
        Id of the variant.

    Raises:
        UserError: for a setting that no file could have either, a run that makes no sense, or a name that other
            settings have.
    """
    from filelock import FileLock  # here, since `redraft show` imports this module and works without

    cell = variant(experiments, cell_id, settings, name)
    file = experiments.cells_of(own.OWN)
    for seed, preset in runs:
        try:
            experiments.run_of(cell, seed, preset).check_supported()
        except UserError as error:
            raise _of_the_command(error, cell, file) from None
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        _add(cell, Experiments(experiments.root, experiments.named), file)
    return cell.id


def tried(experiments: Experiments, cell_id: str, settings: Sequence[str], seed: int, preset: str) -> tuple[Cell, Run]:
    """A variant of a cell that is kept nowhere, and its run; the cell itself without settings.

    Raises:
        UserError: for a setting that no file could have either, or a run that makes no sense.
    """
    if not settings:
        return experiments.cell(cell_id), experiments.run(cell_id, seed, preset)
    cell = variant(experiments, cell_id, settings)
    try:
        return cell, experiments.run_of(cell, seed, preset)
    except UserError as error:
        raise _of_the_command(error, cell, experiments.cells_of(own.OWN)) from None


def _of_the_command(error: UserError, cell: Cell, file: Path) -> UserError:
    """The error, whose file is the command line if it is about the variant."""
    if error.file != file:
        return error
    key = (error.key or "").removeprefix(f"{cell.name}.")
    return error.told(file=SET, key=key)


def variant(experiments: Experiments, cell_id: str, settings: Sequence[str], name: str = "") -> Cell:
    """Cell that differs from another one by settings.

    A variant of a cell that has a base starts from the same base.

    Raises:
        UserError: for the first setting that a cell cannot have.
    """
    start, changes = experiments.cell(cell_id), _parsed(settings)
    definition = own.over(own.stated(start), changes)
    cell = _named(definition, start.base or start.id, name or start.name)
    if name:
        return cell
    return _named(definition, cell.base, "-".join([start.name, *_words(changes, own.stated(cell))]))


def _named(definition: dict[str, Any], base: str | None, name: str) -> Cell:
    try:
        return parse(Cell, {**definition, "paper": own.OWN, "name": name, "base": base}, SET)
    except UserError as error:
        if error.key != "name":
            raise
        raise UserError(
            "this is no name of a cell", key=NAME, value=name, allowed="letters, digits, _, - and single dots"
        ) from None


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    """Settings as a nested mapping.

    Raises:
        UserError: for a setting without a key, one that is given twice, or one that may not be set.
    """
    changes: dict[str, Any] = {}
    seen: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise UserError("a setting is key=value", key=SET, value=setting, hint="such as trainer.group_size=16")
        if parts[0] in GIVEN:
            raise UserError(
                "this follows from the cell and from --name, and is not set",
                file=SET,
                key=key,
                allowed=[part for part in Cell.model_fields if part not in GIVEN],
            )
        if any(f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.") for other in seen):
            raise UserError("this setting is given twice", key=SET, value=key)
        seen.append(key)
        try:
            nested: Any = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError("not valid YAML", key=SET, value=setting) from None
        if isinstance(nested, str) and re.fullmatch(r"[+-]?[\d.]+[eE][+-]?\d+", nested):  # YAML takes 5e-7 for text
            nested = float(nested)
        for part in reversed(parts):
            nested = {part: nested}
        changes = merge(changes, nested)
    return changes


def _words(changes: dict[str, Any], stated: dict[str, Any]) -> list[str]:
    """A word for each setting, in the order of the words."""
    words = []
    for part, change in changes.items():
        if not isinstance(change, dict):
            words.append(f"{part}_{_text(part, stated[part])}")
            continue
        for field in change:
            value, times = _text(field, stated[part][field]), "x" if part == "trainer_factors" else ""
            words.append(value if field == "kind" else f"{field}{times}{value}")
    return [re.sub(r"[^A-Za-z0-9_.-]+", "-", word) for word in sorted(words)]


def _text(field: str, value: Any) -> str:
    """Value as a name has it; a lenience is its logarithm there, as in the names of the papers' cells."""
    if field == "lenience" and value is not None:
        lenience = parse_lenience(value)
        return f"{math.log(lenience):.6g}" if lenience else "-inf"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _add(cell: Cell, experiments: Experiments, file: Path) -> None:
    """Add a grid with the cell to the end of a file, all else as it is, with its comments, unless it has the cell.

    Raises:
        UserError: if another cell has the name, or the file does not end with its grids.
    """
    if file.exists():
        there = {each.name: each for each in experiments.cells(own.OWN)}
        if there.get(cell.name) == cell:
            return
        if cell.name in there:
            raise UserError(
                "a cell of this name has other settings", file=file, key=NAME, value=cell.name, hint="take another name"
            )
    fragment = own.difference(own.stated(experiments.cell(str(cell.base))), own.stated(cell))
    grid = {"name": GRID, "base": cell.base, "axes": {"variant": {cell.name: fragment}}}
    before = file.read_text(encoding="utf-8").rstrip() + "\n" if file.exists() else HEADING
    content = read_yaml(file) if file.exists() else {**yaml.safe_load(HEADING), "grids": []}
    wanted = content | {"grids": [*content["grids"], grid]}
    for indent in ("", "  "):
        text = before + textwrap.indent(yaml.safe_dump([grid], sort_keys=False), indent)
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError:
            continue
        if found == wanted:
            parse(CellFile, found, file)
            write_atomically(file, text)
            return
    raise UserError(
        "a grid cannot be added to this file, since it does not end with its grids",
        file=file,
        key="grids",
        hint="make it the last key, a list in lines of its own",
    )


def seeds_of(texts: Sequence[str]) -> list[int]:
    """Seeds of texts such as `0`, `0-2` and `0,2,5`.

    Raises:
        UserError: for a text that is none of these, or a seed that stands twice.
    """
    seeds: list[int] = []
    for part in (part for text in texts for part in text.split(",")):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UserError("these are no seeds", key="--seeds", value=part, allowed="0, 0-2 or 0,2,5")
        seeds += range(first, last + 1)
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise UserError("this seed is given twice", key="--seed", value=twice[0])
    return seeds
