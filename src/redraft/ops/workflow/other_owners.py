"""Check at the start of a campaign that no earlier call of Snakemake still owns its runs."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.ops.slurm import jobs as slurm
from redraft.ops.workflow.recover import find_running

SHOWN_JOBS = 5
"""Largest number of Slurm jobs in a message."""


def check_before_lock(workflow: Any, check: Callable[[Path, bool, bool], None]) -> None:
    """Let Snakemake call `check` before it locks its working directory; call this while rules are read.

    Snakemake's own message about a lock advises `--unlock`, after which all jobs in Slurm's queue would be submitted a
    second time. Dry runs do not lock.

    Args:
        workflow: Snakemake's workflow.
        check: `check_no_other_owner`, which may end the process.
    """
    from snakemake.persistence import PersistenceBase

    original = PersistenceBase.lock

    @contextmanager
    def lock(persistence: Any) -> Iterator[None]:
        check(Path.cwd(), persistence.locked, not workflow.local_exec)
        with original(persistence):
            yield

    PersistenceBase.lock = lock


def check_no_other_owner(folder: Path, locked: bool, submits: bool) -> None:
    """Reject the start of a campaign whose runs may have an owner.

    Args:
        folder: Snakemake's working directory.
        locked: whether Snakemake's lock is on the files of this call.
        submits: whether this call submits jobs to Slurm.

    Raises:
        UserError: if another call holds the lock or has left it, or if jobs of an ended call are in Slurm's queue.
    """
    folder = folder.resolve()
    # A local campaign needs no answer of Slurm, whose controller may be away.
    states = _queued(folder) if submits or locked else {}
    if not (locked or states):
        return
    if workflows := find_running(folder).workflows:
        if not locked:
            return  # Snakemake's lock says that the other call has other files
        raise UserError(
            "another workflow works on these files",
            file=folder,
            key="process",
            value=", ".join(map(str, workflows)),
            hint="wait until it has ended",
        )
    if states:
        raise UserError(
            "jobs of an earlier call are still in Slurm's queue; this call would submit them a second time",
            file=folder,
            key="Slurm jobs",
            value=_jobs_text(states),
            hint="`redraft recover --cancel` cancels them and cleans up, then start again: runs resume from their last "
            "checkpoint; or wait until the jobs have ended, call `redraft recover`, and start again. If Snakemake "
            "still runs on another machine, leave the jobs to it",
        )
    raise UserError(
        "an earlier call was killed and left Snakemake's lock",
        file=folder / ".snakemake/locks",
        hint="`redraft recover` cleans up and unlocks, then start again; if Snakemake still runs on another machine, "
        "wait until it has ended",
    )


def _queued(folder: Path) -> dict[str, str]:
    """State by number of the Slurm jobs of a folder; waits for those that end at this moment, as after Ctrl-C."""
    deadline = time.monotonic() + slurm.CANCEL_SECONDS
    while (states := slurm.jobs_of(folder)) and set(states.values()) == {"COMPLETING"} and time.monotonic() < deadline:
        time.sleep(1)
    return states


def _jobs_text(states: dict[str, str]) -> str:
    """Numbers of jobs by state, and the first jobs: `2 running, 40 pending (jobs 7, 8 and others)`."""
    counts = ", ".join(f"{count} {state.lower()}" for state, count in Counter(states.values()).most_common())
    others = " and others" if len(states) > SHOWN_JOBS else ""
    return f"{counts} ({'job' if len(states) == 1 else 'jobs'} {', '.join([*states][:SHOWN_JOBS])}{others})"
