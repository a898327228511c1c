"""A regenerated table, from its rows to the lines of its CSV file: reproduced and reported values, intervals, verdicts.

`lines_of` lists the table's lines, `cell_of` looks up the measured and reported values of one cell, and `make_table`
adds intervals and verdicts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import pandas as pd

from redraft.analysis.data.measured import Measured
from redraft.analysis.data.power import detectable
from redraft.analysis.data.quantities import bound_of, of_accuracy
from redraft.analysis.data.reported_tables import Key, ReportedTable, mean_of, speedup_of
from redraft.analysis.data.statistics import (
    KEPT,
    NEUTRAL,
    PAIRINGS,
    RATIOS,
    Blocks,
    Estimate,
    Families,
    Family,
    GainKept,
    estimate,
    paired,
)
from redraft.analysis.data.timing import is_timed, kind_of, of_reported, speedups_by_seed, timed_unevenly
from redraft.analysis.tables.cell_verdicts import (
    BASELINE,
    INCONCLUSIVE,
    MISSING,
    NOT_APPLICABLE,
    NOT_COMPARABLE,
    UNEVEN,
    verdict,
)
from redraft.analysis.tables.resolved import Resolved
from redraft.analysis.tables.table_columns import AVERAGE
from redraft.config import Clock, Column, Row, RunTable, StepTable, id_of
from redraft.config.quantities import ACCURACY, FIRST_REACHED, SECONDS, SPEEDUP

BySeed = Mapping[int, float]
START = Fraction(0)
"""Share of the run that the initial policy has done."""


@dataclass(frozen=True, eq=False)
class TableSource:
    """What a table is made from: measured and reported values, and the paper's cells at the preset."""

    measured: Measured
    reported: ReportedTable
    resolved: Resolved

    def reported_key(
        self, cell: str, override: Mapping[str, str], at: Fraction | None = None, clock: Clock = "steps"
    ) -> Key | None:
        """Key of a cell's reported row as of `ReportedTable.key`."""
        return self.reported.matching(self.resolved.cell(cell).reported, override, at, clock)

    def reported_row(
        self, cell: str, override: Mapping[str, str], at: Fraction | None = None, clock: Clock = "steps"
    ) -> dict[str, float]:
        """The reported values of a cell as of `ReportedTable.row`."""
        key = self.reported_key(cell, override, at, clock)
        return {} if key is None else self.reported.rows[key]


@dataclass(frozen=True)
class TableLine:
    """A line of the regenerated table: a row of the file, at some point of its run.

    Attributes:
        at: steps done, by the clock; None is the last policy.
        share: `at` as a share of all steps of the run; None with `at`.
        clock: by which the run's policies are evaluated, where rows are policies.
        known: whether the preset has what the cell needs.
    """

    row: Row
    group: str
    label: str
    baseline: str
    at: int | None = None
    share: Fraction | None = None
    clock: Clock = "steps"
    known: bool = True

    @property
    def is_baseline(self) -> bool:
        """True if relative columns compare the line with itself."""
        return self.row.cell == self.baseline and self.at != 0


def lines_of(table: RunTable, source: TableSource) -> list[TableLine]:
    """The table's lines in order; where rows are steps, those of one step after those of another.

    Such a table has a line for each policy that was evaluated during a row's run, or one line if the preset lacks that
    run.
    """
    lines, group, along = [], "", isinstance(table, StepTable)
    for row in table.rows:
        group = row.group or group
        line = TableLine(row, group, row.label, row.baseline or table.baseline)
        if row.at == "start":
            lines.append(replace(line, at=0, share=Fraction(0)))
        elif along:
            cell = source.resolved.cell(row.cell)
            if cell.lacks_run:
                lines.append(replace(line, known=False))
            # Only a finished run records its number of training steps; before that, the lines are those of the paper's
            # rows.
            for tick in cell.ticks if not cell.lacks_run else ():
                share = Fraction(tick, cell.steps)
                if cell.evaluated or source.reported.matching(cell.reported, row.reported, share, cell.clock):
                    label = f"{line.label} @ {tick}"
                    lines.append(replace(line, clock=cell.clock, label=label, at=tick, share=share))
        else:
            lines.append(line)
    # Sorting is stable, so rows of one step stay in the order of the file.
    return sorted(lines, key=lambda line: line.at or 0) if along else lines


