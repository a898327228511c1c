"""Limits of Snakemake's scheduler on this machine: GPUs, cores next to a cluster, and the rate of starting jobs.

For submitted jobs the cluster's scheduler counts GPUs and cores.
"""

from collections.abc import Mapping
from typing import Any

from redraft.ops.locking.gpus import available, check_devices

LOCAL = "local_cores"
"""Name of the resource that counts the cores of local jobs."""


def count_devices(workflow: Any, needs: Mapping[str, int]) -> None:
    """Limit Snakemake's jobs to the GPUs of this machine; call this in `onstart`.

    A limit that is set while Snakemake reads the Snakefile would silently lower the requests of the rules.

    Args:
        workflow: Snakemake's workflow.
        needs: number of GPUs by rule.

    Raises:
        UserError: if a planned job needs more GPUs than this machine has.
    """
    if not workflow.local_exec:
        return
    jobs = [job for job in workflow.dag.needrun_jobs() if needs.get(job.rule.name)]
    if not jobs:
        return
    scheduler = workflow.scheduler
    limit = scheduler.global_resources.get("gpus")  # from `--resources gpus=N`
    supply = len(available()) if limit is None else min(len(available()), limit)
    named = {" ".join([job.rule.name, *map(str, job.wildcards_dict.values())]): job for job in jobs}
    check_devices({name: needs[job.rule.name] for name, job in named.items()}, supply)
    # The limit, and what of it is free; no job has started yet.
    for counts in (scheduler.global_resources, scheduler.resources):
        counts["gpus"] = supply


def limit_local_jobs(workflow: Any) -> None:
    """With a cluster, limit local jobs to the cores of this machine; call this in `onstart`.

    Snakemake (9.27) limits cores only if all jobs are local. With a cluster it starts all local jobs that are ready and
    ignores its option `--local-cores`.
    """
    if workflow.local_exec:
        return
    cores = workflow.resource_settings.local_cores or workflow.resource_settings.cores
    for counts in (workflow.scheduler.global_resources, workflow.scheduler.resources):
        counts[LOCAL] = cores
    for job in workflow.dag.needrun_jobs():
        if job.is_local:
            job.scheduler_resources[LOCAL] = min(job.threads, cores)


def lift_rate_limit(workflow: Any) -> None:
    """Let Snakemake start local jobs without a rate limit; call this in `onstart`.

    To enforce its limit of 100 jobs per second, Snakemake (9.27) schedules again one second after each scheduling. Each
    job that ends adds such a repeated scheduling while others are ready; after some hundred jobs they use a whole core.
    With a cluster the limit stays.
    """
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
