"""Plan of a call of Snakemake: its papers, cells, seeds, runs and parts of the report, and the cells left out.

The plan depends on Snakemake's targets, its `--config` and the environment that jobs inherit.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from redraft.config import Cell, Data, Experiments, Preset, Run, own
from redraft.config.base import Config, invalid
from redraft.config.read import check_known, parse
from redraft.config.taken_runs import sources_of
from redraft.config.trends import coordinates
from redraft.config.windows import check_windows
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.messages import echo
from redraft.ops.sizing.gpu_memory import misfit_error
from redraft.ops.workflow import freeze
from redraft.result_files import read_left_out

PAPERS = "REDRAFT_PAPERS"
"""Environment variable with the papers, from the main process to its jobs' processes, which have other targets."""
CONFIG = "--config"
"""Name of the option, in place of a file in messages."""
WITHOUT = "without_unfitting"
"""Key of `--config` by which a campaign goes on without the cells that do not fit."""
DOES_NOT_FIT = "does not fit"
Runs = list[tuple[Cell, int]]


class Call(Config):
    """Values of `--config`."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    preset: str
    """Name of the preset."""
    seeds: int | None = Field(default=None, ge=1, le=1000)
    """Number of seeds, counted from 0; the preset's seeds if None."""
    papers: str = ""
    """Names of papers, separated by commas; if empty, the target and the preset decide."""
    grids: str = ""
    """Names of grids of these papers, separated by commas; if empty, the target and the preset decide."""
    cells: str = ""
    """User-defined file of cells (`redraft.config.own`)."""
    without_unfitting: bool = False
    """Leave out cells whose runs do not fit into their GPUs or onto the cluster's nodes, instead of rejecting all."""
    container: str = ""
    """Image in which jobs run: a file or a URL (`redraft.ops.workflow.containers`)."""

    @field_validator("preset", "papers", "grids", "cells", "container", mode="before")
    @classmethod
    def _is_text(cls, value: Any, info: ValidationInfo) -> Any:
        # Snakemake reads 1.10 as 1.1, and 007 as 7. Names of presets and papers are no such texts, but years may be.
        is_path = info.field_name in ("cells", "container")
        if isinstance(value, float) or (is_path and isinstance(value, int)):
            raise invalid("this was read as a number", "a text" + ", such as ./1.10 for a file of that name" * is_path)
        return value

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Call":
        """Parse Snakemake's `config`; raises a UserError for an unknown key or an invalid value."""
        return parse(cls, config, "--config")

    def register_cells(self, code: Path) -> None:
        """Register the user-defined file of cells for this process and its jobs.

        In a frozen copy of the code this is the copied file.
        """
        if self.cells:
            file = Path(self.cells)
            os.environ[own.VARIABLE] = str(code / own.place(file) if freeze.frozen(code) else file)
            own.cells_file()


