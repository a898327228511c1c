"""Cells of a table before they are compared: the values of each run, the paper's value, the noise of sampling."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from redraft.analysis.data.quantities import ACCURACY, FIRST_REACHED, SECONDS, of_accuracy
from redraft.analysis.data.reported import mean_of
from redraft.analysis.data.speedups import SPEEDUP, kind_of, of_reported, speedups_by_seed
from redraft.analysis.data.statistics import NEUTRAL, PAIRINGS, Blocks, Estimate, estimate, paired
from redraft.analysis.data.timing import is_timed
from redraft.analysis.tables.lines import Line, Source, lookup
from redraft.config import Column, RunTable


@dataclass(frozen=True)
class TableCell:
    """A cell of the table before it is compared.

    Attributes:
        values: by seed, in the column's unit.
        cells: whose runs they come from.
        noise: standard error that sampling alone causes, NaN where that is unknown.
        applicable: false if there can be no such value.
        timed: whether it is made of seconds.
        blocks: of the seeds.
    """

    line: Line
    column: Column
    values: Mapping[int, float]
    reported: float
    cells: tuple[str, ...]
    noise: float = math.nan
    applicable: bool = True
    timed: bool = False
    blocks: Blocks = field(default_factory=dict, repr=False)

    @property
    def compared(self) -> bool:
        """True if the cell has an effect to be tested."""
        return bool(relation(self.column)) and self.applicable and not self.line.is_baseline

    @property
    def neutral(self) -> float:
        """Value of a relative cell without an effect; NaN for an absolute one."""
        relative = relation(self.column)
        return NEUTRAL[relative] if relative else math.nan

    @cached_property
    def estimate(self) -> Estimate:
        """The mean of the values, with its intervals."""
        return estimate(self.values, self.blocks)


def relation(column: Column) -> str | None:
    """Relation of a column's values to the baseline's; a speedup has one by itself."""
    return "speedup" if column.quantity.startswith(SPEEDUP) else column.relative


def cell_of(line: Line, column: Column, table: RunTable, source: Source) -> TableCell:
    """One cell of a table."""
    declared, column = column, column.of_group(line.group)
    relative = relation(column)
    values = {seed: value * column.scale for seed, value in _values(line, column, source).items()}
    applicable = _applicable(line, column, values, source)
    compared = bool(relative) and not line.is_baseline
    return TableCell(
        line=line,
        column=declared,
        values=values if applicable else {},
        reported=_reported(line, column, table, source),
        cells=(line.row.cell, line.baseline) if compared else (line.row.cell,),
        noise=_noise(line, column, source, list(values)) if applicable else math.nan,
        applicable=applicable,
        timed=is_timed(column.quantity),
        blocks=source.runs.blocks,
    )


def _applicable(line: Line, column: Column, values: Mapping[int, float], source: Source) -> bool:
    """True if there can be such a value.

    The initial policy has accuracies only. A stage without a second in any step is none of the algorithm's. What no
    run could measure, such as the prefix of a method without drafts, is not there to be missed; nor is a benchmark
    that the preset leaves out, nor a speedup to a target that a run never reached.
    """
    relative, quantity = relation(column), column.quantity
    if _lacks(quantity, source) or (line.at == 0 and (relative or not quantity.startswith(ACCURACY))):
        return False
    if values and all(map(math.isnan, values.values())):
        return False
    if quantity.startswith(tuple(FIRST_REACHED)) and relative:
        return all(value and math.isfinite(value) for value in values.values())
    return not (quantity.startswith(SECONDS) and not relative and values and not any(values.values()))


def _lacks(quantity: str, source: Source) -> bool:
    """Test for a benchmark that the suite has and the preset does not."""
    scores, sets = source.runs.scores, source.experiments.benchmark_file().sets
    unscored = set(of_accuracy(quantity)) - {"all", *scores["benchmark"], *scores["role"]}
    return bool(unscored) and unscored <= set(sets)


def _values(line: Line, column: Column, source: Source) -> dict[int, float]:
    cell, quantity = line.row.cell, column.quantity
    if _lacks(quantity, source):
        return {}
    if quantity.startswith(SPEEDUP):
        return speedups_by_seed(source.measured, quantity, (cell, line.baseline), line.at, line.clock)
    values = source.measured.values(quantity, cell, line.at, line.clock)
    if column.relative:
        baseline = source.measured.values(quantity, line.baseline, line.at, line.clock)
        values = paired(values, baseline, column.relative)
    return values


def average(line: Line, column: Column, cells: list[TableCell]) -> TableCell:
    """The mean of a line's speedups, of those targets that were reached."""
    parts = [cell for cell in cells if cell.column.in_brackets and cell.applicable]
    seeds = set.intersection(*(set(cell.values) for cell in parts)) if parts else set()
    reported = [cell.reported for cell in cells if cell.column.in_brackets and not math.isnan(cell.reported)]
    return TableCell(
        line=line,
        column=column,
        values={seed: sum(cell.values[seed] for cell in parts) / len(parts) for seed in sorted(seeds)},
        reported=sum(reported) / len(reported) if reported else math.nan,
        cells=(line.row.cell,) if line.is_baseline else (line.row.cell, line.baseline),
        applicable=bool(parts),
        timed=any(cell.timed for cell in cells if cell.column.in_brackets),
        blocks=cells[0].blocks,
    )


