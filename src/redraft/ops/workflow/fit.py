"""Cells whose runs do not fit: into the memory of their GPUs or, on Slurm, onto any node of their partitions."""

from collections.abc import Iterable, Mapping
from typing import Any

from redraft.config import Preset, Run
from redraft.config.preset import parted
from redraft.config.requests import Stage
from redraft.config.site import Site
from redraft.config.trainer import Engine, VerlEngine
from redraft.files import write_json
from redraft.layout import Layout
from redraft.ops.sizing.gpu_memory import fitting_text, memory_fault
from redraft.ops.slurm.feasibility import never_starts, request_of
from redraft.ops.slurm.partitions import JobRequest, Partition, partitions

OF_NODES = {"cpus", "memory_mb", "gpus", "nodes"}
"""Fields of a request that follow from a run's model and engine. The site file sets the others for all runs."""


class Fit:
    """Check of runs against GPUs and, for a call that submits jobs, against the cluster's nodes.

    Args:
        preset: preset of the campaign.
        site: settings of the site.
        cluster: partitions of the cluster by name; empty if no jobs are submitted, or if they are unknown.
    """

    def __init__(self, preset: Preset, site: Site, cluster: Mapping[str, Partition]) -> None:
        self.preset, self.site, self.cluster = preset, site, cluster

    def fault(self, run: Run) -> str:
        """Reason why a run does not fit, with what would fit; empty if it fits or if that is unknown."""
        on_gpus = run.engine.gpus > 0 and run.engine.device != "cpu"
        found = memory_fault(run, lambda engine: self._starts(run, engine)) if on_gpus else ""
        return found or self._fault_of_jobs(run)

    def _fault_of_jobs(self, run: Run) -> str:
        stages: tuple[Stage, ...] = ("train", "evaluate")
        for stage in stages:
            request = self._request(stage, run, run.engine)
            if allowed := self._too_small(request):
                engines = fitting_text(run, lambda engine: self._starts(run, engine)) if stage == "train" else ""
                nodes = "; ".join(map(str, allowed))
                return "; ".join(filter(None, [f"its job to {stage} requests {request}; {nodes}", engines]))
        return ""

    def _too_small(self, request: JobRequest) -> list[Partition]:
        """Partitions of which no node has what a job requests."""
        allowed = never_starts(request, self.cluster)
        # A partition that is only too short in time is the site file's matter, not the cell's.
        short = [OF_NODES.intersection(partition.shortfalls(request)) for partition in allowed]
        return allowed if all(short) else []

    def _starts(self, run: Run, engine: VerlEngine) -> bool:
        return not self._too_small(self._request("train", run, engine))

    def _request(self, stage: Stage, run: Run, engine: Engine) -> JobRequest:
        preset = self.preset.of_models(parted(run.model_role)[0]).model_copy(update={"engine": engine})
        return request_of(self.site.resources(stage, preset))


def cluster_of(arguments: Iterable[str]) -> dict[str, Partition]:
    """Partitions of the cluster to which a call of Snakemake submits jobs, also as a dry run; empty for other calls."""
    return partitions() if submits(arguments) else {}


def submits(arguments: Iterable[str]) -> bool:
    """Whether a call of Snakemake with these arguments submits jobs to Slurm, or would without `--dry-run`.

    Snakemake (9.27) knows its executor only after it has read the rules, and a dry run replaces it.
    """
    return parsed_arguments(arguments).executor == "slurm"


def parsed_arguments(arguments: Iterable[str]) -> Any:
    """Snakemake's options by its own parser, with those of profiles; its line about profiles is not printed again."""
    from contextlib import redirect_stderr
    from io import StringIO

    from snakemake.cli import parse_args

    with redirect_stderr(StringIO()):
        return parse_args(list(arguments))[1]


def record_left_out(layout: Layout, cells: Mapping[str, str]) -> None:
    """Write the cells that this call leaves out since they do not fit, with reasons, for jobs, status and report."""
    if cells:
        write_json(layout.left_out, dict(cells))
    else:
        layout.left_out.unlink(missing_ok=True)
