"""Clean-up after a killed scheduler; nothing that a living process holds is touched, and every step is reported."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from redraft.errors import UserError
from redraft.ops.locking.entries import FOLDER, latest
from redraft.ops.locking.lease import take
from redraft.ops.locking.owner import EXPIRED_SECONDS
from redraft.ops.slurm import jobs as slurm

TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.tmp")
"""Names of unfinished files, as `redraft.files.atomic` makes them."""
UNFINISHED = re.compile(r"\.(step|global_step)[-_]\d+")
"""Names of unfinished folders, as `redraft.files.atomic_folder` makes them."""
JOB_OF_ANOTHER = {("--mode", "remote"), ("--mode", "subprocess")}
"""Options of a Snakemake that runs one job for another one, as in a Slurm job on this machine."""


@dataclass(frozen=True)
class Alive:
    """Running parts of a campaign.

    Attributes:
        workflows: ids of Snakemake processes that schedule.
        stages: ids of this project's other processes that have none of these workflows as an ancestor.
        jobs: numbers of Slurm jobs.
    """

    workflows: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()


def look(folder: Path) -> Alive:
    """Find the running parts of the campaign in a folder, on this machine and in Slurm's queue."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    here = {
        process: process.info["cmdline"] or []
        for process in psutil.process_iter(["cmdline", "cwd", "status"])
        if process.pid not in mine and process.info["status"] != psutil.STATUS_ZOMBIE
        if process.info["cwd"] and Path(process.info["cwd"]) == folder
    }
    workflows = {
        process.pid
        for process, line in here.items()
        if _runs(line, "snakemake") and not any(pair in JOB_OF_ANOTHER for pair in pairwise(line))
    }
    orphans = []
    for process, arguments in here.items():
        if process.pid not in workflows and _runs(arguments, "redraft"):
            ancestors: set[int] = set()
            with suppress(psutil.Error):
                ancestors = {parent.pid for parent in process.parents()}
            if not workflows & ancestors:
                orphans.append(process.pid)
    return Alive(tuple(sorted(workflows)), tuple(sorted(orphans)), tuple(slurm.jobs_of(folder)))


def recover(results: Path, folder: Path | None = None, *, cancel: bool = False) -> list[str]:
    """Clean up after processes that were killed.

    Args:
        results: results of one preset or of all.
        folder: folder in which Snakemake was started; the working directory if None.
        cancel: cancel the Slurm jobs of this folder.

    Returns:
        One line for each thing that was done or left.

    Raises:
        UserError: if a workflow of this folder runs, or cancelled jobs do not end.
    """
    folder = (folder or Path.cwd()).resolve()
    alive = look(folder)
    if alive.workflows:
        raise UserError(
            "a workflow of this folder is running",
            file=folder,
            key="process",
            value=", ".join(map(str, alive.workflows)),
            hint="wait until it has ended",
        )
    said = []
    if cancel and alive.jobs:
        slurm.cancel(alive.jobs)
        said.append(f"cancelled Slurm's jobs {', '.join(alive.jobs)}")
        alive = look(folder)
    said += [f"process {pid} runs without a workflow: {command_of(pid)}" for pid in alive.stages]
    said += [f"Slurm's job {job} is in the queue; --cancel cancels it" for job in alive.jobs]
    said += [line for run in run_folders(results) for line in clean_run(run)]
    if alive.stages or alive.jobs:
        return [*said, "files outside of runs and snakemake's lock are left while these are there"]
    said += _remove(other_temporaries(results))
    return said + _unlock(folder)


def command_of(pid: int) -> str:
    """Command line of a process, or a word that it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "ended meanwhile"


def _runs(arguments: list[str], program: str) -> bool:
    """True for a Python that runs a program by its script, its module or a module of its package."""
    module = [b for a, b in pairwise(arguments) if a == "-m"]
    return any(Path(a).name == program for a in arguments[:2]) or any(m.split(".")[0] == program for m in module)


def run_folders(results: Path) -> list[Path]:
    """Folders that some process has held, in order."""
    return sorted(entry.parent for entry in results.rglob(FOLDER) if entry.is_dir())


def clean_run(run: Path) -> list[str]:
    """Release a dead owner's lease and remove its unfinished files, holding the folder meanwhile.

    A folder whose owner lives, or may live, is left as it is.

    Returns:
        One line for each thing that was done or left.
    """
    last = latest(run)
    if last is None:
        return []
    if not last.free and (verdict := last.judge(time.time())).state != "dead":
        return [f"{run}: left to {last}: {verdict.why}"]
    unfinished = sorted(_unfinished(run))
    if last.free and not unfinished:
        return []
    try:
        held = take(run, wait=_refuse_to_wait)
    except UserError as error:
        return [f"{run}: left as it is: {error.message}"]
    try:
        released = [] if last.free else [f"{run}: released; {last} is dead: {last.judge(time.time()).why}"]
        return released + _remove(unfinished)
    finally:
        held.release("recovered")


def _refuse_to_wait(_: float) -> None:
    raise UserError("its owner may live")


def _unfinished(run: Path) -> Iterator[Path]:
    """Unfinished files and folders in a run's folder, except those of its leases."""
    for path in run.rglob(".*"):
        if path.parent.name == FOLDER and path.parent.parent == run:
            continue  # of a process that waits for the folder
        inside = any(UNFINISHED.fullmatch(parent.name) for parent in path.relative_to(run).parents)
        if not inside and (TEMPORARY.fullmatch(path.name) or UNFINISHED.fullmatch(path.name)):
            yield path


def other_temporaries(results: Path) -> list[Path]:
    """Unfinished files outside of runs that no living process writes.

    A process id says nothing of processes on another machine, so a file must also be as old as a silence that counts
    as death.
    """
    runs = run_folders(results)
    return [
        file
        for file in sorted(results.rglob(".*.tmp"))
        if (name := TEMPORARY.fullmatch(file.name))
        if not psutil.pid_exists(int(name["pid"])) and time.time() - file.stat().st_mtime > EXPIRED_SECONDS
        if not any(file.is_relative_to(run) for run in runs)
    ]


def _remove(paths: list[Path]) -> list[str]:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return [f"removed {path}, which was not finished" for path in paths]


def _unlock(folder: Path) -> list[str]:
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return []
    command = [sys.executable, "-m", "snakemake", "--unlock"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise UserError("snakemake could not be unlocked", file=locks, value=answer.stderr.strip()[-500:])
    return [f"unlocked {folder}"]
