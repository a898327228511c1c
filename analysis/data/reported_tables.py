"""A paper's reported values, transcribed: `experiments/<paper>/reported/table<NN>.csv`, one value a line.

`reported.yaml` beside them declares the columns and how a cell's row is found (`redraft.config.Reported`). A value that
the paper marks as never reached is `inf`.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from redraft.config import Cell, Clock, Experiments, Reported, Table, TargetTable
from redraft.config.quantities import ACCURACY, EACH, similar
from redraft.errors import UserError
from redraft.files import check_length, errors_of_reading

Key = tuple[str, ...]
"""Values of the columns that name a row, `Reported.row`."""


@dataclass(frozen=True, eq=False)
class ReportedTable:
    """One reported table.

    Attributes:
        lines: one a value, with the keys `spec.header`; `value` is a float, everything else text.
        spec: the meaning of the columns.
    """

    lines: Sequence[Mapping[str, Any]]
    spec: Reported

    @cached_property
    def rows(self) -> dict[Key, dict[str, float]]:
        """Values by column of every row, in the order of the file."""
        found: dict[Key, dict[str, float]] = {}
        names = self.spec.row
        for line in self.lines:
            found.setdefault(tuple(line[name] for name in names), {})[line["column"]] = line["value"]
        return found

    def row(
        self, cell: Cell, override: Mapping[str, str] | None = None, at: Fraction | None = None, clock: Clock = "steps"
    ) -> dict[str, float]:
        """The reported values of a cell, by column; empty if the table has no such row.

        Args:
            cell: whose row it is.
            override: key columns that select the row where they differ from the cell's own.
            at: share of the run that is done, 0 being the initial policy. By default the last row of the cell.
            clock: what `at` is a share of: a run's steps are also its most training steps.
        """
        key = self.key(cell, override, at, clock)
        return {} if key is None else self.rows[key]

    def key(
        self, cell: Cell, override: Mapping[str, str] | None = None, at: Fraction | None = None, clock: Clock = "steps"
    ) -> Key | None:
        """Key of the row that `row` returns; None without one. A row at another share of the run never replaces it."""
        return self.matching(match_of(cell, self.spec), override or {}, at, clock)

    def matching(
        self, match: Mapping[str, str] | None, override: Mapping[str, str], at: Fraction | None, clock: Clock
    ) -> Key | None:
        """Key of the row of a cell with these key columns (`match_of`); arguments and result are those of `key`."""
        if match is None:
            return None
        return self.last({**match, **(self.spec.base if at == 0 else {}), **override}, at, clock)

    def last(self, selected: Mapping[str, str], at: Fraction | None = None, clock: Clock = "steps") -> Key | None:
        """The last row with these values, or the one at this share of a run; None if there is none."""
        if not self.rows:  # such as `no_reported`, which has no key columns either
            return None
        positions = {self.spec.row.index(name): value for name, value in selected.items()}
        keys = [key for key in self.rows if all(key[i] == value for i, value in positions.items())]
        # At 0 `base` already selects the initial policy's row, and without `at` the last row is wanted.
        if at:
            declared = next((declared for declared in self.spec.clocks if _fits(declared.when, selected)), None)
            if declared is None:
                return None
            column = (declared.training_steps if clock == "training_steps" else "") or declared.column
            value = str(at * declared.total)
            keys = [key for key in keys if key[self.spec.row.index(column)] == value]
        if not self.spec.positions:
            return keys[0] if keys else None
        first = self.spec.row.index(self.spec.positions[0])
        # By number: columns are texts, in which 90 is after 180. A row without a position is before all others.
        return max(keys, key=lambda key: int(key[first] or 0), default=None)

    def select(self, selected: Mapping[str, str]) -> dict[str, float]:
        """The values of the last row with these values, by column; empty if there is none."""
        key = self.last(selected)
        return {} if key is None else self.rows[key]

    def steps_done(self, key: Key) -> float | None:
        """Steps that the run of a row has done, by its clock; None if the table does not say."""
        named = dict(zip(self.spec.row, key, strict=True))
        clocks = [clock.column for clock in self.spec.clocks if _fits(clock.when, named)]
        return next((float(named[name]) for name in [*clocks, *self.spec.positions] if named[name]), None)

    def share_done(self, key: Key) -> float:
        """Steps that the run of a row has done over those of a complete run; 1 if the table names no steps."""
        named = dict(zip(self.spec.row, key, strict=True))
        clock = next((clock for clock in self.spec.clocks if _fits(clock.when, named)), None)
        return float(named[clock.column]) / clock.total if clock and named[clock.column] else 1.0


def _fits(when: Mapping[str, list[str]], selected: Mapping[str, str]) -> bool:
    return all(selected.get(name) in values for name, values in when.items())


def match_of(cell: Cell, spec: Reported) -> dict[str, str] | None:
    """Key columns of a cell's reported rows; None if the paper reports nothing of such cells."""
    content = cell.model_dump(mode="json") | {
        # A cell that names none has its algorithm's schedule, by which a paper may name its rows.
        "schedule": (cell.schedule or cell.algorithm.usual_schedule).model_dump(mode="json")
    }
    found = {name: _at(content, column.of) for name, column in spec.key.items()}
    for name, column in spec.key.items():
        if column.names:
            if found[name] not in column.names:
                return None
            found[name] = column.names[found[name]]
    return found


