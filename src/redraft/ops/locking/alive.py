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
    here = {
        process: process.info["cmdline"] or []
        for process in psutil.process_iter(["cmdline", "cwd", "status"])
        if process.pid not in mine and process.info["status"] != psutil.STATUS_ZOMBIE
        if process.info["cwd"] and Path(process.info["cwd"]) == folder
    }
    workflows = {each.pid for each, line in here.items() if _runs(line, "snakemake") and not _is_a_job(line)}
    orphans = []
    for process, arguments in here.items():
        if process.pid not in workflows and _runs(arguments, "redraft"):
            ancestors: set[int] = set()
            with suppress(psutil.Error):
                ancestors = {parent.pid for parent in process.parents()}
            if not workflows & ancestors:
                orphans.append(process.pid)
    return Alive(tuple(sorted(workflows)), tuple(sorted(orphans)), tuple(slurm.jobs_of(folder)))


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


def _is_a_job(arguments: list[str]) -> bool:
    """True for a Snakemake that runs one job for another one, as in a Slurm job on this machine."""
    return any(pair in {("--mode", "remote"), ("--mode", "subprocess")} for pair in pairwise(arguments))