class CampaignPlan:
    """Plan of a call at a preset.

    Args:
        call: values of `--config`.
        experiments: experiment files.
        targets: returns the rules and files that the call names; Snakemake knows them after reading all rules.
        environment: variables that jobs inherit.
        main: false in a job's process, which reads the papers from the environment and skips the checks.
        check: further check of a paper's declarations, by code that this package does not import.
        fault: returns why a run does not fit, with what would fit; empty if it fits (`redraft.ops.workflow.fit`).

    Raises:
        UserError: for an unknown preset or paper; from every method, for mistakes in experiment files.
    """

    def __init__(
        self,
        call: Call,
        experiments: Experiments,
        targets: Callable[[], Container[str]],
        environment: MutableMapping[str, str],
        main: bool,
        check: Callable[[Experiments, str], None] = lambda *_: None,
        fault: Callable[[Run], str] = lambda _: "",
    ) -> None:
        self.call, self.experiments, self.targets = call, experiments, targets
        self.environment, self.main, self.check, self.fault = environment, main, check, fault
        preset = experiments.preset(call.preset)
        if call.seeds:
            # Without `more_seeds`, which would add to the requested number.
            preset = preset.model_copy(update={"seeds": list(range(call.seeds)), "more_seeds": {}})
        self.preset: Preset = preset
        self.layout = Layout(preset.name)
        self.named = self._named_papers()
        if main:
            self._check_calibrations()
            self._check_lighteval()
            # Targets are unknown until all rules are read; papers that only they name are checked in `papers`.
            for paper in self.named or preset.first or preset.default:
                self._check_paper(paper)

    def _named_papers(self) -> list[str]:
        """Papers that the call names; `cells=FILE` without `papers` names the paper of that file."""
        file, user_defined = self.experiments.named, self.experiments.own_papers
        requested = self.call.papers.split(",") if self.call.papers else [own.paper_of(file)] if file else []
        if "" in requested:
            raise UserError("a name is empty", file=CONFIG, key="papers", value=self.call.papers)
        others = [paper for paper in requested if paper not in user_defined]
        try:
            known = self.preset.papers(others) if others else []
        except ValueError as error:
            raise UserError(str(error), file=CONFIG, key="papers") from None
        return known + [paper for paper in user_defined if paper in requested]

    def _check_lighteval(self) -> None:
        """Reject a preset that grades with lighteval although none of its papers has a benchmark of instructions."""
        # Of all papers: a call may name only those without.
        of_papers = (self.experiments.preset_of(self.preset.name, paper) for paper in self.preset.default)
        found = (benchmark for preset in of_papers for benchmark in preset.benchmarks.values())
        if self.preset.evaluation.lighteval and all(benchmark.grading != "instructions" for benchmark in found):
            raise UserError(
                "lighteval grades instructions only, and none of the benchmarks has instructions",
                file=f"preset {self.preset.name}",
                key="evaluation.lighteval",
                value=True,
                allowed="true only with a benchmark of instructions, such as ifeval",
            )

    def _check_calibrations(self) -> None:
        """Reject a preset with a missing calibration file before any job starts."""
        # Engines under verl have no such setting.
        for role, file in getattr(self.preset.engine, "calibrations", {}).items():
            if not Path(file).exists():
                raise UserError(
                    "no such file; without this key the workflow measures the roofline",
                    file=f"preset {self.preset.name}",
                    key=f"engine.calibrations.{role}",
                    value=file,
                    allowed="a file of `redraft calibrate`",
                )

    @cache  # noqa: B019 - one instance lives as long as the process
    def _check_paper(self, paper: str) -> None:
        """Read declarations that rules need only later, so that a mistake in them ends the call at once."""
        check_paper(self.experiments, self.preset, paper)
        self.check(self.experiments, paper)

    @cached_property
    def papers(self) -> list[str]:
        """Papers of the call: the named ones, else those of its target."""
        if self.main or PAPERS not in self.environment:
            every = any(target in self.targets() for target in ("reproduction", "extras"))
            papers = self.named
            if not papers:  # user-defined papers are included once they have a finished run
                runs = self.layout.folder / "runs"
                finished = [p for p in self.experiments.own_papers if (runs / p).is_dir() and self._finished_runs(p)]
                papers = self.preset.papers([] if every else self.preset.first) + finished
            if "laboratory" in self.targets():
                papers = self._with_laboratory(papers)
            for paper in papers:
                self._check_paper(paper)
            self._check_grids(papers)
            self.environment[PAPERS] = ",".join(papers)
        return self.environment[PAPERS].split(",")

    def _with_laboratory(self, papers: list[str]) -> list[str]:
        """Add the papers with a laboratory, unless the call names papers."""
        known = dict.fromkeys([*self.preset.papers([]), *papers])
        observed = [paper for paper in known if self.experiments.observed_cell(paper)]
        papers = papers if self.named else list(dict.fromkeys([*papers, *observed]))
        if not set(papers) & set(observed):
            raise UserError(
                "none of these papers has a laboratory",
                file=CONFIG,
                key="papers",
                value=",".join(papers),
                allowed=observed,
            )
        return papers

    def _finished_runs(self, paper: str) -> Runs:
        return [
            (cell, seed)
            for cell in self.experiments.cells(paper)
            for seed in sorted(self.layout.seeds(cell.id))
            if self._is_finished(cell.id, seed) and not self.experiments.misfit(cell.id, self.preset.name)
        ]

    def _is_finished(self, cell: str, seed: int) -> bool:
        return (self.layout.run(cell, seed) / "scores.json").exists()

    def _target_cells(self, paper: str) -> list[Cell]:
        """Cells of the call's or the target's grids, and the base cells that they start from.

        `snakemake reproduction` includes all grids that the paper reports, `snakemake extras` the default grids and
        those beyond the paper, and any other target the preset's default grids. Another target changes the inputs of
        `collect`, so that `collect` and the following rules run again. This takes seconds and loses nothing, since
        `collect` gathers every finished run.
        """
        targets = target_grids(self.experiments, self.preset, paper, self.targets())
        return target_cells(self.experiments, self.preset, paper, self._named_grids(paper) or targets)

    def _named_grids(self, paper: str) -> list[str]:
        """Grids of a paper that the call names; empty if it names none."""
        own = self.experiments.grids_of(paper)
        return [grid for grid in self.call.grids.split(",") if grid in own]

    def _check_grids(self, papers: list[str]) -> None:
        """Raise a UserError if no paper of the call has one of the grids that it names, or a paper has none of them."""
        known = {paper: self.experiments.grids_of(paper) for paper in papers if not self._only_finished(paper)}
        named = [grid for grid in self.call.grids.split(",") if grid]
        if self.call.grids and not named:
            every = [grid for grids in known.values() for grid in grids]
            raise UserError("this names no grid", file=CONFIG, key="grids", value=self.call.grids, allowed=every)
        check_known(named, {grid: None for grids in known.values() for grid in grids}, "no such grid", CONFIG, "grids")
        for paper, grids in known.items():
            if named and not self._named_grids(paper):
                raise UserError(
                    f"{paper} has none of these grids",
                    file=CONFIG,
                    key="grids",
                    value=self.call.grids,
                    allowed=grids,
                    hint="name only papers that have one: papers=NAME",
                )

    @cache  # noqa: B019
    def reason_to_leave_out(self, cell_id: str) -> str:
        """Reason why a cell cannot be trained at this preset on this machine; empty if it can.

        A missing file of user-made problems leaves out its cell, so that the paper's other cells still run. For a cell
        of the default grids the missing file is a mistake instead, and Snakemake names the file.
        """
        experiments, preset = self.experiments, self.preset
        if reason := experiments.misfit(cell_id, preset.name) or self._lacking(cell_id):
            return reason
        # Any seed will do: seeds change random streams and blocks, not sizes or files.
        run = experiments.run(cell_id, preset.seeds[0], preset.name)
        missing = [file for file in problem_files(run.data) if not Path(file).exists()]
        if run.unsupported or (missing and cell_id not in self._default_cells(run.paper)):
            return run.unsupported or f"{missing[0]} does not exist"
        unfitting = self.call.without_unfitting and self._unfitting(cell_id)
        return f"{DOES_NOT_FIT}: {unfitting}" if unfitting else ""

    def _lacking(self, cell_id: str) -> str:
        """Model or data of a cell that the preset lacks; empty for cells of default grids, where it is a mistake."""
        cell = self.experiments.cell(cell_id)
        lacking = self.preset.lacks(cell)
        return "" if lacking and cell_id in self._default_cells(cell.paper) else lacking

    @cache  # noqa: B019
    def _unfitting(self, cell_id: str) -> str:
        """Reason why an unfinished cell does not fit; a job's process reads it from the main process's file."""
        if not self.main:
            return self._recorded.get(cell_id, "")
        run = self.experiments.run(cell_id, self.preset.seeds[0], self.preset.name)
        seeds = self.experiments.seeds(self.experiments.cell(cell_id), self.preset)
        # Finished runs stay in the tables, also on machines where they would not fit.
        return "" if all(self._is_finished(cell_id, seed) for seed in seeds) else self.fault(run)

    @cached_property
    def _recorded(self) -> dict[str, str]:
        return read_left_out(self.layout.left_out)

    @cached_property
    def unfitting(self) -> dict[str, str]:
        """The target's cells that this call leaves out since they do not fit, with the reason."""
        return {
            cell: self._unfitting(cell) for cell, reason in self.left_out().items() if reason.startswith(DOES_NOT_FIT)
        }

    @cache  # noqa: B019
    def _default_cells(self, paper: str) -> set[str]:
        """Cells of the preset's default grids of a paper."""
        experiments = self.experiments
        return {cell.id for cell in experiments.cells(paper, experiments.default_grids(self.preset, paper))}

    def wanted_cells(self, paper: str) -> list[Cell]:
        """Cells that a paper's tables wait for: the target's cells that can be trained here."""
        return [cell for cell in self._target_cells(paper) if not self.reason_to_leave_out(cell.id)]

    def left_out(self) -> dict[str, str]:
        """The target's cells of all papers that cannot be trained here, with the reason."""
        cells = (cell.id for paper in self.papers for cell in self._target_cells(paper))
        return {cell: reason for cell in cells if (reason := self.reason_to_leave_out(cell))}

    @cache  # noqa: B019
    def check_runs(self) -> None:
        """Print the cells left out. With verl, let it check all runs in one process, since its import takes seconds.

        Raises:
            SystemExit: if runs do not fit, or verl rejects one; the message is printed.
        """
        if not self.main:
            return
        for cell, reason in self.left_out().items():
            echo(f"left out: {cell}: {reason}", err=True)
        try:
            self._check_fits()
        except UserError as error:
            # Printed here, since Snakemake would wrap an exception of an input function in an error of its own.
            echo(f"error: {error}", err=True)
            sys.exit(2)
        if self.preset.engine.kind == "verl":
            cells = [cell.id for paper in self.papers for cell in self.wanted_cells(paper)]
            command = ["redraft", "stage", "redraft.train.verl.config:check_cells", self.preset.name, *cells]
            if subprocess.run(command, check=False).returncode:
                sys.exit(2)

    def _check_fits(self) -> None:
        """Raise a UserError if a wanted cell does not fit, or if no cell of a paper can be run."""
        wanted = {paper: [cell.id for cell in self.wanted_cells(paper)] for paper in self.papers}
        reasons = {cell: reason for cells in wanted.values() for cell in cells if (reason := self._unfitting(cell))}
        if reasons:
            raise misfit_error(reasons, self.preset.name, f"`--config {WITHOUT}=true` goes on without these cells; ")
        rest = [paper for paper, cells in wanted.items() if cells]
        for paper in (paper for paper, cells in wanted.items() if not cells and not self._only_finished(paper)):
            reasons = {cell: why for cell, why in self.left_out().items() if cell.partition("/")[0] == paper}
            if reasons.keys() & self.unfitting.keys():
                hint = f"name the other papers: papers={','.join(rest)}" if rest else None
                raise UserError("no cell of this paper fits", file=CONFIG, key=WITHOUT, value=paper, hint=hint)
            if reasons and not self._finished_runs(paper):
                hint = "; ".join(f"{cell}: {why}" for cell, why in list(reasons.items())[:3])
                message = f"no cell of {paper} can be run at preset {self.preset.name}"
                raise UserError(message, file=CONFIG, key="papers", value=paper, hint=hint)

    def _only_finished(self, paper: str) -> bool:
        """Whether to include only finished runs of a paper: for a user-defined paper that the call does not name."""
        return paper in self.experiments.own_papers and paper not in self.named

    def runs(self, paper: str) -> Runs:
        """Cells and seeds of all runs that a paper's tables wait for.

        With finished runs only, this adds the runs of their base cells with the same seeds, if those are finished or
        belong to another paper's runs.
        """
        if not self._only_finished(paper):
            return [(c, seed) for c in self.wanted_cells(paper) for seed in self.experiments.seeds(c, self.preset)]
        done = self._finished_runs(paper)
        others = {
            (cell.id, seed)
            for other in self.papers
            if not self._only_finished(other)
            for cell, seed in self.runs(other)
        }
        bases = sorted({(cell.base, seed) for cell, seed in done if cell.base})
        wanted = [base for base in bases if base in others or self._is_finished(*base)]
        return done + [(self.experiments.cell(base), seed) for base, seed in wanted]

    def run_folders(self, paper: str) -> list[Path]:
        """Folders of all runs that a paper's tables wait for, after `check_runs`."""
        self.check_runs()
        return [self.layout.run(cell.id, seed) for cell, seed in self.runs(paper)]

    def initial_folders(self, paper: str) -> list[Path]:
        """Folders of the evaluations of these runs' initial policies."""
        policies = (
            (self.experiments.protocol_of(self.preset.name, cell.id), self.preset.role(cell.model, seed), seed)
            for cell, seed in self.runs(paper)
        )
        # Cells with the same model share the evaluation of its initial policy.
        return [self.layout.initial(*policy) for policy in dict.fromkeys(policies)]

    def timing_files(self, paper: str) -> list[Path]:
        """Files of timed repetitions that `collect` waits for: those of all seeds with the target `timing`, else none.

        Existing ones are collected in any case. As inputs, another target's cells would make them again.
        """
        return [self.layout.timing(paper, seed) for seed in self.preset.seeds] if "timing" in self.targets() else []

    def laboratory_files(self) -> list[Path]:
        """Files of the bias laboratory of the papers that have one."""
        observed = [
            self.layout.observed(paper, seed)
            for paper in self.papers
            if (cell := self.experiments.observed_cell(paper)) and not self.reason_to_leave_out(cell.id)
            for seed in self.preset.seeds
        ]
        return [self.layout.distributions, *observed] if observed else []

    def probed_files(self, paper: str) -> list[Path]:
        """Grades of initial policies on training prompts, for figures that show them, if the preset samples them."""
        panels = [panel for figure in self.experiments.figures(paper).figures for panel in figure.panels]
        shown = {cell for panel in panels if panel.epochs == "initial" for cell in panel.cells}
        roles = sorted({cell.model for cell in self.wanted_cells(paper) if cell.name in shown})
        return [
            self.layout.initial(self.preset.probe, self.preset.role(role, seed), seed) / "grades.parquet"
            for role in roles
            for seed in self.preset.seeds
            if self.preset.probe
        ]

    def case_run(self, paper: str) -> Path:
        """Folder of the run that provides a paper's case studies; raises a UserError if the paper declares none."""
        if not (cases := self.experiments.figures(paper).cases):
            raise UserError("this paper has no case studies", key="paper", value=paper)
        return self.layout.run(f"{paper}/{cases.cell}", self.preset.seeds[0])

    def _grader_comparisons(self, paper: str) -> list[Path]:
        """Comparisons of two graders of IFEval for all evaluated policies, if the preset requests them."""
        benchmarks = self.experiments.preset_of(self.preset.name, paper).benchmarks.values()
        if not self.preset.evaluation.lighteval or all(b.grading != "instructions" for b in benchmarks):
            return []
        return [folder / "ifeval.json" for folder in self.run_folders(paper) + self.initial_folders(paper)]

    def report_parts(self) -> Iterator[Path]:
        """Inputs of the report: tables, figures, claims, case studies and grader comparisons of all papers.

        The laboratory's files are included with the target `laboratory`, or if they exist. Comparisons of
        evaluations (`redraft sensitivity`) are included if they exist.
        """
        experiments, layout = self.experiments, self.layout
        yield from layout.sensitivities
        yield from (file for file in self.laboratory_files() if "laboratory" in self.targets() or file.exists())
        for paper in self.papers:
            yield layout.collected(paper) / "runs.parquet"
            yield from self._grader_comparisons(paper)
            reported = experiments.reported(paper)
            if experiments.tables(paper).tables or (reported and reported.times):
                yield layout.tables(paper)
            if experiments.figures(paper).figures:
                yield layout.figures(paper)
            cases = experiments.figures(paper).cases
            if cases and cases.cell in [cell.name for cell in self.wanted_cells(paper)]:
                yield layout.cases(paper).with_suffix(".html")
            if experiments.claims(paper).claims:
                yield layout.claims(paper)


