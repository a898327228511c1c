"""Claims put to the paper's own tables: the same tests, on the reported values.

This says nothing of any run. A reported table is one value a cell, so there is no interval; a claim is `supported`
if its test holds for the values as printed (a value on the threshold does if `Comparison.tie` says so) and the numbers
that it quotes are those of the tables.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from redraft.analysis.claims.tests import Comparison, comparison_set
from redraft.analysis.data.reported_tables import ReportedTable, match_of, read_reported
from redraft.analysis.data.statistics import NO_BLOCKS, PAIRINGS, Blocks
from redraft.analysis.data.words import number, words
from redraft.config import Cell, Claim, Experiments, Printed, Reported
from redraft.config.claims import cells_of
from redraft.config.quantities import ACCURACY
from redraft.config.reported import ReportedQuantity

SUPPORTED, NOT_SUPPORTED, NOT_IN_TABLES = "supported", "not supported", "not in the tables"

ROUNDING = 1e-9
"""Relative tolerance for floating-point numbers."""


@dataclass(frozen=True)
class ReportedTables:
    """All reported tables of a paper.

    Attributes:
        folder: `experiments/<paper>`.
        spec: the meaning of their columns.
        experiments: where cells are looked up.
    """

    folder: Path
    spec: Reported
    experiments: Experiments
    _rows: dict[str, list[dict[str, float]]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, experiments: Experiments, paper: str) -> "ReportedTables | None":
        """A paper's reported tables; None if it has none."""
        spec = experiments.reported(paper)
        return cls(experiments.folder_of(paper), spec, experiments) if spec else None

    @cached_property
    def tables(self) -> dict[int, ReportedTable]:
        """Every table by its number."""
        numbers = sorted(int(file.stem.removeprefix("table")) for file in (self.folder / "reported").glob("table*.csv"))
        return {number: read_reported(self.folder, number, self.spec) for number in numbers}

    def row(self, cell: str, column: str) -> Mapping[str, float]:
        """The last row of a cell in the first table that has that column of it; empty if none has."""
        return next((row for row in self.rows(cell) if column in row), {})

    def rows(self, cell: str) -> list[dict[str, float]]:
        """The last row of a cell in every table, empty where a table has none; read once."""
        if cell not in self._rows:
            self._rows[cell] = [table.row(self._cell(cell)) for table in self.tables.values()]
        return self._rows[cell]

    def steps(self, cell: str, column: str) -> list[float]:
        """A column over the steps of a cell, from the first table with more than one."""
        match = match_of(self._cell(cell), self.spec)
        if match is None or not self.spec.positions:
            return []
        for table in self.tables.values():
            named = [(dict(zip(self.spec.row, key, strict=True)), row) for key, row in table.rows.items()]
            found = [
                (int(name[self.spec.positions[0]]), row[column])
                for name, row in named
                if name[self.spec.positions[0]] and match.items() <= name.items() and column in row
            ]
            if len(found) > 1:
                return [value for _, value in sorted(found, key=lambda point: point[0])]
        return []

    def _cell(self, cell: str) -> Cell:
        return self.experiments.cell(f"{self.folder.name}/{cell}")


@dataclass(frozen=True)
class ReportedValues:
    """The reported values as a source of `redraft.analysis.claims.tests`, with 0 for the seed.

    Attributes:
        tables: which hold them.
        as_speedup: whether seconds are one over the printed speedup; so where they are not printed for every cell.
            That is a time in units of the baseline's, good for comparing only.
    """

    tables: ReportedTables
    as_speedup: bool = False

    @property
    def blocks(self) -> Blocks:
        """None: a table is one seed."""
        return NO_BLOCKS

    def values(self, quantity: str, cell: str) -> dict[int, float]:
        """The value by seed, or nothing."""
        speedup = self.tables.spec.speedup
        if speedup and quantity == speedup.quantity and self.as_speedup:
            row = self.tables.row(cell, speedup.column)
            return {0: 1 / row[speedup.column]} if row else {}
        of = columns_of(quantity, self.tables.spec)
        row = self.tables.row(cell, of.columns[0]) if of else {}
        if not of or not set(of.columns) <= set(row):
            return {}
        return {0: _total(of, [row[column] for column in (*of.columns, *of.optional) if column in row])}

    def trajectory(self, quantity: str, cell: str) -> dict[int, list[float]]:
        """The value at each reported step."""
        of = columns_of(quantity, self.tables.spec)
        series = [self.tables.steps(cell, column) for column in (*of.columns, *of.optional)] if of else []
        if not of or not all(series):
            return {}
        return {0: [_total(of, values) for values in zip(*series, strict=True)]}