def _at(content: Any, path: str) -> str:
    """The value at a dotted path, empty if there is none."""
    for part in path.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return "" if content is None else str(content)


def read_reported(folder: Path, number: int, spec: Reported) -> ReportedTable:
    """A reported table of the paper whose files are in `folder`.

    Raises:
        UserError: if the file cannot be read, is cut off or of another length than declared, has another header, or a
            value is not a number or occurs twice, a position is no whole number, or a key has a blank at its end.
    """
    file = folder / "reported" / f"table{number:02d}.csv"
    if not file.exists():
        raise UserError("this reported table is missing", file=file)
    with errors_of_reading(file, UnicodeDecodeError, csv.Error):
        text = file.read_text(encoding="utf-8")
        header, *rows = csv.reader(text.splitlines() or [""], strict=True)
    if not text:
        raise UserError("this reported table is damaged (it is empty)", file=file)
    if header != spec.header:
        raise UserError("wrong header", file=file, value=",".join(header), allowed=",".join(spec.header))
    lines: list[dict[str, Any]] = []
    for at, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(
                f"this reported table is damaged (line {at} has {len(row)} fields)",
                file=file,
                key="fields",
                allowed=str(len(header)),
            )
        line = dict(zip(header, row, strict=True))
        for name in spec.row:
            _check_key(name, line[name], name in spec.positions, at, file)
        lines.append(line | {"value": _number(line["value"], at, file)})
    # Every row of a table is written with the same last column, so that a file cut at a line's end shows as well.
    last = {tuple(line[name] for name in spec.row): line["column"] for line in lines}
    if not text.endswith("\n") or len(set(last.values())) > 1:
        raise UserError("this reported table is cut off", file=file, key="line", value=len(lines) + 1)
    _check_values(lines, number, spec, file)
    return ReportedTable(lines, spec)


def _check_values(lines: Sequence[Mapping[str, Any]], number: int, spec: Reported, file: Path) -> None:
    """Raise a UserError if a value occurs twice, or there are not as many as declared."""
    named = Counter(tuple(line[name] for name in [*spec.row, "column"]) for line in lines)
    if twice := [key for key, count in named.items() if count > 1]:
        raise UserError("this value occurs twice", file=file, key="row, column", value=", ".join(twice[0]))
    if spec.values and number not in spec.values:
        raise UserError(
            "reported.yaml declares the numbers of values of other tables only",
            file=file.parents[1] / "reported.yaml",
            key="values",
            value=sorted(spec.values),
            allowed=f"also {number}: {len(lines)}",
        )
    check_length(file, "values", len(lines), spec.values.get(number))


def _check_key(name: str, text: str, is_position: bool, line: int, file: Path) -> None:
    if text != text.strip():
        raise UserError(f"a blank begins or ends a text of line {line}", file=file, key=name, value=text)
    # A row without a position is before all others.
    if is_position and text and not (text.isascii() and text.isdigit()):
        raise UserError(
            f"the position of line {line} is no whole number",
            file=file,
            key=name,
            value=text,
            allowed="digits, or nothing",
        )


NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf")
"""A reported value. Infinity is a target that was never reached; NaN would be read as not reported."""


def _number(text: str, line: int, file: Path) -> float:
    # Not `float` alone, which takes 7_7.5 for 77.5.
    if NUMBER.fullmatch(text):
        return float(text)
    raise UserError(f"the value in line {line} is not a number", file=file, key="value", value=text)


def check_reported(experiments: Experiments, paper: str) -> None:
    """Check that the reported columns and rows that a paper's tables and figures name are in its transcription.

    Raises:
        UserError: for the first that is not, or a file that is missing, cut off or has another header.
    """
    spec, folder = experiments.reported(paper), experiments.folder_of(paper)
    known = _vocabulary(spec, folder) if spec else {}
    file = experiments.path(paper, experiments.declaration(paper, "tables") or "tables.yaml")
    for i, table in enumerate(experiments.tables(paper).tables):
        if (number := table.reported_number) is None or spec is None:
            continue
        named = list(_named_columns(table))
        lines = read_reported(folder, number, spec).lines
        columns = {line["column"] for line in lines}
        _check_percent(table, number, lines, folder, experiments.benchmark_names())
        for key, column in named:
            if column not in columns:
                raise _not_reported(
                    f"table {number} of the paper has no such column", file, f"tables.{i}.{key}", column, columns
                )
        for j, row in enumerate(getattr(table, "rows", [])):
            for name in row.reported:
                if name not in spec.key:
                    key = f"tables.{i}.rows.{j}.reported.{name}"
                    raise _not_reported("the paper's tables have no such key column", file, key, name, spec.key)
                if row.reported[name] not in known[name]:
                    key = f"tables.{i}.rows.{j}.reported.{name}"
                    raise _not_reported(NO_SUCH_VALUE, file, key, row.reported[name], known[name])
    file = experiments.path(paper, experiments.declaration(paper, "figures") or "figures.yaml")
    for i, figure in enumerate(experiments.figures(paper).figures):
        for j, panel in enumerate(figure.panels):
            if panel.reported_in and spec:
                lines = read_reported(folder, panel.reported_in.table, spec).lines
                columns, column = {line["column"] for line in lines}, panel.reported_in.column
                if column not in columns:
                    key = f"figures.{i}.panels.{j}.reported_in.column"
                    raise _not_reported("this table of the paper has no such column", file, key, column, columns)


