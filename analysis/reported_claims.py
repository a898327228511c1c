"""Whether a paper's own tables support what it says: the claims' tests on the reported values.

This says nothing of any run. A reported table is one value a cell, so there is no interval; a claim is `supported`
if its test holds for the values as printed (on the threshold is not beyond it) and the numbers that it quotes are
those of the tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.claim_tests import Part, cells_of, question
from analysis.quantities import ACCURACY
from analysis.reported import read_reported, reported_row
from analysis.statistics import PAIRINGS
from redraft.config import Claim, Experiments, Printed

SUPPORTED, NOT_SUPPORTED, NOT_IN_TABLES = "supported", "not supported", "not in the tables"

ROLES = {
    "all": ["avg"],
    "in-distribution": ["amc23", "aime24", "math500", "minerva", "olympiad"],
    "out-of-distribution": ["mmlu_stem", "ifeval"],
}
"""Roles of benchmarks to the columns whose mean is theirs."""

STAGE = "seconds:"
"""Prefix of the mean seconds a step of a stage."""

SUMS: dict[str, tuple[list[str], float]] = {
    "tokens_decoded": (["tokens_m"], 1e6),
    "hours": (["end_to_end_h"], 1.0),
    "rollout_seconds": (["rollout_s"], 1.0),
    "generation_seconds": (["rollout_s", "verification_s", "assembly_s"], 1.0),
    "step_seconds": (["total_s"], 1.0),
}
"""Quantities to the columns that add up to them and the columns' unit; the first column must be there. Seconds are a
step's, which compares runs of the same number of steps."""

ROUNDING = 1e-9
"""What floating-point numbers add to a tolerance."""


@dataclass(frozen=True)
class ReportedTables:
    """All reported tables of a paper.

    Attributes:
        folder: `experiments/<paper>`.
        experiments: where cells are looked up.
    """

    folder: Path
    experiments: Experiments
    _rows: dict[str, list[dict[str, float]]] = field(default_factory=dict, repr=False)

    @cached_property
    def tables(self) -> dict[int, pd.DataFrame]:
        """Every table by its number."""
        numbers = sorted(int(file.stem.removeprefix("table")) for file in (self.folder / "reported").glob("table*.csv"))
        return {number: read_reported(self.folder, number) for number in numbers}

    def row(self, cell: str, column: str) -> Mapping[str, float]:
        """The last row of a cell in the first table that has that column of it; empty if none has."""
        return next((row for row in self.rows(cell) if column in row), {})

    def rows(self, cell: str) -> list[dict[str, float]]:
        """The last row of a cell in every table, empty where a table has none; read once."""
        if cell not in self._rows:
            key = self.experiments.cell(f"{self.folder.name}/{cell}")
            self._rows[cell] = [reported_row(frame, key) for frame in self.tables.values()]
        return self._rows[cell]

    def steps(self, cell: str, column: str) -> list[float]:
        """A column over the steps of a cell, from the first table with more than one."""
        key = self.experiments.cell(f"{self.folder.name}/{cell}")
        for frame in self.tables.values():
            steps = sorted({int(step) for step in frame["step"] if step})
            rows = [reported_row(frame[frame["step"] == str(step)], key) for step in steps]
            values = [row[column] for row in rows if column in row]
            if len(values) > 1:
                return values
        return []


@dataclass(frozen=True)
class ReportedValues:
    """The reported values as a source of `analysis.claim_tests`, with 0 for the seed.

    Attributes:
        tables: where they stand.
        as_speedup: whether rollout time is one over the printed speedup; so where seconds are not printed for every
            cell. That is a time in units of the baseline's, good for comparing only.
    """

    tables: ReportedTables
    as_speedup: bool = False

    def values(self, quantity: str, cell: str) -> dict[int, float]:
        """The value by seed, or nothing."""
        if quantity == "rollout_seconds" and self.as_speedup:
            row = self.tables.row(cell, "speedup")
            return {0: 1 / row["speedup"]} if row else {}
        columns, scale = columns_of(quantity)
        row = self.tables.row(cell, columns[0]) if columns else {}
        needed = columns[:1] if quantity in SUMS else columns
        if not row or not set(needed) <= set(row):
            return {}
        return {0: scale * sum(row[column] for column in columns if column in row)}

    def trajectory(self, quantity: str, cell: str) -> dict[int, list[float]]:
        """The value at each reported step."""
        columns, scale = columns_of(quantity)
        series = [self.tables.steps(cell, column) for column in columns]
        return {0: [scale * sum(values) for values in zip(*series, strict=True)]} if series and all(series) else {}


