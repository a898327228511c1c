"""A made table as people see it: lines of slots, each a value with what decides it and the paper's value beside it."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from redraft.analysis.tables.cell_verdicts import BASELINE, MARKS, MISSING, NO_DATA, NOT_APPLICABLE
from redraft.config import Column, TableWithoutRuns
from redraft.config.tables import AnyTable

NEVER = "†"
"""Text of a target that was never reached."""
NOTHING = "–"
"""Text of what cannot be."""
ABSENT = (MISSING, NO_DATA)
"""Verdicts of cells that have no value and could have one."""


def number(value: float, decimals: int) -> str:
    """A number with this number of decimals and a true minus, `–` for NaN, † for infinity."""
    return digits(value, decimals).replace("-", "−")


def digits(value: float, decimals: int) -> str:
    """The same with the minus of a keyboard, for what computes on."""
    return NOTHING if math.isnan(value) else NEVER if math.isinf(value) else f"{value:.{decimals}f}"


@dataclass(frozen=True)
class Slot:
    """One cell below a header, and the cells shown in brackets after it (`bracketed`)."""

    cell: Mapping[Hashable, Any]
    column: Column
    bracketed: list["Slot"] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The cell's own verdict."""
        return str(self.cell["verdict"])

    @property
    def marked(self) -> "Slot | None":
        """The first of the cell and those in brackets whose verdict has a mark."""
        return next((slot for slot in (self, *self.bracketed) if slot.verdict in MARKS), None)

    @property
    def value(self) -> str:
        """The value alone; what was not run or has no data says so."""
        return self.verdict if self.verdict in ABSENT else number(self.cell["reproduced"], self.column.decimals)

    @property
    def has_interval(self) -> bool:
        """True if there is an interval that decides."""
        return not math.isnan(self.cell["low"]) and self.verdict not in (BASELINE, NOT_APPLICABLE)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, NaN where there is none or where the value is not its middle."""
        low, high, middle = self.cell["low"], self.cell["high"], self.cell["reproduced"]
        # A ratio's interval is symmetric around the logarithm, not around the value.
        symmetric = math.isclose(high - middle, middle - low, rel_tol=1e-6, abs_tol=1e-9 * max(1, abs(middle)))
        return (high - low) / 2 if self.has_interval and symmetric else math.nan

    @property
    def interval(self) -> str:
        """`[0.28, 0.34]`, empty where there is none."""
        ends = [number(self.cell[end], self.column.decimals) for end in ("low", "high")]
        return f"[{', '.join(ends)}]" if self.has_interval else ""

    @property
    def spread(self) -> str:
        """`± 0.03`, or the interval where the value is not its middle."""
        half = self.half_width
        return self.interval if math.isnan(half) else f"± {number(half, self.column.decimals)}"

    @property
    def fewer_seeds(self) -> str:
        """`n = 2, without seed 1`, where a value rests on fewer seeds than the preset has; else nothing."""
        missing = str(self.cell["missing_seeds"]).split()
        seeds = f"seed{'s' * (len(missing) > 1)} {', '.join(missing)}"
        return f"n = {self.cell['n_seeds']}, without {seeds}" if missing else ""

    @property
    def brackets(self) -> list[str]:
        """`3.4 ×` of each cell in brackets; † where one of the two compared never reached the target."""
        # A baseline's speedup over itself is always 1.
        shown = [slot for slot in self.bracketed if slot.verdict not in (*ABSENT, BASELINE)]
        return [NEVER if slot.verdict == NOT_APPLICABLE else f"{slot.value} ×" for slot in shown]

    @property
    def paper(self) -> str:
        """`7.6 (3.4 ×)`: the paper's values of the cell and of those in brackets, empty without any."""
        parts = [] if math.isnan(self.cell["reported"]) else [number(self.cell["reported"], self.column.decimals)]
        for slot in self.bracketed:
            if not math.isnan(slot.cell["reported"]) and slot.verdict != BASELINE:
                parts.append(f"({number(slot.cell['reported'], slot.column.decimals)} ×)")
        return " ".join(parts)

    @property
    def text(self) -> str:
        """`7.6 ± 0.3 (n = 2, without seed 1) (3.4 ×)`."""
        notes = [f"({text})" for text in (self.fewer_seeds, *self.brackets) if text]
        return " ".join(filter(None, [self.value, self.spread, *notes]))


