"""Slurm's queue: states of jobs, jobs of a folder and their cancellation, and the cluster's name."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from redraft.errors import UserError

ANSWER_SECONDS = 10
"""Longest wait for the state of a job."""
CANCEL_SECONDS = 60
"""Longest wait for the queue of a user, and for the end of cancelled jobs."""
UNCONFIGURED = "Could not establish a configuration source"
"""Error of Slurm's commands where they are installed but no cluster is configured."""
PLUGIN_NAME = re.compile(r"(^|_)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""Names that the plugin gives to its jobs: the identifier of its call, after a prefix if the user has set one."""
FAILED = "FAILED"
END_STATES = frozenset({"PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL", "SPECIAL_EXIT"})
"""States of ended jobs that Snakemake's Slurm plugin does not recognise."""


def _answer(*command: str, seconds: float = ANSWER_SECONDS) -> "subprocess.CompletedProcess[str] | None":
    """Result of one of Slurm's commands; None without Slurm, or if it does not answer in time."""
    try:
        # Administrators write reasons, and users name folders, in any encoding.
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def output_of(*command: str, seconds: float = ANSWER_SECONDS) -> str | None:
    """Output of one of Slurm's commands; None if the command fails, or does not answer in time."""
    answer = _answer(*command, seconds=seconds)
    return None if answer is None or answer.returncode else answer.stdout


def job_state(job: str) -> str | None:
    """State of a job by `squeue`; empty if the job has left the queue, None if Slurm does not answer."""
    answer = _answer("squeue", "--noheader", "--format=%T", "--jobs", job)
    if answer is None:
        return None
    if answer.returncode:
        # squeue knows an ended job for MinJobAge, and fails afterwards.
        return "" if "Invalid job id" in answer.stderr else None
    return answer.stdout.strip()


@cache
def cluster_name() -> str | None:
    """Name of the cluster that Slurm's commands use here; None without Slurm, or if it does not answer."""
    if named := os.environ.get("SLURM_CLUSTER_NAME"):
        return named  # set in jobs only
    match = re.search(r"^ClusterName\s*=\s*(\S+)", output_of("scontrol", "show", "config") or "", flags=re.MULTILINE)
    return match[1] if match else None


def jobs_of(folder: Path) -> dict[str, str]:
    """State by number of this user's other jobs that Snakemake submitted from a folder; empty without Slurm.

    Raises:
        UserError: if Slurm does not answer.
    """
    if not shutil.which("squeue"):
        return {}
    queue = ("squeue", "--noheader", "--user", str(os.getuid()), "--format=%i|%T|%j|%Z")
    answer = _answer(*queue, seconds=CANCEL_SECONDS)
    if answer is not None and UNCONFIGURED in answer.stderr:
        return {}
    if answer is None or answer.returncode:
        message = answer.stderr.strip() if answer else None
        raise UserError("Slurm does not answer", key="squeue", value=message, hint="try again when it does")
    rows = [line.split("|", 3) for line in answer.stdout.splitlines() if line.count("|") >= 3]
    # `redraft recover` may itself run in a job that has this folder.
    own = os.environ.get("SLURM_JOB_ID")
    return {
        job: state
        for job, state, name, where in rows
        if job != own and PLUGIN_NAME.search(name) and Path(where).resolve() == folder
    }


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs and wait until they have left the queue; raise a UserError if they do not.

    The queue decides, not the exit code of `scancel`: it fails also for a job that has ended meanwhile.
    """
    _answer("scancel", *jobs, seconds=CANCEL_SECONDS)
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        # Without an answer the jobs count as left: a busy controller answers again later.
        queue = output_of("squeue", "--noheader", "--user", str(os.getuid()), "--format=%i", seconds=CANCEL_SECONDS)
        left = sorted(jobs if queue is None else set(jobs) & set(queue.split()))
        if not left:
            return
        if time.monotonic() > deadline:
            raise UserError(
                "cancelled jobs do not end", key="job", value=", ".join(left), hint="try again when they have ended"
            )
        time.sleep(0.5)


def plugin_state(state: str) -> str:
    """Translate a state for the plugin; of `sacct`'s `CANCELLED by 0` keep the first word."""
    word = state.partition(" ")[0]
    return FAILED if word in END_STATES else word


def recognise_all_ends(workflow: Any) -> None:
    """Make the plugin, if it is the executor, treat `END_STATES` as ends; call this in `onstart`.

    The plugin (2.8.0) would wait for such jobs forever. It recognises seven states of failure, without `PREEMPTED`,
    since it leaves restarts to Slurm. This project's profile does not requeue jobs: Snakemake restarts them, within its
    limit of retries.
    """
    # The plugin's main module, which has imported the function; a patch where it is defined would have no effect.
    module = sys.modules[type(workflow.scheduler._executor).__module__]
    query = getattr(module, "query_job_status", None)
    if query is None:
        return

    async def query_job_status(*arguments: Any) -> tuple[Any, Any]:
        states, seconds = await query(*arguments)
        return states and {job: plugin_state(state) for job, state in states.items()}, seconds

    module.query_job_status = query_job_status  # type: ignore[attr-defined]


def cancel_whole_call(workflow: Any) -> None:
    """Make the plugin, if it is the executor, cancel all jobs of its call; call this in `onstart`.

    When it is stopped, the plugin (2.8.0) cancels the jobs that it knows, then submits those that wait for their
    submission, and waits up to three minutes for its next query of states.
    """
    executor = workflow.scheduler._executor
    if not hasattr(executor, "run_uuid"):
        return

    def cancel_jobs(_: Any) -> None:
        # First, since a job that is submitted after scancel would run on.
        executor._job_submission_executor.shutdown(wait=True, cancel_futures=True)
        if output_of("scancel", f"--name={executor.run_uuid}", seconds=CANCEL_SECONDS) is None:
            executor.logger.warning(
                "Slurm does not answer, so its jobs were not cancelled; `redraft recover --cancel` cancels them",
                extra={"always_shown": True},
            )
        executor.wait_thread.join = lambda: None  # a daemon thread that sleeps until the next query

    executor.cancel_jobs = cancel_jobs
