"""Training curves and sweeps that authors published, and their validation.

A curve is a JSON Lines file with one object per validation; `redraft.lab.selfspec.sweep` defines sweeps. The files are
third-party data and never part of the repository; their folder is `redraft.layout.published_data`. A missing folder
means "no data". An existing folder must have every file that a table or figure names, except optional ones.
"""

import codecs
import csv
import json
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath

import numpy as np

from redraft.config import Experiments, PublishedSweep, PublishedTable
from redraft.config.figures import PublishedPoints
from redraft.errors import UserError
from redraft.files import check_length, errors_of_reading, json_object
from redraft.lab.selfspec.sweep import read_sweep
from redraft.layout import published_data

Record = Mapping[str, object]
"""One validation: values by key, which should be numbers."""


def read_curve(
    file: Path, time: str, fields: Sequence[str], *, validations: int | None = None, highest: float = 1.0
) -> list[tuple[float, float]]:
    """Time and value of each validation, in the order of the file; the value is the mean of the fields.

    Args:
        file: JSON Lines in UTF-8, one object per validation.
        time: key of the time or step of a validation.
        fields: keys, in which a `*` is any text; each must match one key.
        validations: number of validations that the authors published; unknown if None.
        highest: largest possible value of a field, 1 for shares.

    Raises:
        UserError: if the file cannot be read, is empty, damaged, not UTF-8 or of another length, if a validation lacks
            a number or has one out of range, or if time does not rise.
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
    limits = [math.inf, *[highest] * len(fields)]
    rows = [
        [_number(record, key, limit, line, file) for key, limit in zip(keys, limits, strict=True)]
        for line, record in enumerate(records, start=1)
    ]
    for line, (row, later) in enumerate(pairwise(rows), start=2):
        if later[0] <= row[0]:
            problem = "time runs backwards" if later[0] < row[0] else "a validation occurs twice"
            raise UserError(
                problem, file=file, key=f"line {line}, {time}", value=later[0], allowed=f"more than {row[0]:g}"
            )
    # Last, since a damaged line says more than a wrong number of lines.
    check_length(file, "validations", len(records), validations)
    return [(at, math.fsum(values) / len(values)) for at, *values in rows]


def curve_file(folder: str, name: str | None, *, optional: bool = False) -> Path | None:
    """Path of a published file; None if `name` is None or the folder does not exist, or an optional file does not.

    Raises:
        UserError: if the folder exists and a file that is not optional does not.
    """
    where = published_data() / folder
    # Without the folder nothing was downloaded; with it a missing file is a mistake.
    if name is None or not where.is_dir():
        return None
    if not (where / name).is_file():
        if optional and not (where / name).exists():
            return None
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


def read_points(source: PublishedPoints, quantity: str) -> list[tuple[float, float, float]]:
    """Points (x, y, value) of a surface in a published CSV file; none if its folder does not exist.

    Raises:
        UserError: if the file is missing, damaged or of another length, lacks a column or a number, or has a point
            twice.
    """
    import pandas as pd  # here, since commands that read no points need no pandas

    path = PurePath(source.file)
    if (file := curve_file(str(path.parent), path.name)) is None:
        return []
    # Not by pandas, which reads "None" as missing, and takes the first fields of longer lines as an index.
    with errors_of_reading(file, ValueError, csv.Error):  # also that of another encoding
        text = file.read_text(encoding="utf-8-sig")
        # A number that was cut is still a number.
        if not text.endswith("\n"):
            raise ValueError("its last line has no end")
        header, *lines = csv.reader(text.splitlines(), strict=True)
        if len(set(header)) < len(header):
            raise ValueError("a column occurs twice")
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise UserError(
                "this line has another number of fields than the header",
                file=file,
                key=f"line {number}",
                value=len(line),
                allowed=str(len(header)),
            )
    frame = pd.DataFrame(lines, columns=header, dtype=str)
    columns = [source.x, source.y, quantity]
    for column in (*columns, *source.where):
        if column not in frame:
            raise UserError(
                "this file has no such column", file=file, key="column", value=column, allowed=frame.columns
            )
    values = frame[columns].apply(pd.to_numeric, errors="coerce").astype(float)
    chosen = (frame[list(source.where)] == pd.Series(source.where, dtype=str)).all(axis=1)
    for name in (*columns, *source.where):
        missing = frame[name] == "" if name in source.where else chosen & ~np.isfinite(values[name])
        if len(wrong := frame.index[missing]):
            raise UserError(
                "this line lacks a number" if name in columns else "this line lacks a value",
                file=file,
                key=f"line {wrong[0] + 2}, {name}",
                value=frame.at[wrong[0], name],
                allowed="a finite number" if name in columns else "text",
            )
    points = values[chosen]
    if points.empty:
        found = frame[list(source.where)].drop_duplicates().to_numpy().tolist()
        raise UserError(
            "no line has these values", file=file, key="where", value=source.where, allowed=map(", ".join, found)
        )
    if len(twice := points.index[points.duplicated([source.x, source.y])]):
        raise UserError("this point occurs twice", file=file, key="line", value=int(twice[0]) + 2)
    check_length(file, "rows", len(frame), source.rows)
    return list(points.itertuples(index=False, name=None))


def check_published(experiments: Experiments, paper: str) -> None:
    """Read all published files of a paper's tables and figures once, so that a fault is reported before anything
    runs."""
    tables = [table for table in experiments.tables(paper).tables if isinstance(table, PublishedTable)]
    # Before anything runs: tables are made last, hours later.
    for table in tables:
        for row in table.rows:
            if file := curve_file(table.folder, row.file, optional=row.optional):
                for target in table.targets:
                    read_curve(file, table.time, target.fields, validations=row.validations, highest=target.highest)
    panels = [panel for figure in experiments.figures(paper).figures for panel in figure.panels]
    for shown in (panel.curves for panel in panels if panel.curves):
        for label, name in shown.files.items():
            if file := curve_file(shown.folder, name):
                length = shown.validations[label]
                read_curve(file, shown.time, shown.fields, validations=length, highest=shown.highest)
    for panel in panels:
        if panel.roofline and (file := sweep_file(panel.roofline)):
            read_sweep(file, panel.roofline.rows)
        if panel.published:
            read_points(panel.published, panel.quantity)


def _records(file: Path) -> list[Record]:
    records: list[Record] = []
    for number, line in enumerate(_text(file).removesuffix("\n").split("\n"), start=1):
        try:
            record = json.loads(line, object_pairs_hook=json_object)
        except (ValueError, RecursionError):  # ValueError also for integers of thousands of digits
            record = None
        if not isinstance(record, dict):
            raise UserError(
                "this line is not a JSON object; the file is truncated or damaged", file=file, key="line", value=number
            )
        records.append(record)
    return records


def _text(file: Path) -> str:
    """Content of a UTF-8 file, without its byte order mark."""
    with errors_of_reading(file):
        # As bytes: a wrong encoding is then an error with its line.
        content = file.read_bytes()
    if not content.strip():
        raise UserError("this published file is empty", file=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
    encoding = "UTF-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "another encoding"
    raise UserError(f"this file is in {encoding}", file=file, key="line", value=line, allowed="JSON Lines in UTF-8")


def _number(record: Record, key: str, highest: float, line: int, file: Path) -> float:
    """The number of a key, between 0 and `highest`."""
    found: object = record.get(key)
    where = f"line {line}, {key}"
    try:
        value = math.nan if isinstance(found, bool) or not isinstance(found, int | float) else float(found)
    except OverflowError:  # an integer of more than 308 digits
        value = math.inf
    if not math.isfinite(value):
        shown = str(found)
        text = f"{shown[:20]}... ({len(shown)} characters)" if len(shown) > 60 else found
        raise UserError("this validation lacks a number", file=file, key=where, value=text, allowed="a finite number")
    if not 0 <= value <= highest:
        problem = "this value is out of range"
        if highest == 1 < value <= 100:
            problem += "; is it in percent instead of a share?"
        raise UserError(problem, file=file, key=where, value=value, allowed=f"0 to {highest:g}")
    return value
