"""Size of a training run relative to a preset's usual one: an estimate of its time before any like it has run."""

from functools import cache, cached_property

from redraft.config import Experiments, Preset, Run
from redraft.config.requests import parameters


def _responses(run: Run) -> int:
    """Responses in all updates of a run.

    These cost more than sampled ones: a schedule that samples four times as many and updates from the rest takes 1.1 to
    1.4 times as long (preset tiny).
    """
    return run.steps * run.trainer.batch_prompts * run.trainer.group_size


class RunSizes:
    """Sizes of the runs of a preset's cells.

    A size is the number of responses in all updates times the parameters of the model, relative to the cells that a
    bare `snakemake` runs. At the preset tiny, where a usual run took 42 s, ten runs of size 16 took about 65 minutes on
    two cores with their evaluations, ten of size 32 135 minutes, ten of size 4 by their model 15 minutes; and a run of
    SPEED-RL's cells, of size 2, took 75 to 128 s. A model smaller than the usual one counts like it, since the fixed
    costs of a step dominate there.
    """

    def __init__(self, experiments: Experiments, preset: Preset) -> None:
        self._experiments, self._preset = experiments, preset

    @cached_property
    def _usual(self) -> tuple[float, float] | None:
        """Mean responses and parameters of the usual cells; None if the preset has none of them."""
        experiments, preset = self._experiments, self._preset
        cells = [
            cell.id
            for paper in preset.papers(preset.first)
            for cell in experiments.cells(paper, experiments.default_grids(preset, paper))
            if experiments.has_run(cell, preset)
        ]
        runs = [experiments.run(cell, preset.seeds[0], preset.name) for cell in cells]
        if not runs:
            return None
        return sum(map(_responses, runs)) / len(runs), sum(parameters(run.model) for run in runs) / len(runs)

    @cache  # noqa: B019 - there is one instance per process
    def __call__(self, cell_id: str) -> float:
        """Size of a run of a cell, 1 for a usual one."""
        # Seeds differ in nothing that costs.
        return self.of_run(self._experiments.run(cell_id, self._preset.seeds[0], self._preset.name))

    def of_run(self, run: Run) -> float:
        """Size of a run at the preset."""
        if self._usual is None:
            return 1.0
        responses, size = self._usual
        return _responses(run) / responses * max(parameters(run.model) / size, 1.0)
