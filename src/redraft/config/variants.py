"""Variants of a cell by settings of the command line (`redraft run --set`), kept in a file that users may edit."""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from redraft.config import own
from redraft.config.base import LARGEST_SEED, LONGEST_NAME, parse_lenience
from redraft.config.cell import Cell, CellFile
from redraft.config.experiment import Run
from redraft.config.load import Experiments
from redraft.config.read import merge, parse, parse_yaml, read_yaml, shown
from redraft.errors import UserError
from redraft.files import write_atomically

SET, NAME = "--set", "--name"
GIVEN = ("paper", "name", "base")
"""Fields of a cell that follow from the command's other arguments."""
SETTABLE = ", ".join(sorted(set(Cell.model_fields) - set(GIVEN)))
"""Fields of a cell that can be set, for messages."""
GRID = "variants"
"""Name of the grids that are added to the file."""
ZERO_LENIENCE, FIRST_ZERO_LENIENCE = "lenience_zero", "lenience-inf"
"""Word for a lenience of 0 in the name of a variant, and the word in files of earlier versions.

Names have log ℓ, so 0 had the word `lenience-inf`, which reads as infinite lenience. A cell with the first word keeps
its name, since its finished runs are in a folder of that name; `--set` finds it instead of adding a second one."""
MOST_SEEDS = 1000
"""Largest number of seeds of a call."""
HEADING = """\
# Cells that `redraft run --set` has made, each from the cell that `base` names. Edit and remove what you like. New
# cells are added at the end. Git ignores this file, unless you add it (docs/quickstart.md).
title: Your runs
source: yours
grids:
"""


def keep(
    experiments: Experiments, cell_id: str, settings: Sequence[str], name: str, runs: Sequence[tuple[int, str]]
) -> str:
    """Add a variant of a cell to the file of custom cells, unless it is there, after a check that its runs are valid.

    Args:
        settings: each `key=value`, with a dotted key of `Cell` and a value in YAML.
        name: name of the variant; derived from the settings if empty.
        runs: seed and preset of each run.

    Returns:
        Id of the variant.

    Raises:
        UserError: for a setting or a run that is invalid, or a name that has other settings in the file.
    """
    from filelock import FileLock  # here, since `redraft show` imports this module and works without

    # All is checked before the file is written, so that a mistake leaves nothing in it.
    cell = variant(experiments, cell_id, settings, name)
    file = experiments.cells_of(own.OWN)
    for seed, preset in runs:
        try:
            experiments.run_of(cell, seed, preset).check_supported()
        except UserError as error:
            raise _of_the_command(error, experiments, cell_id, cell, settings, (seed, preset)) from None
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        # Read again under the lock: another call may have added cells since.
        kept = Experiments(experiments.root, experiments.named).cells(own.OWN) if file.exists() else []
        there = {each.name: each for each in kept}
        first_name = cell.name.replace(ZERO_LENIENCE, FIRST_ZERO_LENIENCE)
        # A finished run of the first name stays the run of this variant.
        if not name and there.get(first_name) == cell.model_copy(update={"name": first_name}):
            return there[first_name].id
        if cell.name not in there:
            _add(cell, experiments.cell(str(cell.base)), file)
        elif there[cell.name] != cell:
            raise UserError(
                "a cell of this name has other settings", file=file, key=NAME, value=cell.name, hint="take another name"
            )
    return cell.id


def tried(experiments: Experiments, cell_id: str, settings: Sequence[str], seed: int, preset: str) -> tuple[Cell, Run]:
    """A variant of a cell that is not written to a file, and its run; without settings the cell itself.

    Raises:
        UserError: for a setting or a run that is invalid.
    """
    if not settings:
        return experiments.cell(cell_id), experiments.run(cell_id, seed, preset)
    cell = variant(experiments, cell_id, settings)
    try:
        return cell, experiments.run_of(cell, seed, preset)
    except UserError as error:
        raise _of_the_command(error, experiments, cell_id, cell, settings, (seed, preset)) from None


def _of_the_command(
    error: UserError,
    experiments: Experiments,
    cell_id: str,
    cell: Cell,
    settings: Sequence[str],
    of_run: tuple[int, str],
) -> UserError:
    """The error of a variant's run; it names the settings, unless the cell has no valid run without them either."""
    try:
        experiments.run(cell_id, *of_run)
    except UserError:
        return error
    keys = [setting.partition("=")[0] for setting in settings]
    # Keys of the trainer's settings begin with the cell's name (`Experiments.trainer_settings`).
    key = (error.key or "").removeprefix(f"{cell.name}.")
    if error.file == experiments.cells_of(own.OWN):
        return error.replace(file=SET, key=key)
    # A cell's `model` has to be one of the preset's `models`.
    if named := [name for name in keys if key in (name, f"{name}s")]:
        return error.replace(file=SET, key=named[0])
    hint = f"this does not fit {key} in {error.file}"
    return error.replace(file=SET, key=", ".join(keys), value=None, allowed=None, hint=hint)


def variant(experiments: Experiments, cell_id: str, settings: Sequence[str], name: str = "") -> Cell:
    """Cell that differs from another one by settings. A variant of a cell that has a base has the same base.

    Raises:
        UserError: for the first setting that is invalid for a cell.
    """
    start, changes = experiments.cell(cell_id), _parsed(settings)
    # From the fields that the cell sets: a default that changes later then changes its variants too.
    definition = own.over(own.stated(start), changes)
    cell = _named(definition, start.base or start.id, name or start.name)
    if name:
        return cell
    # Named a second time, by the values as the model has parsed them: `5e-1` and `0.5` are one variant.
    return _named(definition, cell.base, "-".join([start.name, *_words(changes, own.stated(cell))]))