@dataclass(frozen=True)
class TableCell:
    """A cell of the table before it is compared.

    Attributes:
        values: by seed, in the column's unit.
        cells: whose runs they come from.
        noises: standard errors that sampling alone causes, by evaluated policies (cell, steps done) and by seed, in
            the column's unit and negative for a baseline; empty where they are unknown.
        applicable: false if there can be no such value.
        timed: whether it is made of seconds.
        bound: reason why the values of cell and baseline cannot be tested (`bound_of`); else empty.
        blocks: of the seeds.
        kept: share of the baseline's gain in an accuracy, where the column is the difference.
        pairs: the cells that are compared with each other, where these are not `cells` themselves.
    """

    line: TableLine
    column: Column
    values: Mapping[int, float]
    reported: float
    cells: tuple[str, ...]
    noises: Mapping[tuple[str, int | None], BySeed] = field(default_factory=dict)
    applicable: bool = True
    timed: bool = False
    bound: str = ""
    blocks: Blocks = field(default_factory=Blocks, repr=False)
    kept: GainKept | None = None
    pairs: tuple[tuple[str, ...], ...] = ()

    @property
    def compared(self) -> bool:
        """True if the cell has an effect to be tested."""
        return bool(relation(self.column)) and self.applicable and not self.line.is_baseline and not self.bound

    @property
    def neutral(self) -> float:
        """Value of a relative cell without an effect; NaN for an absolute one."""
        relative = relation(self.column)
        return NEUTRAL[relative] if relative else math.nan

    @property
    def noise(self) -> float:
        """Standard error of the mean that sampling alone causes, NaN where that is unknown."""
        if not self.noises or not self.estimate.seeds:
            return math.nan
        seeds = self.estimate.seeds
        sizes = Counter(self.blocks.get(seed, seed) for seed in seeds)
        # The weight of each seed in a mean of blocks' means. Seeds and policies are sampled independently, so squares
        # add up.
        shares = {seed: 1 / (len(sizes) * sizes[self.blocks.get(seed, seed)]) for seed in seeds}
        return math.hypot(*(shares[s] * each.get(s, math.nan) for each in self.noises.values() for s in seeds))

    @property
    def is_ratio(self) -> bool:
        """True if the values are ratios."""
        return relation(self.column) in RATIOS

    @cached_property
    def estimate(self) -> Estimate:
        """The mean of the values, with its intervals."""
        return estimate(self.values, self.blocks, self.is_ratio)


def relation(column: Column) -> str | None:
    """Relation of a column's values to the baseline's; a speedup is always relative."""
    return "speedup" if column.quantity.startswith(SPEEDUP) else column.relative


def cell_of(line: TableLine, column: Column, table: RunTable, source: TableSource) -> TableCell:
    """One cell of a table."""
    declared, column = column, column.of_group(line.group)
    relative = relation(column)
    cell, baseline, measured, bound = line.row.cell, line.baseline, source.measured, ""
    # The benchmark of an accuracy, or the role of its benchmarks, may be one that the preset does not sample.
    scores = measured.runs.scores
    sampled = {"all", *scores["benchmark"], *scores["role"]}.issuperset(of_accuracy(column.quantity))
    if not sampled:
        values = {}
    elif column.quantity.startswith(SPEEDUP):
        values = speedups_by_seed(measured, column.quantity, (cell, baseline), line.at, line.clock)
    else:
        values = measured.values(column.quantity, cell, line.at, line.clock)
        if column.relative:
            before = measured.values(column.quantity, baseline, line.at, line.clock)
            bound = bound_of([column.quantity], (values, before), 0, measured.runs.blocks)
            values = paired(values, before, column.relative)
    # After the relation: a scale is 1 for ratios, so it converts absolute values and differences only.
    values = {seed: value * column.scale for seed, value in values.items()}
    applicable = sampled and _applicable(line, column, values)
    compared = bool(relative) and not line.is_baseline
    kept = compared and applicable and column.relative == "difference" and column.quantity.startswith(ACCURACY)
    return TableCell(
        line=line,
        column=declared,
        values=values if applicable else {},
        reported=_reported(line, column, table, source),
        cells=(line.row.cell, line.baseline) if compared else (line.row.cell,),
        noises=_noises(line, column, source) if applicable else {},
        applicable=applicable,
        timed=is_timed(column.quantity),
        bound=bound,
        blocks=source.measured.runs.blocks,
        kept=_kept(line, column, table, source) if kept else None,
    )


