"""Check before submission that no job requests resources with which it could never start."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.ops.slurm.partitions import SETTING_KEYS, JobRequest, Partition, partitions

GPU_OPTION = "--gpus-per-node="
"""Option of `redraft.config.site` for types of GPUs that the plugin rejects in `gres`."""
StageRequest = tuple[str, JobRequest, str]
"""Stage and request of a job, and the cell or model that it is for (`subject`)."""
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
    dag = workflow.dag
    # A group is one submission with the resources of the whole group.
    # Other rules are of a Snakefile that uses this workflow as a module.
    planned = (job for job in dag.needrun_jobs() if not job.is_local and job.rule.name in stages)
    submitted = [(job, dag.get_job_group(job) or job) for job in planned]
    requests = ((stages[j.rule.name], request_of(whole.resources), subject(j.wildcards_dict)) for j, whole in submitted)
    check_startable(requests, partitions(), site)


def jobs_in(submission: Any) -> list[Any]:
    """Snakemake's jobs of a submission, which may be a group of them."""
    return list(submission.jobs) if submission.is_group() else [submission]


def subject(wildcards: Mapping[str, str]) -> str:
    """Cell or model that a job is for; empty for the jobs of a whole paper."""
    if "cell" in wildcards:
        return f"{wildcards['paper']}/{wildcards['cell']}"
    return wildcards.get("role", "")


def on_slurm(workflow: Any) -> bool:
    """Whether Snakemake's executor is the plugin for Slurm."""
    return hasattr(workflow.scheduler._executor, "run_uuid")


def request_of(resources: Mapping[str, Any]) -> JobRequest:
    """Request of a submitted job by its resources; the plugin rejects options of sbatch that would change it."""
    has = resources.get
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


def largest_requests(requests: Iterable[StageRequest]) -> list[tuple[str, JobRequest, list[str]]]:
    """Of a stage's requests that differ in memory only, as for models of several sizes, keep the largest.

    Returns:
        Stage, request and the subjects of all requests that it is kept for.
    """
    largest: dict[tuple[str, JobRequest], tuple[str, JobRequest, list[str]]] = {}
    # Ascending by memory, so that the last request of a kind is its largest.
    for stage, request, name in sorted(set(requests), key=lambda each: (each[0], each[1].memory_mb, *map(str, each))):
        kind = stage, replace(request, memory_mb=0)
        names = largest[kind][2] if kind in largest else []
        largest[kind] = (stage, request, [*names, name] if name else names)
    return list(largest.values())


def candidates(request: JobRequest, cluster: Mapping[str, Partition]) -> list[Partition]:
    """Known partitions that a job may use."""
    if request.partitions:
        return [cluster[name] for name in request.partitions if name in cluster]
    return [partition for partition in cluster.values() if partition.default]


def never_starts(request: JobRequest, cluster: Mapping[str, Partition]) -> list[Partition]:
    """Partitions that a job may use if it could start in none of them; empty if it could, or if they are unknown."""
    allowed = candidates(request, cluster)
    return allowed if all(partition.shortfalls(request) for partition in allowed) else []


def check_startable(requests: Iterable[StageRequest], cluster: Mapping[str, Partition], site: Path) -> None:
    """Raise a UserError if jobs of a stage could start in none of their partitions; unknown partitions pass."""
    problems = []
    faulty = [each for each in requests if _missing(each[1], cluster) or never_starts(each[1], cluster)]
    for stage, request, names in largest_requests(faulty):
        if missing := _missing(request, cluster):
            problems.append(
                f"{stage} uses partition {', '.join(missing)}, which does not exist; set partition to one of "
                f"{', '.join(sorted(cluster))}"
            )
        else:
            problem = f"{stage} {mismatch(stage, request, candidates(request, cluster), site)}"
            problems.append(f"{problem}\n    these are jobs of {', '.join(names)}" if names else problem)
    if problems:
        raise UserError("\n  ".join(["these jobs could never start, so none was submitted", *problems]), file=site)


def _missing(request: JobRequest, cluster: Mapping[str, Partition]) -> list[str]:
    """Requested partitions that the cluster does not have."""
    return [name for name in request.partitions if cluster and name not in cluster]


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