@dataclass(frozen=True)
class SheetRow:
    """A line of the table: the heading of the group that begins there, if one does, and a slot a header."""

    group: str
    heading: str
    label: str
    slots: list[Slot]

    @property
    def cells(self) -> list[Slot]:
        """A slot a column, those in brackets too."""
        return [each for slot in self.slots for each in (slot, *slot.bracketed)]

    @cached_property
    def was_run(self) -> bool:
        """False if values are missing and none is there."""
        verdicts = {slot.verdict for slot in self.cells}
        # “Not applicable” says nothing of runs: all rows have it at a benchmark that the preset lacks.
        return not (verdicts & set(ABSENT) and verdicts <= {*ABSENT, NOT_APPLICABLE})

    @property
    def series(self) -> str:
        """The label without the step that it names, where lines are policies."""
        return self.label.removesuffix(f" @ {self.step}")

    @property
    def step(self) -> str:
        """Steps that the line's policy has done, empty for the last one."""
        return str(self.slots[0].cell.get("step", ""))


@dataclass(frozen=True)
class Sheet:
    """A made table: what its declaration says of it, its columns at one preset, and its cells.

    `stand_in` says that the runs are not of the paper's models and data, if they are not.
    """

    table: AnyTable
    columns: list[Column]
    cells: pd.DataFrame
    stand_in: str = ""

    @property
    def title(self) -> str:
        """Title, prefixed with the stand-in notice if the runs do not use the paper's models and data."""
        return f"{self.stand_in}. {self.table.title}" if self.stand_in else self.table.title

    @property
    def headers(self) -> list[str]:
        """Titles of the columns that are not shown in brackets."""
        return [column.title for column in self.columns if not column.in_brackets]

    @property
    def judged_by_others(self) -> list[str]:
        """A sentence for each column whose verdict is another one's: which, and why."""
        titles = {column.name: column.title for column in self.columns}
        return [
            f"The verdict at “{column.title}” is that of “{titles[column.judged_by]}”, since {column.judged_because}."
            for column in self.columns
            if column.judged_by in titles
        ]

    @cached_property
    def lines(self) -> list[SheetRow]:
        """The lines in order; the heading of a group is at its first line."""
        lines, previous_group = [], ""
        # `groupby` drops lines whose key is NaN, which an empty group is in pandas' CSV.
        for (group, label), part in self.cells.fillna({"group": ""}).groupby(["group", "row"], sort=False):
            # Mappings, since each cell is read many times and a look-up in a series takes a microsecond and more.
            cells = {cell["column"]: cell for cell in part.to_dict("records")}
            slots: list[Slot] = []
            for column in self.columns:
                slot = Slot(cells[column.name], column)
                if column.in_brackets:
                    slots[-1].bracketed.append(slot)
                else:
                    slots.append(slot)
            heading = str(group) if group != previous_group else ""
            lines.append(SheetRow(str(group), heading, str(label), slots))
            previous_group = group
        return lines

    @cached_property
    def papers(self) -> list[bool]:
        """For each header, whether a column of the paper's values follows it."""
        return [any(line.slots[i].paper for line in self.lines) for i in range(len(self.headers))]

    def beside(self, own: Iterable[str], printed: Iterable[str]) -> list[str]:
        """Texts of a line, each followed by the paper's value where that has a column."""
        texts = zip(own, printed, self.papers, strict=True)
        return [text for mine, paper, shown in texts for text in ((mine, paper) if shown else (mine,))]

    @property
    def run(self) -> int:
        """Number of lines of which something was run."""
        return sum(line.was_run for line in self.lines)

    @property
    def done(self) -> str:
        """What lines that are there have in common."""
        return "have data" if isinstance(self.table, TableWithoutRuns) else "run"

    @property
    def extent(self) -> str:
        """How much of the table is there, in words."""
        total = len(self.lines)
        many = f"all {total} rows" if self.run == total else f"{self.run or 'none'} of {total} rows"
        return f"{many} {self.done}"

    @property
    def not_run(self) -> list[str]:
        """Names of the lines of which nothing was run; a group of which that holds for all is named once."""
        absent = [line for line in self.lines if not line.was_run]
        present = {line.group for line in self.lines if line.was_run}
        names = [
            line.group
            if line.group and line.group not in present
            else f"{line.series} ({line.group})"
            if line.group
            else line.series
            for line in absent
        ]
        return list(dict.fromkeys(names))