def _kept(line: TableLine, column: Column, table: RunTable, source: TableSource) -> GainKept | None:
    """The share of the baseline's gain in an accuracy, and the paper's, which is NaN where it prints too little."""
    cell, baseline, reported = line.row.cell, line.baseline, math.nan
    # A printed difference says nothing of the gains.
    if column.reported and line.known and not column.printed_relative:
        override = next((r.reported for r in table.rows if r.cell == baseline and r.at == "end"), {})
        gains = []
        for name, row in ((cell, line.row.reported), (baseline, override)):
            last, first = source.reported_row(name, row, line.share, line.clock), source.reported_row(name, {}, START)
            gains.append(mean_of(last, column.reported) - mean_of(first, column.reported))
        reported = gains[0] / gains[1] if gains[1] else math.nan
    return source.measured.gain_kept(column.quantity, (cell, baseline), line.at, line.clock, reported)


def _applicable(line: TableLine, column: Column, values: Mapping[int, float]) -> bool:
    """True if there can be such a value.

    The initial policy has accuracies only. A stage without a second in any step is none of the algorithm's. What no
    run could measure, such as the prefix of a method without drafts, is not there to be missed; nor is a speedup to a
    target that a run never reached.
    """
    relative, quantity = relation(column), column.quantity
    if line.at == 0 and (relative or not quantity.startswith(ACCURACY)):
        return False
    # Not covered by the last line, in which NaN counts as true.
    if values and all(map(math.isnan, values.values())):
        return False
    if quantity.startswith(tuple(FIRST_REACHED)) and relative:
        return all(value and math.isfinite(value) for value in values.values())
    return not (quantity.startswith(SECONDS) and not relative and values and not any(values.values()))


def average_cell(line: TableLine, column: Column, cells: list[TableCell], source: TableSource) -> TableCell:
    """The mean of a line's speedups to the targets that were reached.

    The paper's is over the same targets: its printed mean if these are all of which it has a speedup, else the mean of
    its speedups to them, and NaN if it lacks one. Without runs it is the paper's mean of all its targets.
    """
    speedups = [cell for cell in cells if cell.column.in_brackets]
    parts = [cell for cell in speedups if cell.applicable]
    seeds = set.intersection(*(set(cell.values) for cell in parts)) if parts else set()
    reported = [cell for cell in speedups if not math.isnan(cell.reported)]
    of_all = bool(reported) and all(cell.column.reported for cell in speedups) and (parts == reported or not seeds)
    row = source.reported_row(line.row.cell, line.row.reported) if of_all else {}
    printed = [cell.reported for cell in (parts if seeds else reported)]
    return TableCell(
        line=line,
        column=column,
        values={seed: sum(cell.values[seed] for cell in parts) / len(parts) for seed in sorted(seeds)},
        reported=row.get(AVERAGE, math.fsum(printed) / len(printed) if printed else math.nan),
        cells=(line.row.cell,) if line.is_baseline else (line.row.cell, line.baseline),
        applicable=bool(parts),
        timed=any(cell.timed for cell in speedups),
        bound=_bound_of_parts(speedups, source),
        blocks=cells[0].blocks,
    )


