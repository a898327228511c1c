"""Lines of a table: its rows, each at some point of its run."""

from dataclasses import dataclass, replace
from fractions import Fraction

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.reported import ReportedTable
from redraft.config import Cell, Clock, Experiments, Row, Run, RunTable, StepTable, id_of
from redraft.errors import UserError


@dataclass(frozen=True, eq=False)
class Source:
    """What a table is made from: measured and reported values."""

    measured: Measured
    reported: ReportedTable
    experiments: Experiments
    paper: str
    preset: str
    paper_scale: bool

    @property
    def runs(self) -> Runs:
        """The runs that were measured."""
        return self.measured.runs


@dataclass(frozen=True)
class Line:
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


def lines_of(table: RunTable, source: Source) -> list[Line]:
    """The table's lines in order; where rows are steps, those of one step after those of another."""
    lines, group, along = [], "", isinstance(table, StepTable)
    for row in table.rows:
        group = row.group or group
        line = Line(row, group, row.label, row.baseline or table.baseline)
        if row.at == "start":
            lines.append(replace(line, at=0, share=Fraction(0)))
        elif along:
            lines += _along(line, source)
        else:
            lines.append(line)
    return sorted(lines, key=lambda line: line.at or 0) if along else lines


def _along(line: Line, source: Source) -> list[Line]:
    """A line a policy that is evaluated during the run; the line itself if the preset has no such run."""
    try:
        run = source.experiments.run(id_of(source.paper, line.row.cell), 0, source.preset)
    except UserError:
        return [replace(line, known=False)]
    timed = replace(line, clock=run.trainer.evaluation_clock)
    return [
        replace(timed, label=f"{line.label} @ {step}", at=step, share=Fraction(step, run.steps))
        for step in _ticks(timed, run, source)
    ]


def _ticks(line: Line, run: Run, source: Source) -> list[int]:
    """Steps after which policies are evaluated, by the line's clock.

    How many training steps a run has, it says itself. Before one is finished, the ticks are those of the paper's rows.
    """
    every, total = run.trainer.evaluate_every, run.steps
    if line.clock == "steps":
        return [*range(every, total, every), total]
    scores = source.runs.by(line.clock).scores
    finished = set(scores.loc[scores["cell"] == line.row.cell, "step"]) - {0}
    ticks = range(every, total + 1, every)
    if finished:
        return [tick for tick in ticks if tick in finished]
    cell, named = lookup(source, line.row.cell), line.row.reported
    return [tick for tick in ticks if source.reported.key(cell, named, Fraction(tick, total), line.clock)]


def lookup(source: Source, cell: str) -> Cell:
    """The cell of that name."""
    return source.experiments.cell(id_of(source.paper, cell))
