"""Inputs, params and resources of rules: runs, protocols, data, declarations, fingerprints and requests for Slurm."""

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

from redraft.config import Benchmark, Experiments, Panel, Run, fingerprint, own, run_fingerprint, sampling_fingerprint
from redraft.config.data import Data
from redraft.config.model import TinyModel
from redraft.config.preset import parted
from redraft.config.requests import Stage, gpus_of
from redraft.config.site import Site
from redraft.config.taken_runs import taken_cells
from redraft.layout import published_data
from redraft.ops.workflow import freeze
from redraft.ops.workflow.plan import CampaignPlan, problem_files
from redraft.provenance import local_content
from redraft.published import curve_file, sweep_file
from redraft.result_files import finished_steps

STAGES: Mapping[str, Stage] = {
    "train": "train",
    "time_runs": "train",
    "calibrate": "train",
    "generate": "evaluate",
    "generate_initial": "evaluate",
    "observe": "evaluate",
    "grade": "grade",
    "lighteval": "grade",
    "diversity": "grade",
    "make_model": "grade",
}
"""Stage of the site file for each rule whose jobs go to Slurm."""
IN_TURN = "in_turn"
"""Resource of which each submission to Slurm has one, so that jobs of a group run one after another."""
NOTHING = "(?!)"
"""Regular expression without a match."""
Kind = Literal["family", "measured", "figures", "cases", "reported"]
"""Kinds of a paper's declarations: see `Declarations.names`."""