def columns_of(quantity: str, spec: Reported) -> ReportedQuantity | None:
    """The reported columns that give a quantity, None if none do; an accuracy is by default the column of its name."""
    if quantity in spec.quantities:
        return spec.quantities[quantity]
    if quantity.startswith(ACCURACY):
        return ReportedQuantity(columns=[quantity.removeprefix(ACCURACY)])
    return None


def _total(of: ReportedQuantity, values: Sequence[float]) -> float:
    return of.scale * sum(values) / (len(values) if of.mean else 1)


def check(claim: Claim, tables: ReportedTables) -> dict[str, str]:
    """`reported_verdict` and `reported_evidence` of a claim."""
    source = _source(tables, cells_of(claim.test))
    comparisons = comparison_set(claim.test, source)
    answered = comparisons.answerable
    part_holds = [_holds(part) for part in comparisons.parts] if answered else []
    evidence = [_without_seconds(comparisons.summary + _show(comparisons.parts), source)] if answered else []
    numbers = [_printed(number, comparisons.parts if answered else [], tables) for number in claim.printed]
    found = [number for number in numbers if number]
    differing = [text for agrees, text in found if not agrees]  # the reason of a verdict comes first
    if differing and answered and sum(part_holds) >= comparisons.needed:
        evidence = [f"what is required holds: {evidence[0]}"]
    evidence = differing + evidence + [text for agrees, text in found if agrees]
    if not answered and not found:
        return {"reported_verdict": NOT_IN_TABLES, "reported_evidence": ""}
    right = (not answered or sum(part_holds) >= comparisons.needed) and all(agrees for agrees, _ in found)
    return {"reported_verdict": SUPPORTED if right else NOT_SUPPORTED, "reported_evidence": "; ".join(evidence)}


def _without_seconds(text: str, source: ReportedValues) -> str:
    """The text with the unit of times that are computed from printed speedups."""
    speedup = source.tables.spec.speedup
    if not speedup or not source.as_speedup:
        return text
    named = words(speedup.quantity)
    return text.replace(named.text, f"{named.name} (the baseline's is 1)")


def _source(tables: ReportedTables, cells: list[str]) -> ReportedValues:
    """Seconds where they are printed for every cell that has any row, else speedups."""
    speedup = tables.spec.speedup
    if not speedup:
        return ReportedValues(tables)
    seconds = tables.spec.quantities[speedup.quantity].columns[0]
    # Never a mixture: seconds of one cell cannot be compared with another's multiples of a baseline.
    reported = [cell for cell in cells if tables.row(cell, speedup.column)]
    return ReportedValues(tables, as_speedup=not all(tables.row(cell, seconds) for cell in reported))


def _holds(part: Comparison) -> bool:
    beyond = part.values[0] - part.threshold if part.expected == "above" else part.threshold - part.values[0]
    # Printed decimals are no binary fractions: 16.1 - 15.1 is above 1.
    tolerance = ROUNDING * max(abs(part.threshold), 1.0)
    return beyond > tolerance or (part.tie and beyond >= -tolerance)


