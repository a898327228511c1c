"""Who works in a folder, and whether that process still lives: by its number here, by Slurm's queue, or by its silence.

A process number means something only in the system that gave it, so a machine is named by its host name, its boot and
its process namespace: two containers of one host, and a machine before and after a reboot, are different machines.
"""

import os
import re
import socket
import subprocess
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from redraft.ops.provenance import node

EXPIRED_SECONDS = 120
"""Silence after which a process that nothing else is known about counts as dead: eight heart-beats."""
SQUEUE_SECONDS = 10
"""Waited for Slurm's answer; without one it is not known whether a job lives."""
HELD_BACK = frozenset({"SUSPENDED", "STOPPED"})
"""States of Slurm's in which a job does nothing and will go on: its silence proves nothing."""


class Process(NamedTuple):
    """A process: a number may be given again, a number and a start cannot within one boot."""

    pid: int
    started: int
    """Clock ticks after the machine's start."""


class Owner(BaseModel):
    """A process that works in a folder."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: str
    """Random; no two owners share it."""
    host: str
    """The machine's name, for people."""
    machine: str
    """Host, boot and process namespace, for comparison."""
    processes: list[Process] = Field(min_length=1)
    """Itself, and whichever it started that write into the folder."""
    slurm_job: str | None = None
    """Slurm's number of the job that it belongs to."""
    slurm_cluster: str | None = None
    """Where that number means something."""
    slurm_restarts: int = 0
    """How often Slurm has put that job back into its queue."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    started: str
    """When it took the folder, ISO 8601, UTC."""

    def __str__(self) -> str:
        job = f", Slurm job {self.slurm_job}" if self.slurm_job else ""
        return f"process {self.processes[0].pid} on {self.host}{job}"


class Verdict(NamedTuple):
    """Whether an owner lives, and how that is known."""

    state: Literal["alive", "dead", "silent"]
    """`silent`: no proof either way yet."""
    why: str


def this_process() -> Owner:
    """The owner that this process would be."""
    here = node()
    return Owner(
        token=uuid.uuid4().hex, host=here["host"], machine=machine(), processes=[process(os.getpid())],
        slurm_job=here["slurm_job"], slurm_cluster=os.environ.get("SLURM_CLUSTER_NAME"),
        slurm_restarts=here["slurm_restarts"], devices=here["devices"],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def machine() -> str:
    """What tells this system's process numbers from any other's."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def process(pid: int) -> Process:
    """A living process of this machine.

    Raises:
        ProcessLookupError: if there is none with that number.
    """
    found = _status(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return Process(pid, found[1])


def is_alive(which: Process) -> bool:
    """Whether a process of this machine lives; one that ended and is not yet waited for does not."""
    found = _status(which.pid)
    return found is not None and found[0] not in "ZX" and found[1] == which.started


def _status(pid: int) -> tuple[str, int] | None:
    """State and start of a process; see proc(5), /proc/pid/stat, fields 3 and 22."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # its name may hold spaces and brackets
    return fields[0], int(fields[19])


def job_state(job: str) -> str | None:
    """A job's state by `squeue`: empty if it is not in the queue any more, None if Slurm does not say."""
    command = ["squeue", "--noheader", "--format=%T", "--jobs", job]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SQUEUE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode:
        return "" if "Invalid job id" in answer.stderr else None
    return answer.stdout.strip()


@cache
def cluster_name() -> str | None:
    """Of the Slurm that commands here ask; None where there is none, or it does not say."""
    if named := os.environ.get("SLURM_CLUSTER_NAME"):
        return named  # only jobs have it
    try:
        answer = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=SQUEUE_SECONDS,
                                check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^ClusterName\s*=\s*(\S+)", answer.stdout, flags=re.MULTILINE)
    return found[1] if found else None


def judge(owner: Owner | None, silence: float) -> Verdict:
    """Whether an owner lives.

    On its own machine a process is asked for by number and start, and its silence counts for nothing: one that was
    stopped may be continued.

    Args:
        owner: None if its file cannot be read.
        silence: seconds since its last heart-beat.
    """
    if owner is not None:
        if owner.machine == machine():
            return _judge_here(owner)
        if (known := _judge_job(owner)) is not None:
            return known
    if silence > EXPIRED_SECONDS:
        return Verdict("dead", f"no heart-beat for {silence:.0f} s")
    return Verdict("silent", f"the last heart-beat was {silence:.0f} s ago")


def _judge_here(owner: Owner) -> Verdict:
    first, *others = owner.processes
    if is_alive(first):
        return Verdict("alive", "the process runs")
    if left := [str(other.pid) for other in others if is_alive(other)]:
        return Verdict("silent", f"process {first.pid} is gone, but not yet what it started ({', '.join(left)})")
    return Verdict("dead", f"process {first.pid} is gone")


def _judge_job(owner: Owner) -> Verdict | None:
    """By Slurm, if the owner belonged to a job of this cluster and Slurm knows better than its heart-beat."""
    if owner.slurm_job is None or owner.slurm_cluster != cluster_name():
        return None
    mine = node()
    if owner.slurm_job == mine["slurm_job"] and owner.slurm_restarts < mine["slurm_restarts"]:
        return Verdict("dead", f"Slurm has started job {owner.slurm_job} again since")
    state = job_state(owner.slurm_job)
    if state == "":
        return Verdict("dead", f"Slurm job {owner.slurm_job} is no longer in the queue")
    return Verdict("alive", f"Slurm holds job {owner.slurm_job}: {state.lower()}") if state in HELD_BACK else None