def columns_of(quantity: str) -> tuple[list[str], float]:
    """The reported columns whose sum times the factor is a quantity; no columns if none has been reported."""
    if quantity.startswith(ACCURACY):
        columns = ROLES.get(name := quantity.removeprefix(ACCURACY), [name])
        return columns, 1 / len(columns)
    if quantity.startswith(STAGE):
        return [f"{quantity.removeprefix(STAGE)}_s"], 1.0
    return SUMS.get(quantity, ([], 1.0))


def check(claim: Claim, tables: ReportedTables) -> dict[str, str]:
    """`reported_verdict` and `reported_evidence` of a claim."""
    source = _source(tables, cells_of(claim.test))
    asked = question(claim.test, source)
    answered = asked.answerable
    held = [_holds(part) for part in asked.parts] if answered else []
    evidence = [asked.summary + _show(asked.parts)] if answered else []
    numbers = [_printed(number, asked.parts if answered else [], tables) for number in claim.printed]
    found = [number for number in numbers if number]
    evidence += [text for _, text in found]
    if not answered and not found:
        return {"reported_verdict": NOT_IN_TABLES, "reported_evidence": ""}
    right = (not answered or sum(held) >= asked.needed) and all(agrees for agrees, _ in found)
    return {"reported_verdict": SUPPORTED if right else NOT_SUPPORTED, "reported_evidence": "; ".join(evidence)}


def _source(tables: ReportedTables, cells: list[str]) -> ReportedValues:
    """Seconds where they are printed for every cell that has any row, else speedups."""
    reported = [cell for cell in cells if tables.row(cell, "speedup")]
    return ReportedValues(tables, as_speedup=not all(tables.row(cell, "rollout_s") for cell in reported))


def _value(part: Part) -> float:
    return part.values[0]


def _holds(part: Part) -> bool:
    return _value(part) > part.threshold if part.expected == "above" else _value(part) < part.threshold


def _show(parts: list[Part]) -> str:
    """Each value with what is asserted of it; which do not hold."""
    shown: dict[str, list[str]] = {}
    failed: dict[str, bool] = {}
    for part in parts:
        text = f"{part.label}: {_value(part):.4g}"
        shown.setdefault(text, []).append(f"{part.expected} {part.threshold:g}")
        failed[text] = failed.get(text, False) or not _holds(part)
    return "; ".join(
        f"{text}, asserted {' and '.join(asserted)}" + (" (does not hold)" if failed[text] else "")
        for text, asserted in shown.items()
    )


def _printed(printed: Printed, parts: list[Part], tables: ReportedTables) -> tuple[bool, str] | None:
    """Whether the tables give a printed number, and what they give; nothing if they have no such value."""
    values = [_value(part) for part in parts] if printed.cell is None else _own_values(printed, tables)
    if not values:
        return None
    low, high, tolerance = printed.limits
    tolerance += ROUNDING * max(abs(low), abs(high), 1.0)
    agrees = low - tolerance <= min(values) and max(values) <= high + tolerance
    if printed.ends:
        agrees = agrees and min(values) <= low + tolerance and max(values) >= high - tolerance
    given = " to ".join(f"{value / printed.scale:.4g}" for value in sorted({min(values), max(values)}))
    what = f" for {printed.quantity} of {printed.cell}" if printed.cell else ""
    return agrees, f"printed {printed.number}{what}, the tables give {given}{'' if agrees else ', which differs'}"


def _own_values(printed: Printed, tables: ReportedTables) -> list[float]:
    """The value that a printed number names itself, if the tables have it."""
    if not printed.cell or not printed.quantity:
        return []
    cells = [printed.cell, printed.baseline] if printed.baseline else [printed.cell]
    source = _source(tables, cells)
    if printed.quantity == "rollout_seconds" and not printed.baseline and source.as_speedup:
        return []
    found = [source.values(printed.quantity, cell) for cell in cells]
    if not all(found):
        return []
    values = [each[0] for each in found]
    return [PAIRINGS[printed.relative](*values)] if printed.baseline else values
