"""Training curves and sweeps that authors published, and their validation.

A curve is a JSON Lines file with one object per validation; `redraft.lab.selfspec.sweep` defines sweeps. The files are
third-party data and never part of the repository; their folder is `redraft.layout.published_data`. A missing folder
means "no data". An existing folder must have every file that a table or figure names.
"""

import json
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath

from redraft.config import Experiments, PublishedSweep, PublishedTable
from redraft.errors import UserError
from redraft.lab.selfspec.sweep import read_sweep
from redraft.layout import published_data

Record = Mapping[str, float]
"""One validation: numbers by key."""


def read_curve(file: Path, time: str, fields: Sequence[str]) -> list[tuple[float, float]]:
    """Time and value of each validation, in the order of the file; the value is the mean of the fields.

    Args:
        file: JSON Lines, one object per validation.
        time: key of the time or step of a validation.
        fields: keys, in which a `*` is any text; each must match one key.

    Raises:
        UserError: if the file is missing, empty or truncated, if a validation lacks a number, or if time runs
            backwards.
    """
    records = _records(file)
    keys = []
    for field in (time, *fields):
        found = [key for key in records[0] if fnmatchcase(key, field)]
        if len(found) != 1:
            problem = "several keys of the validations match" if found else "the validations have no such field"
            # Files have many keys with statistics over samples (`best@4/std`), which would hide the useful ones.
            comparable = [key for key in found or records[0] if "best@" not in key]
            raise UserError(problem, file=file, key="field", value=field, allowed=comparable)
        keys += found
    rows = [[_number(record, key, line, file) for key in keys] for line, record in enumerate(records, start=1)]
    for line, (row, later) in enumerate(pairwise(rows), start=2):
        if later[0] < row[0]:
            raise UserError(
                "time runs backwards", file=file, key=f"line {line}, {time}", value=later[0], allowed=f">= {row[0]:g}"
            )
    return [(at, math.fsum(values) / len(values)) for at, *values in rows]


def curve_file(folder: str, name: str | None) -> Path | None:
    """Path of a published file; None if `name` is None or the folder does not exist.

    Raises:
        UserError: if the folder exists and the file does not.
    """
    where = published_data() / folder
    if name is None or not where.is_dir():
        return None
    if not (where / name).is_file():
        raise UserError(
            "this published file is missing",
            file=where,
            key="file",
            value=name,
            allowed=sorted(file.name for file in where.iterdir()),
        )
    return where / name


def sweep_file(sweep: PublishedSweep) -> Path | None:
    """Path of a published sweep; None if its folder does not exist.

    Raises:
        UserError: if the folder exists and the file does not.
    """
    file = PurePath(sweep.file)
    return curve_file(str(file.parent), file.name)


def check_published(experiments: Experiments, paper: str) -> None:
    """Read all published files of a paper's tables and figures once, so that a fault is reported before anything
    runs."""
    curves: list[tuple[str, str | None, str, list[str]]] = []
    for table in experiments.tables(paper).tables:
        if isinstance(table, PublishedTable):
            fields = [field for target in table.targets for field in target.fields]
            curves += [(table.folder, row.file, table.time, fields) for row in table.rows]
    panels = [panel for figure in experiments.figures(paper).figures for panel in figure.panels]
    for shown in (panel.curves for panel in panels if panel.curves):
        curves += [(shown.folder, name, shown.time, shown.fields) for name in shown.files.values()]
    for folder, name, time, fields in curves:
        if file := curve_file(folder, name):
            read_curve(file, time, fields)
    for panel in panels:
        if panel.roofline and (file := sweep_file(panel.roofline)):
            read_sweep(file)


def _records(file: Path) -> list[Record]:
    records: list[Record] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if not isinstance(record, dict):
            raise UserError(
                "this line is not a JSON object; the file is truncated or damaged", file=file, key="line", value=number
            )
        records.append(record)
    if not records:
        raise UserError("this published file is empty", file=file)
    return records


def _number(record: Record, key: str, line: int, file: Path) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(
            "this validation lacks a number", file=file, key=f"line {line}, {key}", value=value, allowed="a number"
        )
    return float(value)
