"""A paper as the pages see it: everything that was made of it, read when a page first asks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redraft.analysis.data import evaluation
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.timing import Agreement, first_epoch_agreement, timed_unevenly
from redraft.analysis.figures.parts import unsampled_benchmarks
from redraft.analysis.pages import claims as claim_views
from redraft.analysis.pages import headline, parts
from redraft.analysis.pages.runs import RunView, views
from redraft.config import Cell, Experiments, Preset
from redraft.layout import Layout


@dataclass(frozen=True)
class Paper:
    """What the pages say of a paper, read once."""

    layout: Layout
    name: str
    experiments: Experiments

    @cached_property
    def preset(self) -> Preset:
        """The preset with the benchmarks of this paper."""
        return self.experiments.preset_of(self.layout.preset, self.name)

    @cached_property
    def runs(self) -> Runs:
        """All finished ones."""
        return Runs.load(self.layout.collected(self.name))

    @cached_property
    def run_views(self) -> list[RunView]:
        """The same, as pages show them."""
        return views(self.name, self.runs)

    @property
    def title(self) -> str:
        """Title of the paper."""
        return self.experiments.cell_file(self.name).title

    @property
    def method(self) -> str:
        """Name of the method, by which pages call the paper."""
        return self.experiments.cell_file(self.name).method or self.name

    @property
    def source(self) -> str:
        """Publication of the paper."""
        return self.experiments.cell_file(self.name).source

    @property
    def own_page(self) -> bool:
        """True if one page shows all of it."""
        return self.experiments.cell_file(self.name).own_page

    @property
    def timing(self) -> Agreement | None:
        """How far the seconds of equal work are apart."""
        return first_epoch_agreement(self.runs)

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        """Judged claims, the decided first."""
        declared = self.experiments.claims(self.name).claims
        return claim_views.read_claims(self.layout.claims(self.name)) if declared else []

    @property
    def contradicted(self) -> list[dict[str, Any]]:
        """Claims that the runs contradict."""
        return [claim for claim in self.claims if claim["verdict"] == claim_views.CONTRADICTED]

    @property
    def themes(self) -> list[dict[str, Any]]:
        """Claims by theme."""
        return claim_views.by_theme(self.claims)

    @property
    def counts(self) -> dict[str, int]:
        """Number of claims with each verdict."""
        return claim_views.counts(self.claims)

    @property
    def reported_counts(self) -> dict[str, int]:
        """The same against the paper's own tables."""
        return claim_views.counts(self.claims, "reported_verdict")

    @property
    def unsupported(self) -> list[Mapping[str, Any]]:
        """Claims that the paper's own tables do not support."""
        return claim_views.unsupported(self.claims)

    @property
    def weak(self) -> int:
        """Number of reproduced claims that say little."""
        return sum(bool(c["weak"]) for c in self.claims if not c["same_as"] and c["verdict"] == "reproduced")

    @cached_property
    def points(self) -> list[headline.Point]:
        """Numbers of the first screen."""
        declared = self.experiments.tables(self.name)
        uneven = timed_unevenly(self.runs)
        return headline.points(self.layout, self.name, declared.headlines, declared.tables, uneven)

    @property
    def main(self) -> dict[str, Any] | None:
        """Comparisons of the first table."""
        return parts.main_result(self.layout, self.name) if self.experiments.tables(self.name).tables else None

    @cached_property
    def tables(self) -> list[dict[str, Any]]:
        """All tables."""
        declared = self.experiments.tables(self.name).tables
        return [parts.table(self.layout, self.name, table, self.preset) for table in declared]

    @cached_property
    def figures(self) -> list[dict[str, Any]]:
        """All figures."""
        unsampled = unsampled_benchmarks(self.experiments, self.layout.preset, self.name)
        declared = self.experiments.figures(self.name).figures
        return [parts.figure(self.layout, self.name, each, unsampled) for each in declared]

    @property
    def cases(self) -> dict[str, Any] | None:
        """Case studies."""
        return parts.cases(self.layout, self.name, self.experiments, self.preset)

    @property
    def without_counterpart(self) -> dict[str, Any] | None:
        """Reported rows beside which nothing stands."""
        return parts.without_counterpart(self.layout, self.name)

    @property
    def evaluation(self) -> dict[str, Any]:
        """What graders found."""
        graders = evaluation.graders(self.runs) if self.preset.evaluation.lighteval else []
        return evaluation.summary(self.runs) | {"graders": graders}

    @property
    def missing(self) -> tuple[int, float]:
        """Runs of the paper's own grids that are not finished, and the minutes that they take as the finished ones did.

        Runs that the preset cannot make do not count. Minutes are NaN where none is finished.
        """
        cells = self.experiments.cells(self.name, self.experiments.grids(self.name, beyond_paper=False))
        done = {(str(run.cell), int(run.seed)) for run in self.runs.runs.itertuples()}
        wanted = [(cell.name, seed) for cell in cells if self._can_run(cell) for seed in self._seeds(cell)]
        left = sum(run not in done for run in wanted)
        return left, left * float(self.runs.runs["seconds"].median()) / 60 if done else math.nan

    def _seeds(self, cell: Cell) -> list[int]:
        return self.experiments.seeds(cell, self.preset)

    def _can_run(self, cell: Cell) -> bool:
        """True if the preset has the cell's model and data, and an engine that trains it exactly."""
        if cell.model not in self.preset.models or cell.data not in self.preset.data:
            return False
        return not self.experiments.run(cell.id, self.preset.seeds[0], self.preset.name).unsupported
