"""A campaign as Snakemake holds it: its jobs, what they run on, and what earlier jobs of the same results took."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from redraft.config import Preset
from redraft.layout import code_root
from redraft.ops.workflow import pace
from redraft.ops.workflow.time_left import Durations, Job, Plan

SECONDS = "workflows/seconds.yaml"
"""Mean seconds of a job by preset and rule, measured on one machine, and what `pace` says of that machine."""


def expect(workflow: Any, preset: Preset) -> None:
    """Tell Snakemake's logger plugin what is to come; call it in `onstart`."""
    for handler in workflow.logger_manager.get_log_handlers():
        if hasattr(handler, "expect"):
            handler.expect(plan(workflow), durations(workflow, preset))


def durations(workflow: Any, preset: Preset) -> Durations:
    """What kinds of jobs take, from the priors and from jobs of the same results that have ended."""
    found = Durations(priors(preset))
    for rule, seconds in taken(workflow, workflow.dag.jobs):
        found.add(rule, seconds)
    return found


def priors(preset: Preset, *, scaled: bool = True) -> dict[str, float]:
    """Mean wall seconds of a job by rule, from `SECONDS`; empty for a preset not measured.

    To scale them to this machine's pace takes numpy, and torch for bfloat16.
    """
    file = code_root() / SECONDS
    measured = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {"presets": {}}
    seconds = measured["presets"].get(preset.name)
    if not seconds or not scaled:
        return dict(seconds or {})
    return pace.scaled(seconds, measured["work"], preset.engine.dtype)


def plan(workflow: Any, jobs: Iterable[Any] | None = None) -> Plan:
    """Jobs by Snakemake's numbers, and what they share: cores, GPUs, on a cluster jobs at a time.

    Without `jobs` they are those that are to run and have not ended.
    """
    resources = workflow.resource_settings
    cores = resources.cores or resources.local_cores or os.cpu_count() or 1
    gpus = workflow.scheduler.global_resources.get("gpus", sys.maxsize)
    capacity = {"cores": cores, "gpus": gpus, "jobs": workflow.nodes or sys.maxsize}
    asked = workflow.dag.needrun_jobs() if jobs is None else jobs
    return Plan({workflow.dag.jobid(job): _job(workflow, job, capacity) for job in asked}, capacity)


def _job(workflow: Any, job: Any, capacity: dict[str, int]) -> Job:
    needs = frozenset(workflow.dag.jobid(other) for other in workflow.dag.dependencies[job])
    if job.rule.norun:
        return Job("", needs)
    if not workflow.is_local(job.rule):
        return Job(job.rule.name, needs, (("jobs", 1),))
    takes = {"cores": job.threads, "gpus": job.resources.get("gpus", 0)}
    return Job(job.rule.name, needs, tuple((name, min(amount, capacity[name])) for name, amount in takes.items()))


def taken(workflow: Any, jobs: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Rule and wall seconds of jobs when they last ended, those of which Snakemake has a record."""
    for job in jobs:
        record = workflow.persistence.metadata(job.output[0]) if job.output else None
        if record is None or record.rule != job.rule.name or not record.starttime or not record.endtime:
            continue
        if (seconds := record.endtime - record.starttime) > 0:  # files that were touched end before they begin
            yield record.rule, seconds
