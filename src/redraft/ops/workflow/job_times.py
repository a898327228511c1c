"""Wall times of a campaign's jobs: expected before they run, recorded by Snakemake, and summed up after the call."""

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from redraft.config import Preset
from redraft.layout import Layout, code_root
from redraft.ops.slurm.capacity import shared_amounts, used_amounts
from redraft.ops.slurm.feasibility import request_of
from redraft.ops.slurm.partitions import Partition, partitions
from redraft.ops.workflow import pace
from redraft.ops.workflow.time_left import JOBS, USUAL, Durations, Job, JobGraph, Work

SECONDS = "workflows/seconds.yaml"
"""Mean wall time of a job in seconds by preset and rule, measured on one machine, and that machine's pace."""


Sizes = Callable[[str], float]
"""Size of a run of a cell, `paper/cell`, relative to a usual one (`redraft.ops.sizing.run_size.RunSizes`)."""


def announce_jobs(workflow: Any, preset: Preset, sizes: Sizes) -> None:
    """Pass the planned jobs and their expected times to Snakemake's logger plugin; call this in `onstart`."""
    jobs = {workflow.dag.jobid(job): job for job in workflow.dag.needrun_jobs()}

    def recorded(number: int) -> float | None:
        return next((seconds for _, seconds in recorded_seconds(workflow, [jobs[number]])), None)

    for handler in workflow.logger_manager.get_log_handlers():
        if hasattr(handler, "expect"):
            handler.expect(job_graph(workflow, sizes), durations(workflow, preset, sizes), recorded)


def work_of(job: Any, sizes: Sizes) -> Work:
    """What a job of Snakemake works on: only times of training follow the size of the run."""
    if job.rule.name != "train":
        return USUAL
    cell = f"{job.wildcards.paper}/{job.wildcards.cell}"
    return Work(cell, sizes(cell))


def durations(workflow: Any, preset: Preset, sizes: Sizes) -> Durations:
    """Wall times by rule, from the priors and from finished jobs of the same results."""
    known = Durations(priors(preset))
    for job, seconds in recorded_seconds(workflow, workflow.dag.jobs):
        known.add(job.rule.name, seconds, work_of(job, sizes))
    return known


def priors(preset: Preset, *, scaled: bool = True) -> dict[str, float]:
    """Mean wall time of a job in seconds by rule, from `SECONDS`; empty for a preset that was not measured.

    Scaling to this machine's pace needs numpy, and torch for bfloat16.
    """
    file = code_root() / SECONDS
    measured = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {"presets": {}}
    seconds = measured["presets"].get(preset.name)
    if not seconds or not scaled:
        return dict(seconds or {})
    return pace.scaled(seconds, measured["work"], preset.engine.dtype)


def job_graph(workflow: Any, sizes: Sizes, jobs: Iterable[Any] | None = None) -> JobGraph:
    """Jobs by Snakemake's numbers, and the resources that they share.

    These are this machine's cores and GPUs, and on a cluster the jobs at a time and what Slurm's partitions have.

    Args:
        workflow: Snakemake's workflow.
        sizes: sizes of runs.
        jobs: jobs of Snakemake; by default those that will run and have not ended.
    """
    resources = workflow.resource_settings
    # Calls that submit jobs need not set `cores`.
    cores = resources.cores or resources.local_cores or os.cpu_count() or 1
    gpus = workflow.scheduler.global_resources.get("gpus", sys.maxsize)
    capacity = {"cores": cores, "gpus": gpus, JOBS: workflow.nodes or sys.maxsize}
    planned = list(workflow.dag.needrun_jobs() if jobs is None else jobs)
    submitted = [job for job in planned if not job.rule.norun and not workflow.is_local(job.rule)]
    cluster = partitions() if submitted else {}
    if cluster:
        capacity |= shared_amounts((request_of(job.resources) for job in submitted), cluster)
    found = {workflow.dag.jobid(job): _job(workflow, job, sizes, capacity, cluster) for job in planned}
    return JobGraph(found, capacity)


def _job(workflow: Any, job: Any, sizes: Sizes, capacity: dict[str, int], cluster: Mapping[str, Partition]) -> Job:
    needs = frozenset(workflow.dag.jobid(other) for other in workflow.dag.dependencies[job])
    if job.rule.norun:
        return Job("", needs)
    if not workflow.is_local(job.rule):
        amounts = used_amounts(request_of(job.resources), cluster) if cluster else {}
        return Job(job.rule.name, needs, ((JOBS, 1), *amounts.items()), work_of(job, sizes))
    uses = {"cores": job.threads, "gpus": job.resources.get("gpus", 0)}
    # Not more than there is, or the job would never start in the simulation.
    available = tuple((name, min(amount, capacity[name])) for name, amount in uses.items())
    return Job(job.rule.name, needs, available, work_of(job, sizes))


def recorded_seconds(workflow: Any, jobs: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Finished jobs, as far as Snakemake has a record of their last execution, and its wall time in seconds."""
    for job in jobs:
        record = workflow.persistence.metadata(job.output[0]) if job.output else None
        if record is None or record.rule != job.rule.name or not record.starttime or not record.endtime:
            continue
        if not all(map(os.path.exists, job.output)):  # a failed job has a record too
            continue
        if (seconds := record.endtime - record.starttime) > 0:  # touched files end before they start
            yield job, seconds


def record_call(workflow: Any, layout: Layout, finished: bool) -> None:
    """Print the times of this call of Snakemake and append them to the preset's `calls.jsonl`.

    Call this in `onsuccess` and `onerror`.
    """
    wall, processor = wall_seconds(), processor_seconds()
    seconds = defaultdict(list)
    jobs = [job for job in workflow.dag.needrun_jobs(exclude_finished=False) if workflow.dag.finished(job)]
    for job, value in recorded_seconds(workflow, jobs):
        seconds[job.rule.name].append(value)
    record = {
        "began": datetime.fromtimestamp(time.time() - wall, UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(wall, 1),
        "processor_seconds": round(processor, 1),
        "here": bool(workflow.local_exec),
        "finished": finished,
        "jobs": {rule: len(values) for rule, values in sorted(seconds.items())},
        "mean_seconds": {rule: round(sum(values) / len(values), 1) for rule, values in sorted(seconds.items())},
    }
    layout.calls.parent.mkdir(parents=True, exist_ok=True)
    with layout.calls.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")
    # By way of the logger's queue: printed directly, the text could interrupt or precede the line of the last job.
    workflow.logger_manager.logger.info(call_text(record), extra={"always_shown": True})


def wall_seconds() -> float:
    """Wall time since the start of this process, in seconds."""
    import psutil  # not at the top: `redraft cost` imports this module and works without psutil

    return time.time() - psutil.Process(os.getpid()).create_time()


def processor_seconds() -> float:
    """Processor time, user and system, of this process and of its ended children, in seconds.

    Grandchildren count once their parent has waited for them. Jobs of a cluster run elsewhere and do not count.
    """
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def call_text(record: dict[str, Any]) -> str:
    """A call's record as one line."""
    scope = "for all jobs and Snakemake" if record["here"] else "on this machine; Slurm accounts for its jobs"
    minutes = f"{record['wall_seconds'] / 60:.1f} minutes"
    return f"this call took {minutes} and {record['processor_seconds']:,.0f} processor seconds {scope}"