def _named(definition: dict[str, Any], base: str | None, name: str) -> Cell:
    try:
        return parse(Cell, {**definition, "paper": own.OWN, "name": name, "base": base}, SET)
    except UserError as error:
        if error.key != "name":
            # An unknown field at the top: offer only those that `--set` takes.
            if error.allowed == ", ".join(sorted(Cell.model_fields)):
                raise error.replace(allowed=SETTABLE) from None
            raise
        allowed = f"letters, digits, _, - and single dots, at most {LONGEST_NAME}"
        hint = "choose a name by `--name`" if len(name) > LONGEST_NAME else ""
        raise UserError("this is not a name for a cell", key=NAME, value=name, allowed=allowed, hint=hint) from None


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    """Settings as a nested mapping.

    Raises:
        UserError: for a setting without a key, a repeated setting, or a field that cannot be set.
    """
    changes: dict[str, Any] = {}
    seen: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise UserError("a setting must be key=value", key=SET, value=setting, hint="such as trainer.group_size=16")
        if parts[0] in GIVEN:
            raise UserError(
                "this field follows from the cell and --name and cannot be set",
                file=SET,
                key=key,
                allowed=SETTABLE,
            )
        # Also `trainer` next to `trainer.epochs`, of which the later one would overwrite a part of the earlier.
        if any(f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.") for other in seen):
            raise UserError("this setting is given twice", key=SET, value=key)
        seen.append(key)
        try:
            nested: Any = parse_yaml(text, SET)
        except UserError as error:
            raise error.replace(file=None, key=SET, value=shown(setting)) from None
        # From the innermost key outwards.
        for part in reversed(parts):
            nested = {part: nested}
        changes = merge(changes, nested)
    return changes


def _words(changes: dict[str, Any], stated: dict[str, Any]) -> list[str]:
    """A word for each setting, sorted, so that the order of settings does not change the name of a variant."""
    words = []
    for part, change in changes.items():
        if not isinstance(change, dict):
            words.append(f"{part}_{_text(part, stated[part])}")
            continue
        for field in change:
            value, times = _text(field, stated[part][field]), "x" if part == "trainer_factors" else ""
            words.append(value if field == "kind" or value == ZERO_LENIENCE else f"{field}{times}{value}")
    # Values may be lists or texts with spaces; a name is part of a path.
    return [re.sub(r"[^A-Za-z0-9_.-]+", "-", word) for word in sorted(words)]


def _text(field: str, value: Any) -> str:
    """Text of a value in a name. A lenience is its natural logarithm, as in the names of the papers' cells."""
    if field == "lenience" and value is not None:
        lenience = parse_lenience(value)
        return f"{math.log(lenience):.6g}" if lenience else ZERO_LENIENCE
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _add(cell: Cell, base: Cell, file: Path) -> None:
    """Add a grid with the cell to the end of a file; the rest of the file, with its comments, does not change.

    Raises:
        UserError: if the file does not end with its grids.
    """
    fragment = own.difference(own.stated(base), own.stated(cell))
    grid = {"name": GRID, "base": cell.base, "axes": {"variant": {cell.name: fragment}}}
    before = file.read_text(encoding="utf-8").rstrip() + "\n" if file.exists() else HEADING
    content = read_yaml(file) if file.exists() else {**yaml.safe_load(HEADING), "grids": []}
    wanted = content | {"grids": [*content["grids"], grid]}
    # The user's list of grids may be indented or not. The text that parses to the wanted content is the right one.
    for indent in ("", "  "):
        text = before + textwrap.indent(yaml.safe_dump([grid], sort_keys=False), indent)
        try:
            found = parse_yaml(text, file)
        except UserError:
            continue
        if found == wanted:
            parse(CellFile, found, file)
            write_atomically(file, text)
            return
    raise UserError(
        "a grid cannot be added to this file, since it does not end with its grids",
        file=file,
        key="grids",
        hint="make it the last key, as a list with one grid per line",
    )


def seeds_of(texts: Sequence[str]) -> list[int]:
    """Seeds of texts such as `0`, `0-2` and `0,2,5`.

    Raises:
        UserError: for a text that is none of these, a repeated or too large seed, or more than `MOST_SEEDS`.
    """
    seeds: list[int] = []
    for part in (part for text in texts for part in text.split(",")):
        found = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", part.strip(), flags=re.ASCII)
        # Without a match an empty range, which the next line rejects.
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last or last > LARGEST_SEED:
            allowed = f"0, 0-2 or 0,2,5; at most {LARGEST_SEED}"
            raise UserError("not a list of seeds", key="--seeds", value=shown(part), allowed=allowed)
        # Before the range is expanded, which may have billions of seeds.
        if len(seeds) + last - first >= MOST_SEEDS:
            raise UserError("too many seeds", key="--seeds", value=part, allowed=f"at most {MOST_SEEDS}")
        seeds += range(first, last + 1)
    if twice := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise UserError("this seed is given twice", key="--seed", value=twice[0])
    return seeds
