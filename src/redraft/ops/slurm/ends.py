"""Translation of states in which a Slurm job has ended and for which Snakemake's Slurm plugin (2.8.0) waits for ever.

The plugin knows seven states of failure. `PREEMPTED` is not among them, since the plugin leaves the restart to Slurm.
Our profile does not requeue jobs, so that Snakemake restarts them within its limit of retries.
"""

import sys
from typing import Any

FAILED = "FAILED"
ENDS = frozenset({"PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL", "SPECIAL_EXIT"})
"""States of jobs that have ended, unknown to the plugin."""


def known(state: str) -> str:
    """State in the plugin's words; of `CANCELLED by 0`, as `sacct` has it, the first word."""
    word = state.partition(" ")[0]
    return FAILED if word in ENDS else word


def know_all_ends(workflow: Any) -> None:
    """Make the plugin, if it is the executor, take these states for ends; call it in `onstart`."""
    module = sys.modules[type(workflow.scheduler._executor).__module__]
    ask = getattr(module, "query_job_status", None)
    if ask is None:
        return

    async def query_job_status(*arguments: Any) -> tuple[Any, Any]:
        states, seconds = await ask(*arguments)
        return states and {job: known(state) for job, state in states.items()}, seconds

    module.query_job_status = query_job_status  # type: ignore[attr-defined]
