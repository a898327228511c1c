"""What a rule's wildcards name: runs, protocols, data, fingerprints, and what its job requests."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from redraft.config import Benchmark, Run, fingerprint, sampling_fingerprint
from redraft.config.preset import parted
from redraft.config.requests import Stage, gpus_of
from redraft.config.site import Site
from redraft.ops.workflow.plan import CampaignPlan, problem_files

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
}
"""Stage of the site file, of each rule whose jobs go to Slurm."""


class RuleInputs:
    """Inputs, params and resources of rules at a preset; `wildcards` are Snakemake's, with a string for each name."""

    def __init__(self, plan: CampaignPlan, site: Site) -> None:
        self.plan, self.site = plan, site
        self.experiments, self.preset, self.layout = plan.experiments, plan.preset, plan.layout

    def run(self, wildcards: Any) -> Run:
        """The run of `paper`, `cell` and `seed`."""
        return self.experiments.run(f"{wildcards.paper}/{wildcards.cell}", int(wildcards.seed), self.preset.name)

    def protocol(self, wildcards: Any) -> str:
        """Name of the protocol by which a policy is evaluated: a run's by its paper's."""
        if hasattr(wildcards, "protocol"):
            return wildcards.protocol
        if getattr(wildcards, "kind", "runs") == "initial":
            return wildcards.group
        if hasattr(wildcards, "cell"):
            return self.experiments.protocol_of(self.preset.name, f"{wildcards.paper}/{wildcards.cell}")
        cell = wildcards.policy.partition("/")[0]
        return self.experiments.protocol_of(self.preset.name, f"{wildcards.group}/{cell}")

    def benchmarks(self, wildcards: Any) -> dict[str, Benchmark]:
        """Benchmarks of that protocol."""
        return self.experiments.preset(self.preset.name, self.protocol(wildcards)).benchmarks

    def benchmark_files(self, wildcards: Any) -> list[str]:
        """Files that their problems are read from."""
        return problem_files(*(benchmark.data for benchmark in self.benchmarks(wildcards).values()))

    def sampled(self, wildcards: Any) -> str:
        """Fingerprint of the generations of `seed`'s block."""
        return self._sampled(self.protocol(wildcards), int(wildcards.seed) % self.preset.blocks)

    @cache  # noqa: B019 - one instance lives as long as the process
    def _sampled(self, protocol: str, block: int) -> str:
        return sampling_fingerprint(self.experiments.preset(self.preset.name, protocol).of_block(block))

    def made(self, kind: str, name: str) -> str:
        """Fingerprint of one of the preset's `models` or `data`, by the name of its role and block."""
        role, block = parted(name)
        part = getattr(self.preset.of_block(block), kind)[role]
        return fingerprint(part.model_dump(mode="json", exclude_defaults=True))

    def training_files(self, wildcards: Any) -> list[Path] | list[str]:
        """Files that a run's training problems are read from; under verl, what was read from them."""
        run = self.run(wildcards)
        prepared = self.layout.data(run.data_role) / "data.json"
        return [prepared] if run.engine.kind == "verl" else problem_files(run.data)

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

    def gpus(self, rule: str) -> int:
        """Number of GPUs of a rule's job; a roofline is one GPU's."""
        gpus = gpus_of(STAGES[rule], self.preset.engine)
        return min(gpus, 1) if rule == "calibrate" else gpus

    def resources(self, rule: str) -> dict[str, Any]:
        """A rule's resources on Slurm, of which some follow from the job's models, and its GPUs on this machine."""

        def resource(name: str) -> Callable[[Any], int | str]:
            return lambda wildcards: self._requested(STAGES[rule], *self._models(wildcards))[name]

        names = self.site.resources(STAGES[rule], self.preset)
        if STAGES[rule] == "grade":
            return dict(names)
        return {name: resource(name) for name in names} | {"gpus": self.gpus(rule)}

    @cache  # noqa: B019
    def _requested(self, stage: Stage, *models: str) -> dict[str, int | str]:
        return self.site.resources(stage, self.preset.of_models(*models))

    def _models(self, wildcards: Any) -> list[str]:
        """The papers' models of a model's, a run's or a whole paper's job."""
        if hasattr(wildcards, "role"):
            return [parted(wildcards.role)[0]]
        if hasattr(wildcards, "cell"):
            return [parted(self.run(wildcards).model_role)[0]]
        return sorted({cell.model for cell in self.plan.wanted_cells(wildcards.paper)})