def _noise(line: Line, column: Column, source: Source, seeds: list[int]) -> float:
    """Standard error of a mean over seeds, or of a difference between two, that sampling alone causes."""
    if not column.quantity.startswith(ACCURACY) or column.relative not in (None, "difference"):
        return math.nan
    if line.is_baseline and column.relative:
        return math.nan
    cells = [line.row.cell, line.baseline] if column.relative else [line.row.cell]
    floors = [source.measured.noise(column.quantity, cell, line.at, line.clock) for cell in cells]
    squares = [floor.get(seed, math.nan) ** 2 for floor in floors for seed in seeds]
    return column.scale * math.sqrt(sum(squares)) / len(seeds) if seeds else math.nan


def _reported(line: Line, column: Column, table: RunTable, source: Source) -> float:
    """The paper's value of a cell, NaN where there is none that may be compared.

    Ratios and differences of accuracies compare at any scale; other values only with the paper's own models and
    benchmarks.
    """
    relative = relation(column)
    of_any_scale = relative in ("ratio", "speedup") or (relative and column.quantity.startswith(ACCURACY))
    if not column.reported or not line.known or not (of_any_scale or source.paper_scale):
        return math.nan
    if relative and line.at == 0:
        return math.nan
    row = source.reported.row(lookup(source, line.row.cell), line.row.reported, line.share, line.clock)
    if relative is None or column.printed_relative:
        return mean_of(row, column.reported)
    override = next((r.reported for r in table.rows if r.cell == line.baseline and r.at == "end"), {})
    baseline = source.reported.row(lookup(source, line.baseline), override, line.share, line.clock)
    if column.quantity.startswith(SPEEDUP):
        spec = source.reported.spec
        times, before = of_reported(row, spec), of_reported(baseline, spec)
        return kind_of(column.quantity)(before, times) if before and times else math.nan
    value = PAIRINGS[relative](mean_of(row, column.reported), mean_of(baseline, column.reported))
    if column.without_first_epoch:
        value = _without_first_epoch(value, line, source)
    return value if math.isfinite(value) and (value or relative == "difference") else math.nan


def _without_first_epoch(ratio: float, line: Line, source: Source) -> float:
    """A reported ratio of tokens without the first epoch, in which cell and baseline decode the same.

    The paper prints no epoch. Its first is taken for its share s of the baseline's steps, as if all decoded as much; a
    whole run's ratio is then s + (1 - s) r, with r that of the later epochs. NaN for cells with other epochs than the
    paper's, and where no later epoch has begun.
    """
    cells = [lookup(source, line.row.cell), lookup(source, line.baseline)]
    if any("epochs" in {**cell.trainer, **cell.trainer_factors} for cell in cells):
        return math.nan
    epochs = float(source.experiments.hyperparameters(source.paper).trainer["epochs"].value)
    share = 1 / (epochs * float(line.share or 1))
    return (ratio - share) / (1 - share) if share < 1 else math.nan