def _bound_of_parts(cells: Iterable[TableCell], source: TableSource) -> str:
    """`never` if a mean leaves out a target that some runs of one of its cells reached and others did not.

    Without it the mean is one of successes only. What no run reached does not depend on the method.
    """
    for cell in cells:
        if cell.bound != "never":
            continue
        line, quantity = cell.line, cell.column.of_group(cell.line.group).quantity
        if quantity == AVERAGE:  # of which this was asked already
            return "never"
        sides = (source.measured.values(quantity, name, line.at, line.clock) for name in (line.row.cell, line.baseline))
        if any(math.isfinite(value) for side in sides for value in side.values()):
            return "never"
    return ""


def _noises(line: TableLine, column: Column, source: TableSource) -> dict[tuple[str, int | None], BySeed]:
    """`TableCell.noises` of an accuracy, or of a difference between two."""
    if not column.quantity.startswith(ACCURACY) or column.relative not in (None, "difference"):
        return {}
    if line.is_baseline and column.relative:
        return {}
    found: dict[tuple[str, int | None], BySeed] = {}
    cells = [(1, line.row.cell), *([(-1, line.baseline)] if column.relative else [])]
    for sign, cell in cells:
        floor = source.measured.noise(column.quantity, cell, line.at, line.clock)
        # The sign keeps a baseline's error whole in a mean of rows.
        found[cell, line.at] = {seed: sign * column.scale * error for seed, error in floor.items()}
    return found


def _reported(line: TableLine, column: Column, table: RunTable, source: TableSource) -> float:
    """The paper's value of a cell, NaN where there is none that may be compared.

    Ratios and differences of accuracies compare at any scale; other values only with the paper's own models and
    benchmarks.
    """
    relative = relation(column)
    of_any_scale = relative in ("ratio", "speedup") or (relative and column.quantity.startswith(ACCURACY))
    if not column.reported or not line.known or not (of_any_scale or source.resolved.paper_scale):
        return math.nan
    if relative and line.at == 0:
        return math.nan
    row = source.reported_row(line.row.cell, line.row.reported, line.share, line.clock)
    if relative is None or column.printed_relative:
        return mean_of(row, column.reported)
    # The baseline is a row of the table, which may declare how its reported row is found.
    override = next((r.reported for r in table.rows if r.cell == line.baseline and r.at == "end"), {})
    baseline = source.reported_row(line.baseline, override, line.share, line.clock)
    if relative == "speedup" and column.in_brackets:
        return speedup_of(row, baseline, column.reported)
    if column.quantity.startswith(SPEEDUP):
        spec = source.reported.spec
        times, before = of_reported(row, spec), of_reported(baseline, spec)
        return kind_of(column.quantity)(before, times) if before and times else math.nan
    value = PAIRINGS[relative](mean_of(row, column.reported), mean_of(baseline, column.reported))
    if column.without_first_epoch:
        value = _without_first_epoch(value, line, override, source)
    return value if math.isfinite(value) and (value or relative == "difference") else math.nan


def _without_first_epoch(ratio: float, line: TableLine, override: Mapping[str, str], source: TableSource) -> float:
    """A reported ratio of tokens without the first epoch, in which cell and baseline decode the same.

    The paper prints no epoch. Its first epoch counts as its share s of the steps in which the baseline's row generated,
    as if all decoded as much; the row's ratio is then s + (1 - s) r, with r that of the later epochs. NaN for cells
    with other epochs than the paper's, where no later epoch has begun, and for a ratio below s, which is impossible.
    """
    key = source.reported_key(line.baseline, override, line.share, line.clock)
    epochs, of_baseline = (source.resolved.cell(cell).epochs for cell in (line.row.cell, line.baseline))
    if key is None or epochs is None or of_baseline is None:
        return math.nan
    # The row's own clock: DAPO's rows are matched by training steps, of which each takes several generation steps.
    share = 1 / (epochs * source.reported.share_done(key))
    return (ratio - share) / (1 - share) if share < 1 and ratio >= share else math.nan


