"""What a paper's tables need of its experiments at a preset: the stage `measure` resolves it once and writes it, and
the stage `tables` reads it next to the measurements, without a second reading and check of all declarations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import RESOLVED
from redraft.analysis.data.reported_tables import match_of
from redraft.config import Cell, Clock, Experiments, Reported, Table, id_of
from redraft.errors import UserError
from redraft.result_files import read_typed


@dataclass(frozen=True)
class ResolvedCell:
    """A cell of a paper at a preset.

    Attributes:
        seeds: those that the preset asks for.
        reported: key columns of the cell's reported rows; None if the paper reports nothing of it.
        epochs: of the paper's runs; None for a cell that sets another number.
        lacks_run: why the preset has no run of the cell; empty if it has one.
        steps: of a run.
        clock: by which policies are evaluated.
        ticks: steps by that clock after which policies may be evaluated.
        evaluated: whether the ticks are those of finished runs, or follow from the configuration alone.
    """

    seeds: list[int]
    reported: dict[str, str] | None
    epochs: float | None
    lacks_run: str = ""
    steps: int = 0
    clock: Clock = "steps"
    ticks: tuple[int, ...] = ()
    evaluated: bool = True


@dataclass(frozen=True)
class Resolved:
    """A paper at a preset: its declared tables, the meaning of its reported ones, and its cells by name."""

    paper: str
    preset: str
    paper_scale: bool
    stand_in: str
    seeds: list[int]
    benchmarks: list[str]
    cells: dict[str, ResolvedCell]
    tables: list[Table]
    reported: Reported | None

    def cell(self, name: str) -> ResolvedCell:
        """The cell of that name.

        Raises:
            UserError: if the paper had no such cell when its runs were measured.
        """
        if name not in self.cells:
            raise UserError("no such cell", key="cell", value=name, allowed=self.cells)
        return self.cells[name]

    def content(self) -> dict[str, Any]:
        """Everything as JSON, for `load`."""
        return TYPES.dump_python(self, mode="json")

    @classmethod
    def load(cls, folder: Path) -> "Resolved":
        """Read what the stage `measure` wrote."""
        return TYPES.validate_python(read_typed(folder / RESOLVED, TYPES))


TYPES = TypeAdapter(Resolved)


def resolve(experiments: Experiments, paper: str, preset: str, runs: Runs) -> Resolved:
    """Resolve a paper's declarations at a preset; finished `runs` say which policies were evaluated.

    Raises:
        UserError: for a mistake in the experiment files.
    """
    scale, spec = experiments.preset_of(preset, paper), experiments.reported(paper)
    names = [*(cell.name for cell in experiments.cells(paper)), *experiments.cell_file(paper).bases]
    cells = {name: experiments.cell(id_of(paper, name)) for name in names}
    return Resolved(
        paper=paper,
        preset=preset,
        paper_scale=scale.paper_scale,
        stand_in=scale.stand_in,
        seeds=scale.seeds,
        benchmarks=list(scale.benchmarks),
        cells={name: _cell(name, cell, spec, experiments, preset, runs) for name, cell in cells.items()},
        tables=experiments.tables(paper).tables,
        reported=spec,
    )


def _cell(
    name: str, cell: Cell, spec: Reported | None, experiments: Experiments, preset: str, runs: Runs
) -> ResolvedCell:
    seeds = experiments.seeds(cell, experiments.preset(preset))
    reported = match_of(cell, spec) if spec else None
    # The paper's first epoch is a share of its runs, which says nothing of a run with other epochs.
    changed = "epochs" in {**cell.trainer, **cell.trainer_factors}
    epochs = None if changed else float(experiments.hyperparameters(cell.home).trainer["epochs"].value)
    try:
        run = experiments.run(cell.id, 0, preset)
    except UserError as error:
        return ResolvedCell(seeds, reported, epochs, lacks_run=f"{error.message}: {error.value}")
    every, clock = run.trainer.evaluate_every, run.trainer.evaluation_clock
    if clock == "steps":
        # The last policy is evaluated also between two multiples of `evaluate_every`.
        return ResolvedCell(seeds, reported, epochs, "", run.steps, clock, (*range(every, run.steps, every), run.steps))
    # Only a finished run records its number of training steps.
    finished: set[int] = set()
    if name in set(runs.scores["cell"]):
        scores = runs.by(clock).scores
        finished = set(scores.loc[scores["cell"] == name, "step"]) - {0}
    ticks = tuple(tick for tick in range(every, run.steps + 1, every) if not finished or tick in finished)
    return ResolvedCell(seeds, reported, epochs, "", run.steps, clock, ticks, evaluated=bool(finished))
