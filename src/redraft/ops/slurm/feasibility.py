"""Check before submission that no job requests resources with which it could never start."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.ops.slurm.partitions import SETTING_KEYS, JobRequest, Partition, partitions

GPU_OPTION = "--gpus-per-node="
"""Option of `redraft.config.site` for types of GPUs that the plugin rejects in `gres`."""
RETRIES_HINT = "a run resumes from its last checkpoint in the next attempt, so its limit may be shorter: add --retries"


def check_requests(workflow: Any, stages: Mapping[str, str], site: Path) -> None:
    """Reject a campaign with jobs that could never start on this cluster; call this in `onstart`.

    Args:
        workflow: Snakemake's workflow.
        stages: stage of the site file by rule.
        site: the site file, for the message.

    Raises:
        UserError: if there are such jobs, with their requests, the partition's resources, and the keys to set.
    """
    if not on_slurm(workflow):
        return
    submitted = (job for job in workflow.dag.needrun_jobs() if not job.is_local)
    requests = ((stages[job.rule.name], request_of(job)) for job in submitted)
    check_startable(largest_requests(requests), partitions(), site)


def on_slurm(workflow: Any) -> bool:
    """Whether Snakemake's executor is the plugin for Slurm."""
    return hasattr(workflow.scheduler._executor, "run_uuid")


def request_of(job: Any) -> JobRequest:
    """Request of a submitted job; the plugin rejects options of sbatch that would change it."""
    has = job.resources.get
    gres = has("gres") or next(
        (f"gpu:{option.partition('=')[2]}" for option in (has("slurm_extra") or "").split() if GPU_OPTION in option),
        "gpu:0",
    )
    _, *model, gpus = gres.split(":")
    return JobRequest(
        minutes=has("runtime", 0),
        cpus=has("cpus_per_task", 1),
        memory_mb=has("mem_mb", 0),
        gpus=int(gpus),
        gpu_model="".join(model),
        nodes=has("nodes", 1),
        partitions=tuple(filter(None, (has("slurm_partition") or "").split(","))),
        qos=has("qos") or "",
    )


def largest_requests(requests: Iterable[tuple[str, JobRequest]]) -> list[tuple[str, JobRequest]]:
    """Of a stage's requests that differ in memory only, as for models of several sizes, keep the largest."""
    largest: dict[tuple[str, JobRequest], tuple[str, JobRequest]] = {}
    for stage, request in sorted(set(requests), key=lambda each: (each[0], each[1].memory_mb, str(each[1]))):
        largest[stage, replace(request, memory_mb=0)] = (stage, request)
    return list(largest.values())


def candidates(request: JobRequest, cluster: Mapping[str, Partition]) -> list[Partition]:
    """Known partitions that a job may use."""
    if request.partitions:
        return [cluster[name] for name in request.partitions if name in cluster]
    return [partition for partition in cluster.values() if partition.default]


def check_startable(requests: Iterable[tuple[str, JobRequest]], cluster: Mapping[str, Partition], site: Path) -> None:
    """Raise a UserError if jobs of a stage could start in none of their partitions; unknown partitions pass."""
    problems = []
    for stage, request in requests:
        allowed = candidates(request, cluster)
        if missing := [name for name in request.partitions if cluster and name not in cluster]:
            problems.append(
                f"{stage} uses partition {', '.join(missing)}, which does not exist; set partition to one of "
                f"{', '.join(sorted(cluster))}"
            )
        elif allowed and all(partition.shortfalls(request) for partition in allowed):
            problems.append(f"{stage} {mismatch(stage, request, allowed, site)}")
    if problems:
        raise UserError("\n  ".join(["these jobs could never start, so none was submitted", *problems]), file=site)


def mismatch(
    stage: str, request: JobRequest, allowed: Sequence[Partition], site: Path, keys: Sequence[str] = ()
) -> str:
    """Lines with a job's request, its partitions, and the keys to set, including `keys`."""
    short = dict.fromkeys(SETTING_KEYS[field] for partition in allowed for field in partition.shortfalls(request))
    to_set = [key for key in dict.fromkeys([*short, *keys]) if key != "partition"]
    names = [f"{key} of the preset" if key.startswith("engine.") else f"stages.{stage}.{key}" for key in to_set]
    alternative = f", or else stages.{stage}.partition," if names else f"stages.{stage}.partition"
    lines = [f"requests {request}", *(f"  {partition}" for partition in allowed)]
    lines.append(f"  set {' and '.join(names)}{alternative} in {site}")
    if "runtime" in to_set and stage == "train":
        lines.append(f"  ({RETRIES_HINT})")
    return "\n  ".join(lines)
