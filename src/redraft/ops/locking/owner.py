"""Owner of a folder, and the test whether it is alive: by its process id, by Slurm's queue or by its heart-beats.

Process ids are valid only within one system, so a machine is identified by its host name, boot and process namespace.
Two containers of one host count as different machines, and so does a machine before and after a reboot.
"""

import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from redraft.ops.slurm.jobs import cluster_name, job_state
from redraft.provenance import node

EXPIRED_SECONDS = 120
"""Time without a heart-beat after which a process counts as dead if nothing else is known: eight heart-beats."""
SUSPENDED_STATES = frozenset({"SUSPENDED", "STOPPED"})
"""Slurm's states of a suspended job, which will continue: missing heart-beats do not prove its death."""


class Process(NamedTuple):
    """A process. An id may be reused within one boot; an id with its start time is unique."""

    pid: int
    started: int
    """Start time, in clock ticks since the machine's boot."""


class Owner(BaseModel):
    """Process that works in a folder."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: str
    """Random identifier."""
    host: str
    """Host name, for messages."""
    machine: str
    """Host name, boot and process namespace, for comparisons."""
    processes: list[Process] = Field(min_length=1)
    """The process itself and its children that write into the folder."""
    slurm_job: str | None = None
    """Number of its Slurm job."""
    slurm_cluster: str | None = None
    """Name of the job's cluster."""
    slurm_restarts: int = 0
    """Number of times that Slurm has requeued the job."""
    devices: str | None = None
    """Value of CUDA_VISIBLE_DEVICES."""
    started: str
    """Time of the acquisition, ISO 8601, UTC."""

    def __str__(self) -> str:
        job = f", Slurm job {self.slurm_job}" if self.slurm_job else ""
        return f"process {self.processes[0].pid} on {self.host}{job}"


class Liveness(NamedTuple):
    """Whether an owner is alive."""

    state: Literal["alive", "dead", "silent"]
    """`silent`: neither is proven yet."""
    reason: str
    """Reason, for messages."""


def this_process() -> Owner:
    """Describe this process as an owner."""
    here = node()
    return Owner(
        token=uuid.uuid4().hex,
        host=here["host"],
        machine=machine(),
        processes=[process(os.getpid())],
        slurm_job=here["slurm_job"],
        slurm_cluster=os.environ.get("SLURM_CLUSTER_NAME"),
        slurm_restarts=here["slurm_restarts"],
        devices=here["devices"],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def machine() -> str:
    """Identifier of the system within which process ids are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def process(pid: int) -> Process:
    """Describe the process of this machine with this id.

    Raises:
        ProcessLookupError: if there is none.
    """
    status = _status(pid)
    if status is None:
        raise ProcessLookupError(pid)
    return Process(pid, status[1])


def is_alive(which: Process) -> bool:
    """True if a process of this machine exists, running or suspended; a zombie has ended."""
    status = _status(which.pid)
    return status is not None and status[0] not in "ZX" and status[1] == which.started


def _status(pid: int) -> tuple[str, int] | None:
    """State and start time of a process: fields 3 and 22 of /proc/pid/stat, proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name may contain spaces and brackets
    # `fields` begins with field 3.
    return fields[0], int(fields[19])


def judge(owner: Owner | None, silence: float) -> Liveness:
    """Judge whether an owner is alive.

    On the owner's machine, its process ids decide. Heart-beats do not count there, since a suspended process may
    continue.

    Args:
        owner: the owner; None if its entry cannot be read.
        silence: time since its last heart-beat, in seconds.
    """
    if owner is not None and owner.machine == machine():
        first, *others = owner.processes
        if is_alive(first):
            return Liveness("alive", "its process exists")
        if left := [str(other.pid) for other in others if is_alive(other)]:
            return Liveness("silent", f"process {first.pid} has ended, but not its child processes ({', '.join(left)})")
        return Liveness("dead", f"process {first.pid} has ended")
    if owner is not None and (by_slurm := _judge_job(owner)) is not None:
        return by_slurm
    if silence > EXPIRED_SECONDS:
        return Liveness("dead", f"no heart-beat for {silence:.0f} s")
    return Liveness("silent", f"the last heart-beat was {silence:.0f} s ago")


def _judge_job(owner: Owner) -> Liveness | None:
    """Judge by Slurm's queue; None if the owner has no job of this cluster or the queue proves nothing."""
    # Numbers of jobs are unique within a cluster only.
    if owner.slurm_job is None or owner.slurm_cluster != cluster_name():
        return None
    mine = node()
    # A requeued job keeps its number, so the owner may be an earlier start of this very job.
    if owner.slurm_job == mine["slurm_job"] and owner.slurm_restarts < mine["slurm_restarts"]:
        return Liveness("dead", f"Slurm has restarted job {owner.slurm_job} since")
    state = job_state(owner.slurm_job)
    if state == "":
        return Liveness("dead", f"Slurm job {owner.slurm_job} is no longer in the queue")
    # Any other state proves nothing: a process may have died while its job goes on.
    return Liveness("alive", f"Slurm job {owner.slurm_job} is {state.lower()}") if state in SUSPENDED_STATES else None