class RuleInputs:
    """Inputs, params and resources of rules at a preset; `wildcards` are Snakemake's, all strings."""

    def __init__(self, plan: CampaignPlan, site: Site) -> None:
        self.plan, self.site = plan, site
        self.experiments, self.preset, self.layout = plan.experiments, plan.preset, plan.layout

    def run(self, wildcards: Any) -> Run:
        """Run of the wildcards `paper`, `cell` and `seed`."""
        return self.experiments.run(f"{wildcards.paper}/{wildcards.cell}", int(wildcards.seed), self.preset.name)

    def steps(self, job: Any) -> tuple[str, int, int] | None:
        """Name, finished steps and number of steps of a job of Snakemake that trains; None for other jobs."""
        if job.rule.name != "train":
            return None
        run = self.run(job.wildcards)
        name = f"{run.paper} {run.cell} {run.seed}"
        return name, finished_steps(self.layout.run(f"{run.paper}/{run.cell}", run.seed)), run.steps

    def protocol(self, wildcards: Any) -> str:
        """Name of a policy's evaluation protocol; a run has that of its paper."""
        if hasattr(wildcards, "protocol"):
            return wildcards.protocol
        if getattr(wildcards, "kind", "runs") == "initial":
            return wildcards.group
        if hasattr(wildcards, "cell"):
            return self.experiments.protocol_of(self.preset.name, f"{wildcards.paper}/{wildcards.cell}")
        cell = wildcards.policy.partition("/")[0]
        return self.experiments.protocol_of(self.preset.name, f"{wildcards.group}/{cell}")

    def benchmarks(self, wildcards: Any) -> dict[str, Benchmark]:
        """Benchmarks of the policy's protocol."""
        return self.experiments.preset(self.preset.name, self.protocol(wildcards)).benchmarks

    def benchmark_files(self, wildcards: Any) -> list[str]:
        """Files of user-defined problems of these benchmarks, and the record of those that the hub has."""
        data = [benchmark.data for benchmark in self.benchmarks(wildcards).values()]
        record = str(self.layout.benchmarks(self.protocol(wildcards)))
        return problem_files(*data) + [record] * any(part.kind == "hub" for part in data)

    def sampled(self, wildcards: Any) -> str:
        """Fingerprint of the generations for the block of `seed`, with the content of user-defined problems."""
        # Seeds of a block share their models and problems (`Preset.blocks`).
        sampled = self._sampled(self.protocol(wildcards), int(wildcards.seed) % self.preset.blocks)
        data = [benchmark.data for benchmark in self.benchmarks(wildcards).values()]
        return self._with_content(sampled, *data)

    def run_content(self, wildcards: Any) -> str:
        """Fingerprint of a run, with the content of user-defined problems; see `train`'s weights for the model's."""
        run = self.run(wildcards)
        return self._with_content(run_fingerprint(run), run.data)

    def _with_content(self, identity: str, *data: Data) -> str:
        """A fingerprint, combined with the content of user-defined files if there are any."""
        content = [local_content(part, self.layout.folder) for part in data if part.kind == "file"]
        return fingerprint([identity, *content]) if content else identity

    @cache  # noqa: B019 - one instance lives as long as the process
    def _sampled(self, protocol: str, block: int) -> str:
        return sampling_fingerprint(self.experiments.preset(self.preset.name, protocol).of_block(block))

    def part_fingerprint(self, kind: str, name: str) -> str:
        """Fingerprint of an entry of the preset's `models` or `data`, by its role and block (`role@block`).

        It includes the content of the user's files, so that the entry is made again when they change.
        """
        role, block = parted(name)
        part = getattr(self.preset.of_block(block), kind)[role]
        declared = part.model_dump(mode="json", exclude_defaults=True)
        content = local_content(part, self.layout.model(name))
        return fingerprint([declared, content] if content else declared)

    @cached_property
    def taken(self) -> dict[str, str]:
        """Cells whose runs are another paper's, with the id of its cell."""
        return taken_cells(self.experiments, self.preset)

    @cached_property
    def _taken_generations(self) -> list[str]:
        """Those cells whose policies are evaluated by the same protocol as that cell's."""
        protocol = partial(self.experiments.protocol_of, self.preset.name)
        return [cell for cell, origin in self.taken.items() if protocol(cell) == protocol(origin)]

    def papers_of(self, cells: Literal["trained", "taken", "sampled", "taken_generations"]) -> str:
        """Regular expression of the wildcard `paper` in paths of runs, followed by the cells that a rule is for."""
        of_rule = self._taken_generations if cells in ("sampled", "taken_generations") else list(self.taken)
        ids = "|".join(map(re.escape, of_rule)) or NOTHING
        return rf"({'?=' if cells.startswith('taken') else '?!'}({ids})/)[a-z0-9_]+"

    def origin(self, wildcards: Any) -> Path:
        """Folder of the run that is taken for the run of the wildcards."""
        return self.layout.run(self.taken[f"{wildcards.paper}/{wildcards.cell}"], wildcards.seed)

    def training_files(self, wildcards: Any) -> list[Path] | list[str]:
        """Files of a run's training problems; under verl, or from the hub, the record of the prepared problems."""
        run = self.run(wildcards)
        prepared = self.layout.data(run.data_role) / "data.json"
        return [prepared] if run.engine.kind == "verl" or run.data.kind == "hub" else problem_files(run.data)

    def weights(self, wildcards: Any) -> Path:
        """Weights of a run's initial policy."""
        return self.layout.model(self.run(wildcards).model_role) / "model.safetensors"

    def observed(self, wildcards: Any) -> tuple[Path, Path]:
        """Manifest of the run that the bias laboratory observes, and weights of its initial policy."""
        cell, seed = self.experiments.observed_cell(wildcards.paper), int(wildcards.seed)
        assert cell, "only papers with a laboratory have these files"
        run = self.experiments.run(cell.id, seed, self.preset.name)
        return (
            self.layout.run(cell.id, seed) / "manifest.json",
            self.layout.model(run.model_role) / "model.safetensors",
        )

    def roles(self, *, made: bool) -> str:
        """Regular expression of the models that the workflow trains, or of those that it imports."""
        names = [re.escape(role) for role, model in self.preset.models.items() if isinstance(model, TinyModel) == made]
        return rf"({'|'.join(names)})(@\d+)?" if names else NOTHING

    def gpus(self, rule: str) -> int:
        """Number of GPUs of a rule's job; a roofline is measured on one GPU."""
        gpus = gpus_of(STAGES[rule], self.preset.engine)
        return min(gpus, 1) if rule == "calibrate" else gpus

    def resources(self, rule: str) -> dict[str, Any]:
        """A rule's resources on Slurm, some by the job's models, its GPUs on this machine, and `IN_TURN`."""
        return self._resources(rule) | {IN_TURN: 1}

    def _resources(self, rule: str) -> dict[str, Any]:
        def resource(name: str) -> Callable[[Any], int | str | None]:
            return lambda wildcards: self._requested(STAGES[rule], *self._models(wildcards)).get(name)

        if rule == "make_model":
            made = [role for role, model in self.preset.models.items() if isinstance(model, TinyModel)]
            return dict(self.site.resources("grade", self.preset.of_models(*made))) if made else {}
        names = self.site.resources(STAGES[rule], self.preset)
        if STAGES[rule] == "grade":
            return dict(names)
        # Snakemake drops those without a value, such as the number of tasks of a run on one node.
        several = [name for role in self.preset.engines for name in self._requested(STAGES[rule], role)]
        return {name: resource(name) for name in (*names, *several)} | {"gpus": self.gpus(rule)}

    @cache  # noqa: B019
    def _requested(self, stage: Stage, *models: str) -> dict[str, int | str]:
        return self.site.resources(stage, self.preset.of_models(*models))

    def _models(self, wildcards: Any) -> list[str]:
        """Roles of the models of a job, which belongs to one model, a run or a whole paper."""
        if hasattr(wildcards, "role"):
            return [parted(wildcards.role)[0]]
        if hasattr(wildcards, "cell"):
            return [parted(self.run(wildcards).model_role)[0]]
        return sorted({cell.model for cell in self.plan.wanted_cells(wildcards.paper)})


