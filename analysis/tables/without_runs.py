"""Tables that no run is needed for: replays of published curves, and the roofline's shares of a decoded token's time.

Each cell is one value, judged by the digits that the paper prints. Published files are third-party data and never part
of the repository (`redraft.published`); without them a table shows "no data" in every cell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from redraft.analysis.data.reported_tables import ReportedTable, mean_of, speedup_of
from redraft.analysis.data.statistics import PAIRINGS
from redraft.analysis.tables.cell_verdicts import AGREES, BASELINE, DIFFERS, NO_DATA, NOT_APPLICABLE, NOT_COMPARABLE
from redraft.analysis.tables.comparison import COLUMNS
from redraft.analysis.tables.table_columns import AVERAGE, average, pair
from redraft.config import Column, DecompositionTable, PublishedTable
from redraft.config.tables import Curve
from redraft.lab.selfspec.token_time import decode_shares
from redraft.published import curve_file, read_curve
from redraft.selfspec.constants import model_constants

Record = dict[str, object]


def record(group: str, row: str, column: str, value: float, reported: float, verdict: str) -> Record:
    """A cell as in `redraft.analysis.tables.comparison.COLUMNS`, without interval, seeds and manifests."""
    return {
        "group": group,
        "row": row,
        "column": column,
        "reproduced": value,
        "low": math.nan,
        "high": math.nan,
        "n_seeds": int(not math.isnan(value)),
        "reported": reported,
        "deviation": value - reported if math.isfinite(value) else math.nan,
        "verdict": verdict,
        **dict.fromkeys(("bootstrap_low", "bootstrap_high", "p", "p_corrected", "detectable", "noise"), math.nan),
        "iqm": value,
        "step": "",
        "cell": "",
        "seeds": "",
        "missing_seeds": "",
        "manifests": "",
    }


def as_printed(value: float, reported: float, decimals: int) -> str:
    """Verdict on a value: it agrees if it is the reported one as far as that is printed, and differs otherwise."""
    if math.isnan(value):
        return NOT_APPLICABLE
    if math.isnan(reported):
        return NOT_COMPARABLE
    # A difference of infinities is NaN, and both never is agreement.
    if math.isinf(value) or math.isinf(reported):
        return AGREES if value == reported else DIFFERS
    # Half a unit of the last printed digit; printed decimals are no binary fractions, hence the rest.
    return AGREES if abs(value - reported) <= 0.5 * 10**-decimals + 1e-9 else DIFFERS


ROUNDING = 1e-9
"""Tolerance of a target for the mean of several fields, which are floating-point numbers."""


@dataclass(frozen=True)
class _CurveRow:
    """A row with the times at which its curve reaches the targets, infinite if never; None without its file."""

    row: Curve
    group: str
    times: list[float] | None


def make_published(table: PublishedTable, reported: ReportedTable) -> pd.DataFrame:
    """All cells of a table of published curves, a line each, columns as those of every table.

    A replayed value agrees if it is the reported one as far as that is printed (`decimals`), and differs otherwise.
    """
    lines, group = [], ""
    for row in table.rows:
        group = row.group or group
        lines.append(_CurveRow(row, group, _times(row, group, table)))
    by_label = {(line.group, line.row.label): line for line in lines}
    records = []
    for line in lines:
        # In the row's own group first, since groups have rows of the same labels.
        baseline = by_label.get((line.group, line.row.baseline or "")) or next(
            (other for other in lines if other.row.label == line.row.baseline), None
        )
        records += _curve_records(line, baseline, table, reported)
    return pd.DataFrame(records, columns=COLUMNS)


def published_columns(table: PublishedTable) -> list[Column]:
    """A time and a speedup in brackets for each target, and the mean speedup."""
    columns = [
        column for target in table.targets for column in pair(target, target.fields[0], table.decimals, table.unit)
    ]
    return columns + ([average(table.decimals)] if table.average else [])


def _times(row: Curve, group: str, table: PublishedTable) -> list[float] | None:
    file = curve_file(table.folder, row.file, optional=row.optional)
    if file is None:
        return None
    curves = [
        read_curve(file, table.time, target.fields, validations=row.validations, highest=target.highest)
        for target in table.targets
    ]
    reached = [
        [time for time, value in curve if value >= target.value(group) - ROUNDING]
        for curve, target in zip(curves, table.targets, strict=True)
    ]
    return [min(times, default=math.inf) * table.scale for times in reached]


def _curve_records(
    line: _CurveRow, baseline: _CurveRow | None, table: PublishedTable, reported: ReportedTable
) -> list[Record]:
    """The cells of a row, in the order of `published_columns`."""
    records: list[Record] = []
    speedups, printed = [], []
    own = reported.select(line.row.reported) if line.row.reported else {}
    other = reported.select(baseline.row.reported) if baseline and baseline.row.reported else {}
    for i, target in enumerate(table.targets):
        time, claimed = line.times[i] if line.times else math.nan, mean_of(own, target.reported)
        before = baseline.times[i] if baseline and baseline.times else math.nan
        speedup, claimed_speedup = _ratio(before, time), speedup_of(own, other, target.reported)
        decimals = table.decimals if target.decimals is None else target.decimals
        records.append(_curve_record(line, target.name, time, claimed, decimals))
        records.append(
            _curve_record(line, f"{target.name}_speedup", speedup, claimed_speedup, table.decimals, baseline)
        )
        speedups.append(speedup)
        printed.append(claimed_speedup)
    if table.average:
        claimed_average = own.get(AVERAGE, _mean(printed))
        records.append(_curve_record(line, AVERAGE, _mean(speedups), claimed_average, table.decimals, baseline))
    return records


def _ratio(before: float, after: float) -> float:
    """The speedup, NaN where either was never reached."""
    return PAIRINGS["speedup"](after, before) if math.isfinite(before) and math.isfinite(after) else math.nan


def _mean(values: Sequence[float]) -> float:
    # A target that one of the two never reached has no speedup.
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _curve_record(
    line: _CurveRow, column: str, value: float, reported: float, decimals: int, baseline: _CurveRow | str | None = ""
) -> Record:
    """A cell; a `baseline` of None marks the row as a baseline."""
    verdict = BASELINE if baseline is None else as_printed(value, reported, decimals)
    return record(line.group, line.row.label, column, value, reported, NO_DATA if line.times is None else verdict)


PARTS = {"ffn": "FFN", "qkvo": "QKVO", "attention": "attention", "head": "head", "nonlinear": "nonlinear"}
"""Part to its title."""
REPORTED = {"head": "lm_head"}
"""Names of parts in transcribed columns, where they differ."""


def make_decomposition(table: DecompositionTable, reported: ReportedTable) -> pd.DataFrame:
    """All cells of a table, a line each, columns as those of every table; shares in percent.

    Raises:
        UserError: for a model that the roofline does not cover.
    """
    records = []
    for model in table.models:
        sizes = model_constants(model.configuration)
        own = reported.select(model.reported) if model.reported else {}
        for each in table.passes:
            shares = decode_shares(sizes, each.batch, each.length, bandwidth=table.bandwidth, flops=table.flops)
            for part in PARTS:
                value, printed = 100 * shares[part], mean_of(own, [f"{REPORTED.get(part, part)}@{each.reported}"])
                verdict = as_printed(value, printed, table.decimals)
                records.append(record(model.label, each.label, part, value, printed, verdict))
    return pd.DataFrame(records, columns=COLUMNS)


def decomposition_columns(table: DecompositionTable) -> list[Column]:
    """A share for each part."""
    # Not validated, since parts of a decoding pass are no quantities of runs.
    return [
        Column.model_construct(name=part, title=f"{title} (%)", quantity=part, decimals=table.decimals)
        for part, title in PARTS.items()
    ]