COLUMNS = [
    *("group", "row", "step", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"),
    *("bootstrap_low", "bootstrap_high", "p", "p_corrected", "detectable", "iqm", "noise", "cell", "seeds"),
    *("missing_seeds", "manifests"),
    *KEPT,
]
"""`low` and `high` are the Student interval, which is shown and decides.

`step` is the steps that the row's policy has done, empty for the last one. `p` is that of "no effect", `p_corrected`
the same over its family in the paper's report. `detectable` is the smallest effect that such runs show in four of five
campaigns (`redraft.analysis.data.power`), of ratios a factor. `noise` is the standard error that sampling alone causes.
`missing_seeds` are those that the preset asks for and that have no finished run. `gain_kept` is the share of the
baseline's gain in an accuracy (`redraft.analysis.data.statistics.GainKept`), with its interval.
"""


def make_table(table: RunTable, source: TableSource, families: Families | None = None) -> pd.DataFrame:
    """All cells of a table that `redraft.analysis.tables.table_columns.expand` returned, one row each, by `COLUMNS`.

    The comparisons that are corrected together are those of this table by default.
    """
    cells = cells_of(table, source)
    if families is None:
        families = Families(other=comparisons(cells, source), blocks=source.measured.runs.blocks)
    frame = pd.DataFrame([_record(cell, families, source) for cell in cells], columns=COLUMNS)
    # Verdicts of columns that another column judges, line by line. Cells go line by line, so every `width`-th is of one
    # column.
    width = len(table.columns)
    for i, column in enumerate(table.columns):
        if column.judged_by:
            other = [each.name for each in table.columns].index(column.judged_by)
            compared = ~frame["verdict"].iloc[i::width].isin([MISSING, BASELINE, NOT_APPLICABLE])
            own = frame.index[i::width][compared]
            found = frame["verdict"].iloc[other::width][compared.to_numpy()]
            # Where the other can have no value, as before the second epoch, nothing is compared.
            frame.loc[own, "verdict"] = found.replace(NOT_APPLICABLE, NOT_COMPARABLE).to_numpy()
    return frame


def cells_of(table: RunTable, source: TableSource) -> list[TableCell]:
    """All cells of a table, line by line, a mean row last."""
    cells: list[TableCell] = []
    for line in lines_of(table, source):
        own: list[TableCell] = []
        for column in table.columns:
            is_average = column.quantity == AVERAGE
            own.append(average_cell(line, column, own, source) if is_average else cell_of(line, column, table, source))
        cells += own
    if table.mean_row:
        cells += [_mean_of([cell for cell in cells if cell.column == column], source) for column in table.columns]
    return cells


def comparisons(cells: Iterable[TableCell], source: TableSource) -> Iterator[tuple[Mapping[int, float], float, bool]]:
    """Values and neutral value of each cell that is tested, and whether they are ratios.

    Seconds are not tested where times cannot be compared.
    """
    for cell in cells:
        if cell.compared and not _timed_unevenly(cell, source):
            yield cell.values, cell.neutral, cell.is_ratio


def _timed_unevenly(cell: TableCell, source: TableSource) -> bool:
    """True for a cell of times that cannot be compared."""
    return cell.timed and bool(timed_unevenly(source.measured.runs, cell.pairs or [cell.cells], [cell.column.quantity]))


def _mean_of(cells: list[TableCell], source: TableSource) -> TableCell:
    """The mean of a column over the lines that are not compared with themselves, where all of them were run.

    The paper's is over the same lines, NaN if it lacks one of them: a mean over other lines is no other result of the
    same. Without runs it is over all lines that the paper has.
    """
    column, grouped = cells[0].column, any(cell.line.group for cell in cells)
    rows = [cell for cell in cells if not cell.line.is_baseline and cell.line.at != 0]
    # What cannot be, such as a stage that an algorithm lacks, does not leave the mean without a value.
    parts = [cell for cell in rows if cell.applicable] or rows
    seeds = set.intersection(*(set(cell.values) for cell in parts)) if parts else set()
    reported = parts if seeds else [cell for cell in parts if not math.isnan(cell.reported)]
    noises: dict[tuple[str, int | None], Counter[int]] = {}
    for part in parts if all(part.noises for part in parts) else []:
        for policy, errors in part.noises.items():
            # The cells may share a baseline: its errors add up and do not cancel.
            noises.setdefault(policy, Counter()).update({seed: error / len(parts) for seed, error in errors.items()})
    # Not validated, since only this row has no cell.
    row = Row.model_construct(label="Mean", cell="", at="end", reported={}, group="", baseline=None)
    return TableCell(
        line=TableLine(row, "All" if grouped else "", "Mean", baseline="(each row's)"),
        column=column,
        values={seed: sum(cell.values[seed] for cell in parts) / len(parts) for seed in seeds},
        reported=math.fsum(cell.reported for cell in reported) / len(reported) if reported else math.nan,
        cells=tuple(dict.fromkeys(name for cell in parts for name in cell.cells)),
        pairs=tuple(cell.cells for cell in parts),
        noises=noises,
        applicable=any(cell.applicable for cell in rows),
        timed=any(cell.timed for cell in cells),
        bound=_bound_of_parts(rows, source) or (parts[0].bound if len({cell.bound for cell in parts}) == 1 else ""),
        blocks=cells[0].blocks,
    )


def _record(cell: TableCell, families: Families, source: TableSource) -> dict:
    """A cell as a line of the CSV file."""
    line, found = cell.line, cell.estimate
    of = "initial" if line.at == 0 else "manifest"
    name, resolved = line.row.cell, source.resolved
    # Seeds without a finished run are named only where another seed of the cell has one.
    wanted = resolved.cell(name).seeds if name else resolved.seeds
    comparison = (cell.values, cell.neutral, cell.is_ratio)
    family = families.of(*comparison)
    smallest = detectable(found, family.level(*comparison)) if cell.compared else None
    return {
        "group": line.group,
        "row": line.label,
        "step": "" if line.at is None else str(line.at),
        "column": cell.column.name,
        "reproduced": found.mean,
        "low": found.interval.low,
        "high": found.interval.high,
        "n_seeds": len(found.seeds),
        "reported": cell.reported,
        "deviation": found.mean - cell.reported,
        "verdict": _verdict(cell, family, source),
        "bootstrap_low": found.bootstrap.low,
        "bootstrap_high": found.bootstrap.high,
        "p": found.p_value(cell.neutral) if cell.compared else math.nan,
        "p_corrected": family.corrected(*comparison) if cell.compared else math.nan,
        "detectable": smallest.effect if smallest else math.nan,
        "iqm": found.iqm,
        "noise": cell.noise,
        "cell": id_of(resolved.paper, name) if name else "",
        "seeds": " ".join(map(str, found.seeds)),
        "missing_seeds": " ".join(str(seed) for seed in wanted if found.seeds and seed not in found.seeds),
        "manifests": " ".join(
            path for name in cell.cells for path in source.measured.runs.manifests(name, found.seeds, of)
        ),
        **(dict(zip(KEPT, astuple(cell.kept), strict=True)) if cell.kept else {}),
    }


def _verdict(cell: TableCell, family: Family, source: TableSource) -> str:
    if not cell.applicable:
        # A row without runs is missing in all columns: one of unsampled benchmarks alone would count as run.
        name = cell.line.row.cell
        return MISSING if name and name not in source.measured.runs.runs["cell"].to_numpy() else NOT_APPLICABLE
    relative = relation(cell.column)
    is_baseline = bool(relative) and cell.line.is_baseline
    corrected = family.corrected(cell.values, cell.neutral, cell.is_ratio) if cell.compared else math.nan
    result = verdict(cell.estimate, cell.reported, relative, is_baseline, corrected)
    # What was not run, is a baseline or has no reported value depends neither on tests nor on times.
    if result in (MISSING, BASELINE, NOT_COMPARABLE):
        return result
    if cell.bound:
        return INCONCLUSIVE
    if _timed_unevenly(cell, source):
        return UNEVEN
    # Without a corrected p-value it is not tested: before the first look of a sequential campaign, or if it was
    # declared after the family was corrected.
    return INCONCLUSIVE if cell.compared and math.isnan(corrected) else result
