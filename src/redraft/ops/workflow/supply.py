"""What Snakemake may give to its jobs on this machine: GPUs, beside a cluster the processors; and how often it looks.

On a cluster the scheduler counts both for the jobs that are submitted.
"""

from collections.abc import Mapping
from typing import Any

from redraft.ops.locking.gpus import available, check_devices

LOCAL = "local_cores"
"""Name of the resource that counts processors of jobs beside Snakemake."""


def count_devices(workflow: Any, needs: Mapping[str, int]) -> None:
    """Limit Snakemake's jobs to the GPUs of this machine; call it in `onstart`.

    A limit that Snakemake knew while it reads the Snakefile would silently lower the requests of the rules.

    Raises:
        UserError: if a job that is to run needs more GPUs, by its rule, than there are.
    """
    if not workflow.local_exec:
        return
    jobs = [job for job in workflow.dag.needrun_jobs() if needs.get(job.rule.name)]
    if not jobs:
        return
    scheduler = workflow.scheduler
    asked = scheduler.global_resources.get("gpus")  # by `--resources gpus=N`
    supply = len(available()) if asked is None else min(len(available()), asked)
    named = {" ".join([job.rule.name, *map(str, job.wildcards_dict.values())]): job for job in jobs}
    check_devices({name: needs[job.rule.name] for name, job in named.items()}, supply)
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


def lift_rate_limit(workflow: Any) -> None:
    """Let Snakemake start jobs on this machine whenever one fits; call it in `onstart`.

    For its limit of 100 jobs a second it looks for jobs again a second after each look. Each job that ends adds a look
    a second while others are ready: after some hundred jobs they take a core (9.27). A cluster keeps the limit.
    """
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