def target_grids(experiments: Experiments, preset: Preset, paper: str, targets: Container[str]) -> list[str] | None:
    """Names of a paper's grids that targets of Snakemake include; None for all grids."""
    default, grids = experiments.default_grids(preset, paper), []
    if "reproduction" in targets:
        grids += experiments.grids(paper, beyond_paper=False)
    if "extras" in targets:
        grids += (default or []) + experiments.grids(paper, beyond_paper=True)
    return list(dict.fromkeys(grids)) or default


def target_cells(experiments: Experiments, preset: Preset, paper: str, grids: list[str] | None) -> list[Cell]:
    """Cells of a paper's grids, and the base cells that they start from; some may not fit the preset."""
    cells = experiments.cells(paper, grids)
    fitting = [cell for cell in cells if not experiments.misfit(cell.id, preset.name)]
    return cells + [experiments.cell(base) for base in dict.fromkeys(cell.base for cell in fitting) if base]


def problem_files(*data: Data) -> list[str]:
    """Files of user-defined problems; rules need them as inputs, since fingerprints contain only their paths."""
    return [part.path for part in data if part.kind == "file"]


def check_paper(experiments: Experiments, preset: Preset, paper: str) -> None:
    """Read all declarations of a paper, and check that its default runs at a preset are valid and have their files.

    Raises:
        UserError: for the first mistake.
    """
    for cell in experiments.cells(paper, experiments.default_grids(preset, paper)):
        if not experiments.misfit(cell.id, preset.name):
            experiments.run(cell.id, preset.seeds[0], preset.name)
            experiments.check_sources(cell.id, preset.name)
            experiments.seeds(cell, preset)
    for part in (experiments.tables, experiments.figures, experiments.claims, experiments.reported):
        part(paper)
    check_windows(experiments, preset, paper)
    coordinates(experiments, preset, paper)
    experiments.observed_cell(paper)
    sources_of(experiments, paper)
    from redraft.published import check_published  # not at the top: `redraft list` works without NumPy

    check_published(experiments, paper)
