"""Processes and Slurm jobs of a campaign that still run, found by the folder in which they were started."""

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from redraft.ops.slurm import jobs as slurm


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
    here = [process for process in psutil.process_iter() if process.pid not in mine and _works_in(process, folder)]
    workflows = {process.pid for process in here if _runs(process, "snakemake") and not _is_a_job(process)}
    stages = [process for process in here if process.pid not in workflows and _runs(process, "redraft")]
    orphans = [process.pid for process in stages if not workflows & {p.pid for p in _parents(process)}]
    return Alive(tuple(sorted(workflows)), tuple(sorted(orphans)), tuple(slurm.jobs_of(folder)))


def command_of(pid: int) -> str:
    """Command line of a process, or a word that it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "ended meanwhile"


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder
    except psutil.Error:
        return False


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.parents()
    except psutil.Error:
        return []


def _runs(process: psutil.Process, program: str) -> bool:
    """True for a Python that runs a program by its script, its module or a module of its package."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    module = [b for a, b in pairwise(arguments) if a == "-m"]
    return any(Path(a).name == program for a in arguments[:2]) or any(m.split(".")[0] == program for m in module)


def _is_a_job(process: psutil.Process) -> bool:
    """True for a Snakemake that runs one job for another one, as in a Slurm job on this machine."""
    with suppress(psutil.Error):
        return any(pair in {("--mode", "remote"), ("--mode", "subprocess")} for pair in pairwise(process.cmdline()))
    return False