def _show(parts: list[Comparison]) -> str:
    """Each value with its limits; which do not hold."""
    shown: dict[str, list[str]] = {}
    failed: dict[str, bool] = {}
    for part in parts:
        text = f"{part.label}: {number(part.values[0])}"
        shown.setdefault(text, []).append(part.limit)
        failed[text] = failed.get(text, False) or not _holds(part)
    return "; ".join(
        f"{text}, required: {' and '.join(limits)}" + (" (does not hold)" if failed[text] else "")
        for text, limits in shown.items()
    )


def _printed(printed: Printed, parts: list[Comparison], tables: ReportedTables) -> tuple[bool, str] | None:
    """Agreement of the tables with a printed number, and their value; nothing if they have none."""
    values = [part.values[0] for part in parts] if printed.cell is None else _own_values(printed, tables)
    if not values:
        return None
    low, high, tolerance = printed.limits
    tolerance += ROUNDING * max(abs(low), abs(high), 1.0)
    agrees = low - tolerance <= min(values) and max(values) <= high + tolerance
    # A range that is only enclosed may be wider than what the tables show.
    if printed.ends:
        agrees = agrees and min(values) <= low + tolerance and max(values) >= high - tolerance
    unit = " % fewer" if printed.fewer else {1e6: " million", 0.01: " %"}.get(printed.scale, "")
    in_unit = [100 * (1 - value) if printed.fewer else value / printed.scale for value in (min(values), max(values))]
    # As many digits as the paper prints, or a difference in its last one would not be seen.
    digits = max(4, len(re.sub(r"\D", "", printed.number.partition("–")[2] or printed.number)))
    # −5 % fewer is 5 % more.
    more = {value: " % more" if printed.fewer and value < 0 else unit for value in in_unit}
    given = " to ".join(f"{abs(v) if printed.fewer else v:.{digits}g}{more[v]}" for v in sorted(set(in_unit)))
    text = f"the paper prints {printed.number}{unit}{_what(printed)}, its tables give {given}"
    if not agrees:
        return False, f"{text}, which differs"
    return True, f"{text}, which rounds to {printed.number}{unit}" if _rounds(printed, values) else text


def _rounds(printed: Printed, values: Sequence[float]) -> bool:
    """Whether values that a printed range does not enclose have both its ends when they are rounded as printed."""
    # Half a unit of the last digit, also where a wider tolerance is declared.
    low, high, half = printed.model_copy(update={"tolerance": None}).limits
    half += ROUNDING * max(abs(low), abs(high), 1.0)
    enclosed = low <= min(values) and max(values) <= high
    return low < high and not enclosed and max(abs(min(values) - low), abs(max(values) - high)) <= half


def _what(printed: Printed) -> str:
    """What a printed number is of, if it names that."""
    if not printed.cell or not printed.quantity:
        return ""
    name, fall = words(printed.quantity).text, " with the opposite sign" if printed.scale < 0 else ""
    if not printed.baseline:
        return f" for {name}{fall}, {printed.cell}"
    if printed.relative == "difference":
        return f" for {words(printed.quantity).of_differences}, {printed.cell} minus {printed.baseline}"
    cells = (printed.baseline, printed.cell) if printed.relative == "speedup" else (printed.cell, printed.baseline)
    return f" for the ratio of {words(printed.quantity).name}, {' / '.join(cells)}"


def _own_values(printed: Printed, tables: ReportedTables) -> list[float]:
    """The value that a printed number names itself, if the tables have it."""
    if not printed.cell or not printed.quantity:
        return []
    cells = [printed.cell, printed.baseline] if printed.baseline else [printed.cell]
    source = _source(tables, cells)
    speedup = tables.spec.speedup
    # The inverse of a speedup is no number of seconds.
    if speedup and printed.quantity == speedup.quantity and not printed.baseline and source.as_speedup:
        return []
    found = [source.values(printed.quantity, cell) for cell in cells]
    if not all(found):
        return []
    values = [each[0] for each in found]
    return [PAIRINGS[printed.relative](*values)] if printed.baseline else values
