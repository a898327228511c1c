"""Clean-up after a killed scheduler. Files of live processes are never touched, and every step is reported."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from redraft.errors import UserError
from redraft.files import TEMPORARY, remove, unfinished
from redraft.ops.locking.entries import FOLDER, latest
from redraft.ops.locking.lease import acquire
from redraft.ops.locking.owner import EXPIRED_SECONDS
from redraft.ops.slurm import jobs as slurm

SHOWN_JOBS = 10
"""Largest number of Slurm jobs that are listed."""
JOB_MODES = {("--mode", "remote"), ("--mode", "subprocess")}
"""Options of a Snakemake process that runs one job for another Snakemake, as in a Slurm job on this machine."""


@dataclass(frozen=True)
class RunningParts:
    """Running parts of a campaign.

    Attributes:
        workflows: process ids of scheduling Snakemake processes.
        stages: process ids of this project's other processes without such an ancestor.
        jobs: numbers of Slurm jobs.
    """

    workflows: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()


def recover(results: Path, folder: Path | None = None, *, cancel: bool = False) -> list[str]:
    """Clean up after processes that were killed.

    Args:
        results: results of one preset or of all.
        folder: working directory of the killed Snakemake; the current one if None.
        cancel: cancel the Slurm jobs of this folder.

    Returns:
        One line for each thing that was done, or left alone with the reason.

    Raises:
        UserError: if a workflow of this folder runs, or cancelled jobs do not end.
    """
    folder = (folder or Path.cwd()).resolve()
    running = find_running(folder)
    if running.workflows:
        raise UserError(
            "a workflow of this folder is running",
            file=folder,
            key="process",
            value=", ".join(map(str, running.workflows)),
            hint="wait until it has ended",
        )
    lines = []
    if cancel and running.jobs:
        slurm.cancel(running.jobs)
        lines.append(f"cancelled Slurm jobs {', '.join(running.jobs)}")
        running = find_running(folder)
    lines += [f"process {pid} runs without a workflow: {command_of(pid)}" for pid in running.stages]
    lines += [f"Slurm job {job} is in the queue; --cancel cancels it" for job in running.jobs[:SHOWN_JOBS]]
    if more := len(running.jobs[SHOWN_JOBS:]):
        lines.append(f"{more} more Slurm jobs of this folder are in the queue; --cancel cancels all")
    # The lease of each run decides about its files, so runs are safe to clean while other processes live.
    lines += [line for run in run_folders(results) for line in clean_run(run)]
    if running.stages or running.jobs:
        return [*lines, "files outside of runs and Snakemake's lock are kept while these processes or jobs exist"]
    lines += _removed(other_temporaries(results))
    return lines + _unlock(folder)


def find_running(folder: Path) -> RunningParts:
    """Find the running parts of the campaign in a folder, on this machine and in Slurm's queue."""
    # This process, and those that called it, are not left over.
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    commands = {
        process: process.info["cmdline"] or []
        for process in psutil.process_iter(["cmdline", "cwd", "status"])
        if process.pid not in own and process.info["status"] != psutil.STATUS_ZOMBIE
        if process.info["cwd"] and Path(process.info["cwd"]) == folder
    }
    workflows = {
        process.pid
        for process, command in commands.items()
        if _runs(command, "snakemake") and not any(pair in JOB_MODES for pair in pairwise(command))
    }
    orphans = []
    for process, command in commands.items():
        if process.pid not in workflows and _runs(command, "redraft"):
            ancestors: set[int] = set()
            # The process may have ended meanwhile.
            with suppress(psutil.Error):
                ancestors = {parent.pid for parent in process.parents()}
            if not workflows & ancestors:
                orphans.append(process.pid)
    return RunningParts(tuple(sorted(workflows)), tuple(sorted(orphans)), tuple(slurm.jobs_of(folder)))


def _runs(command: list[str], program: str) -> bool:
    """True for a Python process that runs a program by its script, its module or a module of its package."""
    modules = [value for option, value in pairwise(command) if option == "-m"]
    by_script = any(Path(argument).name == program for argument in command[:2])
    return by_script or any(module.split(".")[0] == program for module in modules)


def command_of(pid: int) -> str:
    """Command line of a process, or a note that it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "it has ended meanwhile"


def run_folders(results: Path) -> list[Path]:
    """Folders with a lease, sorted."""
    return sorted(entry.parent for entry in results.rglob(FOLDER) if entry.is_dir())


def clean_run(run: Path) -> list[str]:
    """Release a dead owner's lease and remove its unfinished files, under a lease of this process.

    A folder whose owner is or may be alive is left alone.

    Returns:
        One line for each thing that was done, or left alone with the reason.
    """
    last = latest(run)
    if last is None:
        return []
    if not last.free and (liveness := last.judge(time.time())).state != "dead":
        return [f"{run}: kept for {last}: {liveness.reason}"]
    # A file next to the entries of the lease is of a process that waits for it.
    left = [path for path in unfinished(run) if path.parent != run / FOLDER]
    if last.free and not left:
        return []

    def reject_wait(_: float) -> None:
        raise UserError("its owner may be alive")

    try:
        # Judged again by the file system's clock, and without a wait, which could take minutes for each run.
        owned = acquire(run, wait=reject_wait)
    except UserError as error:
        return [f"{run}: left alone: {error.message}"]
    try:
        released = [] if last.free else [f"{run}: released; {last} is dead: {last.judge(time.time()).reason}"]
        return released + _removed(left)
    finally:
        owned.release("recovered")


def other_temporaries(results: Path) -> list[Path]:
    """Unfinished files outside of runs that no live process writes.

    The process id in a name proves nothing about processes on other machines, so a file must also be older than
    `EXPIRED_SECONDS`.
    """
    runs = run_folders(results)
    return [
        file
        for file in sorted(results.rglob(".*.tmp"))
        if (name := TEMPORARY.fullmatch(file.name))
        if not psutil.pid_exists(int(name["pid"])) and time.time() - file.stat().st_mtime > EXPIRED_SECONDS
        if not any(file.is_relative_to(run) for run in runs)
    ]


def _removed(paths: list[Path]) -> list[str]:
    remove(paths)
    return [f"removed {path}, which was unfinished" for path in paths]


def _unlock(folder: Path) -> list[str]:
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return []
    command = [sys.executable, "-m", "snakemake", "--unlock"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        raise UserError("Snakemake could not be unlocked", file=locks, value=result.stderr.strip()[-500:])
    return [f"unlocked {folder}"]