class Declarations:
    """Files that declare a paper's tables, figures, claims and reported values, or that these show."""

    def __init__(self, experiments: Experiments) -> None:
        self.experiments = experiments

    def files(self, paper: str, *kinds: Kind) -> list[str]:
        """Paths of the files of these kinds, as inputs of a rule."""
        return [str(self.experiments.path(paper, name)) for name in self.names(paper, *kinds)]

    def content(self, paper: str, *kinds: Kind) -> str:
        """Hash of the files of these kinds."""
        return freeze.content_of(*(f"experiments/{paper}/{name}" for name in self.names(paper, *kinds)))

    def names(self, paper: str, *kinds: Kind) -> list[str]:
        """Names of the files of these kinds in the paper's folder.

        `family`: tables and claims, whose p-values are corrected together. `measured`: these and figures, for the
        measured quantities. `figures`: figures, and tables if they name the model of a published sweep. `cases`: case
        studies, which are declared with the figures. `reported`: transcribed values, if there are any.
        """
        names: list[str] = []
        for kind in kinds:
            if kind == "reported":
                names += self._reported(paper)
                continue
            parts = ["tables", "claims"] if kind in ("family", "measured") else ["figures"]
            if kind == "measured":
                parts.append("figures")
            if kind == "figures" and any(panel.roofline for panel in self._panels(paper)):
                parts.append("tables")
            declared = [self.experiments.declaration(paper, part) for part in parts]
            if not any(declared) and self.experiments.cell_file(paper).bases:
                declared.append(own.CELLS)  # a user-defined file of cells implies default tables and figures
            names += dict.fromkeys(filter(None, declared))
        return names

    def _reported(self, paper: str) -> list[str]:
        vocabulary = self.experiments.reported(paper)
        if not vocabulary:
            return []
        numbers = {table.reported_number for table in self.experiments.tables(paper).tables}
        if vocabulary.times:
            numbers.add(vocabulary.times.table)
        known = sorted(number for number in numbers if number is not None)
        return ["reported.yaml", *(f"reported/table{number:02d}.csv" for number in known)]

    def published_curves(self, paper: str) -> list[Path]:
        """Existing files of the authors that tables replay."""
        tables = [table for table in self.experiments.tables(paper).tables if table.kind == "published"]
        files = (curve_file(table.folder, row.file, optional=row.optional) for table in tables for row in table.rows)
        return [file for file in files if file]

    def published_points(self, paper: str) -> list[Path]:
        """Existing files of the authors that figures show."""
        panels = self._panels(paper)
        files = [published_data() / panel.published.file for panel in panels if panel.published]
        curves = [
            curve_file(panel.curves.folder, name)
            for panel in panels
            if panel.curves
            for name in panel.curves.files.values()
        ]
        sweeps = {sweep_file(panel.roofline) for panel in panels if panel.roofline}
        return [file for file in (*files, *curves, *sweeps) if file and file.exists()]

    def _panels(self, paper: str) -> list[Panel]:
        return [panel for figure in self.experiments.figures(paper).figures for panel in figure.panels]
