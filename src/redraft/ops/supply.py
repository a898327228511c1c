"""Number of GPUs that Snakemake may give to its jobs on this machine. On a cluster the scheduler counts them."""

from collections.abc import Mapping
from typing import Any

from redraft.ops.gpus import available, check_devices


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


def _name(job: Any) -> str:
    return " ".join([job.rule.name, *(str(value) for value in job.wildcards_dict.values())])