NO_SUCH_VALUE = "no row of the paper's tables has this value"


def _vocabulary(spec: Reported, folder: Path) -> dict[str, set[str]]:
    """Values of each key column in all reported tables of a paper.

    Raises:
        UserError: for the first value that `reported.yaml` declares and no table has: its rows would count as not
            reported.
    """
    names = (re.fullmatch(r"table([0-9]{2,})\.csv", file.name) for file in (folder / "reported").glob("table*"))
    numbers = sorted(int(name[1]) for name in names if name)
    lines = [line for number in numbers for line in read_reported(folder, number, spec).lines]
    known = {name: {line[name] for line in lines} for name in spec.key}
    declared = [
        (f"key.{name}.names.{of}", name, value) for name, c in spec.key.items() for of, value in c.names.items()
    ]
    declared += [(f"base.{name}", name, value) for name, value in spec.base.items()]
    for i, clock in enumerate(spec.clocks):
        declared += [(f"clocks.{i}.when.{name}", name, each) for name, values in clock.when.items() for each in values]
    if spec.times:
        declared += [(f"times.baseline.{name}", name, value) for name, value in spec.times.baseline.items()]
    for key, name, value in declared if lines else ():
        if value not in known[name]:
            raise _not_reported(NO_SUCH_VALUE, folder / "reported.yaml", key, value, known[name])
    return known


def _check_percent(
    table: Table, number: int, lines: Sequence[Mapping[str, Any]], folder: Path, benchmarks: Sequence[str]
) -> None:
    """Raise a UserError for a reported accuracy that is no percentage."""
    of_accuracy = {
        name
        for column in getattr(table, "columns", [])
        if getattr(column, "quantity", "").startswith(ACCURACY) and not column.printed_relative
        for name in (benchmarks if column.quantity == EACH else column.reported)
    }
    for line in lines:
        if line["column"] in of_accuracy and not 0 <= line["value"] <= 100:
            file = folder / "reported" / f"table{number:02d}.csv"
            raise UserError(
                "this is no accuracy", file=file, key=line["column"], value=line["value"], allowed="0 to 100"
            )


def _not_reported(message: str, file: Path, key: str, value: str, known: Iterable[str]) -> UserError:
    return UserError(message, file=file, key=key, value=value, allowed=similar(value, known))


def _named_columns(table: Table) -> Iterator[tuple[str, str]]:
    """Keys and values of the reported columns that a table names."""
    for part in ("columns", "targets"):
        for i, each in enumerate(getattr(table, part, [])):
            yield from ((f"{part}.{i}.reported.{k}", name) for k, name in enumerate(each.reported))
    for preset, targets in (table.at if isinstance(table, TargetTable) else {}).items():
        for i, target in enumerate(targets):
            yield from ((f"at.{preset}.{i}.reported.{k}", name) for k, name in enumerate(target.reported))


NOTHING = Reported.model_validate({"key": {"model": {"of": "model"}}})
"""Vocabulary of a paper of which nothing is transcribed."""


def no_reported() -> ReportedTable:
    """A table that the paper does not have."""
    return ReportedTable([], NOTHING)


def mean_of(row: Mapping[str, float], columns: Iterable[str]) -> float:
    """The mean of some columns of a row, NaN unless it has all of them."""
    # A mean over fewer columns than were named would be compared with ours over all of them.
    values = [row[name] for name in columns if name in row]
    return sum(values) / len(values) if values and len(values) == len(list(columns)) else float("nan")


def speedup_of(row: Mapping[str, float], baseline: Mapping[str, float], columns: Sequence[str]) -> float:
    """Speedup of a row over its baseline: the printed one (`<column>_speedup`), else the ratio of the printed times.

    Printed times are rounded, so their ratio may differ from the speedup that the paper prints. NaN if a time was never
    reached or is not reported.
    """
    printed = mean_of(row, [f"{name}_speedup" for name in columns])
    after, before = mean_of(row, columns), mean_of(baseline, columns)
    if math.isnan(printed) and after and math.isfinite(after):
        printed = before / after
    return printed if math.isfinite(printed) else math.nan
