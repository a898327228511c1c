"""Ends of Slurm's jobs that Snakemake's Slurm plugin (2.8.0) takes for running jobs, for which it would wait for ever.

It knows seven words for a job that failed. A preempted one is none of them, since the plugin leaves its restart to
Slurm, which our profile does not: Snakemake starts it again, under the limit of its retries.
"""

import sys
from typing import Any

FAILED = "FAILED"
ENDS = frozenset({"PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL", "SPECIAL_EXIT"})
"""States of jobs that have ended and will not go on."""


def known(state: str) -> str:
    """A state by a word that the plugin knows: of `sacct`'s `CANCELLED by 0` the first one."""
    word = state.partition(" ")[0]
    return FAILED if word in ENDS else word


def know_all_ends(workflow: Any) -> None:
    """Have the plugin, if it is what executes, see every end of a job as one; for `onstart`."""
    module = sys.modules[type(workflow.scheduler._executor).__module__]
    ask = getattr(module, "query_job_status", None)
    if ask is None:
        return

    async def query_job_status(*arguments: Any) -> tuple[Any, Any]:
        states, seconds = await ask(*arguments)
        return states and {job: known(state) for job, state in states.items()}, seconds

    module.query_job_status = query_job_status  # type: ignore[attr-defined]
