"""Lines of a dry run about Slurm: the number of submissions, and the CPUs that Ray reserves in runs under verl."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redraft.config.requests import BUNDLE_CPUS, ray_cpus
from redraft.config.trainer import Engine, VerlEngine
from redraft.ops.slurm.feasibility import jobs_in, request_of


def slurm_lines(workflow: Any, jobs: Sequence[Any], engine_of: Callable[[Any], Engine]) -> list[str]:
    """Lines of the summary.

    Args:
        workflow: Snakemake's workflow.
        jobs: jobs that would run.
        engine_of: returns the engine of a job of the rule `train` by its wildcards.
    """
    submitted = [job for job in jobs if not _runs_here(workflow, job.rule)]
    groups = {id(group): group for job in submitted if (group := workflow.dag.get_job_group(job))}
    count = len(groups) + sum(not workflow.dag.get_job_group(job) for job in submitted)
    line = f"Slurm: {count} submissions of {len(submitted)} jobs, at most {workflow.resource_settings.nodes} at a time"
    trained = [job for job in submitted if job.rule.name == "train"]
    return [line, *_group_lines(list(groups.values())), *ray_lines(trained, engine_of)]


def _group_lines(groups: Sequence[Any]) -> list[str]:
    """For each name of `--groups`, the largest submission with its request."""
    largest: dict[str, Any] = {}
    for group in groups:
        name = jobs_in(group)[0].rule.group
        largest[name] = max(largest.get(name, group), group, key=lambda each: len(jobs_in(each)))
    return [
        f"a submission of the group {name} has up to {len(jobs_in(group))} jobs, one after another, and requests "
        f"{request_of(group.resources)}"
        for name, group in sorted(largest.items())
    ]


def _runs_here(workflow: Any, rule: Any) -> bool:
    """Whether Slurm would not run a rule; in a dry run `workflow.is_local` is true for all rules."""
    return rule.group is None and (rule.norun or rule.name in workflow._localrules)


def ray_lines(jobs: Sequence[Any], engine_of: Callable[[Any], Engine]) -> list[str]:
    """For each size of training jobs, the CPUs that Ray reserves and those that the jobs request, per node."""
    sizes = Counter[tuple[int, int, int]]()
    for job in jobs:
        engine = engine_of(job.wildcards)
        if isinstance(engine, VerlEngine) and (engine.gpus or engine.nodes > 1):
            sizes[max(engine.gpus, 1), ray_cpus(engine), job.resources["cpus_per_task"]] += 1
    return [_ray_line(count, *size) for size, count in sorted(sizes.items())]


def _ray_line(count: int, gpus: int, reserved: int, cpus: int) -> str:
    others = reserved - BUNDLE_CPUS * gpus
    line = (
        f"in {count} runs under verl Ray's actors reserve {reserved} CPUs on each node ({BUNDLE_CPUS} for each of "
        f"{gpus} GPUs, {others} for storage and others); their jobs request {cpus}"
    )
    return line if cpus >= reserved else f"{line}, so that processes share cores: raise stages.train.cpus"
