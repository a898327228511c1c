"""The safe clean-up after a scheduler was killed: says what it does, and touches nothing that somebody alive holds."""

import getpass
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
from redraft.ops.entries import FOLDER, Entry, latest
from redraft.ops.lease import take
from redraft.ops.owner import EXPIRED_SECONDS

TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.tmp")
"""Names of files that are being written, as `redraft.files.atomic` makes them."""
UNFINISHED = re.compile(r"\.(step|global_step)[-_]\d+")
"""Names of folders that are being written, as `redraft.train.folders.atomic_folder` makes them."""
SLURM_SECONDS = 60
"""Waited for cancelled jobs to be gone."""


@dataclass(frozen=True)
class Alive:
    """What of this campaign still runs.

    Attributes:
        workflows: numbers of snakemake processes that were started in the folder.
        stages: numbers of this project's other processes there, of which no such workflow is an ancestor.
        jobs: numbers of Slurm's jobs whose working directory it is.
    """

    workflows: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()


def recover(results: Path, folder: Path | None = None, *, cancel: bool = False) -> list[str]:
    """Clean up after processes that were killed.

    Args:
        results: folder of a preset, or of all.
        folder: where snakemake was started; else the working directory.
        cancel: cancel Slurm's jobs of this folder.

    Returns:
        What was done and what was left, a line each.

    Raises:
        UserError: if a workflow of this folder runs, or jobs that were cancelled do not end.
    """
    folder = (folder or Path.cwd()).resolve()
    alive = look(folder)
    if alive.workflows:
        raise UserError("a workflow of this folder is running", file=folder, key="process",
                        value=", ".join(map(str, alive.workflows)), allowed="after it has ended")  # fmt: skip
    said = []
    if cancel and alive.jobs:
        _cancel(alive.jobs)
        said.append(f"cancelled Slurm's jobs {', '.join(alive.jobs)}")
        alive = look(folder)
    said += [f"process {pid} runs without a workflow: {_command(pid)}" for pid in alive.stages]
    said += [f"Slurm's job {job} is in the queue; --cancel cancels it" for job in alive.jobs]
    said += [line for run in run_folders(results) for line in clean_run(run)]
    if alive.stages or alive.jobs:
        return [*said, "files outside of runs and snakemake's lock are left while these are there"]
    said += _remove(other_temporaries(results))
    return said + _unlock(folder)


def run_folders(results: Path) -> list[Path]:
    """Folders that were ever held, in order."""
    return sorted(entry.parent for entry in results.rglob("lease") if entry.is_dir())


def clean_run(run: Path) -> list[str]:
    """Release a dead owner's lease and remove what it left unfinished; returns what was done.

    The folder is held meanwhile. One whose owner lives, or may live, is left as it is.
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
        released = [] if last.free else [f"{run}: released; {_death(last)}"]
        return released + _remove(unfinished)
    finally:
        held.release("recovered")


def _refuse_to_wait(_: float) -> None:
    raise UserError("its owner may live")


def _death(entry: Entry) -> str:
    return f"{entry} is dead: {entry.judge(time.time()).why}"


def _unfinished(run: Path) -> Iterator[Path]:
    """What was being written in a run's folder, none of which is of use to anybody; its leases are kept."""
    for path in run.rglob(".*"):
        if path.parent.name == FOLDER and path.parent.parent == run:
            continue  # of a process that waits for the folder
        inside = any(UNFINISHED.fullmatch(parent.name) for parent in path.relative_to(run).parents)
        if not inside and (TEMPORARY.fullmatch(path.name) or UNFINISHED.fullmatch(path.name)):
            yield path


def other_temporaries(results: Path) -> list[Path]:
    """Files outside of runs that were being written by processes that are gone, of whichever machine.

    A process number says nothing of another machine, so they must be older than a silence that counts as death, too.
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


def look(folder: Path) -> Alive:
    """What of the campaign in a folder runs, on this machine and in Slurm's queue."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    here = [process for process in psutil.process_iter() if process.pid not in mine and _works_in(process, folder)]
    workflows = {process.pid for process in here if _runs(process, "snakemake") and not _is_a_job(process)}
    stages = [process for process in here if process.pid not in workflows and _runs(process, "redraft")]
    orphans = [process.pid for process in stages if not workflows & {p.pid for p in _parents(process)}]
    return Alive(tuple(sorted(workflows)), tuple(sorted(orphans)), tuple(slurm_jobs(folder)))


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
    """Whether a process is a Python that runs a program: by its script, its module, or a module of its package."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    module = [b for a, b in pairwise(arguments) if a == "-m"]
    return any(Path(a).name == program for a in arguments[:2]) or any(m.split(".")[0] == program for m in module)


def _is_a_job(process: psutil.Process) -> bool:
    """Whether a snakemake runs one job for another: as Slurm's jobs do, which may be on this machine."""
    with suppress(psutil.Error):
        return any(pair in {("--mode", "remote"), ("--mode", "subprocess")} for pair in pairwise(process.cmdline()))
    return False


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "ended meanwhile"


UNCONFIGURED = "Could not establish a configuration source"
"""What Slurm's commands say where they find neither slurm.conf nor a server that would have it."""


def slurm_jobs(folder: Path) -> list[str]:
    """Numbers of this user's jobs whose working directory is this folder; none where there is no Slurm.

    Raises:
        UserError: if Slurm is there and does not answer.
    """
    if not shutil.which("squeue"):
        return []
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format=%i|%Z"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError("Slurm does not answer", key="squeue", allowed="after it does") from None
    if UNCONFIGURED in answer.stderr:
        return []  # its commands are installed, and know of no cluster
    if answer.returncode:
        raise UserError("Slurm does not answer", key="squeue", value=answer.stderr.strip(), allowed="after it does")
    lines = [line.partition("|") for line in answer.stdout.splitlines()]
    return [job for job, _, where in lines if Path(where).resolve() == folder and job != os.environ.get("SLURM_JOB_ID")]


def _cancel(jobs: tuple[str, ...]) -> None:
    subprocess.run(["scancel", *jobs], check=True, timeout=SLURM_SECONDS)
    deadline = time.monotonic() + SLURM_SECONDS
    while left := _in_queue(jobs):
        if time.monotonic() > deadline:
            raise UserError("cancelled jobs do not end", key="job", value=", ".join(left), allowed="after they have")
        time.sleep(0.5)


def _in_queue(jobs: tuple[str, ...]) -> list[str]:
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format=%i"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_SECONDS, check=True)
    return sorted(set(jobs) & set(answer.stdout.split()))


def _unlock(folder: Path) -> list[str]:
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return []
    command = [sys.executable, "-m", "snakemake", "--unlock"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise UserError("snakemake could not be unlocked", file=locks, value=answer.stderr.strip()[-500:])
    return [f"unlocked {folder}"]
