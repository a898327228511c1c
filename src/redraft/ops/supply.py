"""What Snakemake may give to its jobs on this machine: GPUs, and beside a cluster the processors.

On a cluster the scheduler counts both for the jobs that are submitted.
"""

from collections.abc import Mapping
from typing import Any

from redraft.ops.gpus import available, check_devices

LOCAL = "local_cores"
"""Name of the resource that counts processors of jobs beside Snakemake."""


def count_devices(workflow: Any, needs: Mapping[str, int]) -> None:
    """Limit Snakemake's jobs to the GPUs of this machine; call it in `onstart`.

    A limit that Snakemake knew while it reads the Snakefile would silently lower the requests of the rules.

    Args:
        workflow: Snakemake's workflow.
        needs: number of GPUs of one job, by rule.

    Raises:
        UserError: if a job that is to run needs more GPUs than there are.
    """
    if not workflow.local_exec:
        return
    jobs = [job for job in workflow.dag.needrun_jobs() if needs.get(job.rule.name)]
    if not jobs:
        return
    scheduler = workflow.scheduler
    asked = scheduler.global_resources.get("gpus")  # by `--resources gpus=N`
    supply = len(available()) if asked is None else min(len(available()), asked)
    check_devices({_name(job): needs[job.rule.name] for job in jobs}, supply)
    for counts in (scheduler.global_resources, scheduler.resources):
        counts["gpus"] = supply


def limit_local_jobs(workflow: Any) -> None:
    """On a cluster, limit the jobs that run beside Snakemake to the cores here; call it in `onstart`.

    Snakemake limits cores only where all jobs are local: beside a cluster it starts all that are ready, and does not
    use its option `--local-cores` (9.27).
    """
    if workflow.local_exec:
        return
    cores = workflow.resource_settings.local_cores or workflow.resource_settings.cores
    for counts in (workflow.scheduler.global_resources, workflow.scheduler.resources):
        counts[LOCAL] = cores
    for job in workflow.dag.needrun_jobs():
        if job.is_local:
            job.scheduler_resources[LOCAL] = min(job.threads, cores)


def _name(job: Any) -> str:
    return " ".join([job.rule.name, *(str(value) for value in job.wildcards_dict.values())])
