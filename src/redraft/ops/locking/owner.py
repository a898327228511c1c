"""Owner of a folder, and the judgement whether it lives: by its process id, by Slurm's queue or by its silence.

A process id is valid in the system that gave it, so a machine is named by its host name, its boot and its process
namespace. Two containers of one host are different machines, and so is a machine before and after a reboot.
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
"""Silence that counts as death where nothing else is known of a process: eight heart-beats."""
HELD_BACK = frozenset({"SUSPENDED", "STOPPED"})
"""States in which Slurm has stopped a job that will go on; its silence proves nothing."""


class Process(NamedTuple):
    """A process. Within one boot an id may be given twice, an id with its start cannot."""

    pid: int
    started: int
    """Time of its start, in clock ticks after the machine's."""


class Owner(BaseModel):
    """Process that works in a folder."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    token: str
    """Random text that no other owner has."""
    host: str
    """Host name, for people."""
    machine: str
    """Host name, boot and process namespace, for comparison."""
    processes: list[Process] = Field(min_length=1)
    """The process itself and those of its children that write into the folder."""
    slurm_job: str | None = None
    """Number of its Slurm job."""
    slurm_cluster: str | None = None
    """Name of the cluster that gave the number."""
    slurm_restarts: int = 0
    """Number of times that Slurm has requeued the job."""
    devices: str | None = None
    """Value of CUDA_VISIBLE_DEVICES."""
    started: str
    """Time at which it took the folder, ISO 8601, UTC."""

    def __str__(self) -> str:
        job = f", Slurm job {self.slurm_job}" if self.slurm_job else ""
        return f"process {self.processes[0].pid} on {self.host}{job}"


class Verdict(NamedTuple):
    """Judgement whether an owner lives."""

    state: Literal["alive", "dead", "silent"]
    """`silent`: there is no proof yet."""
    why: str
    """Reason, for people."""


def this_process() -> Owner:
    """This process as an owner."""
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
    """Name of the system within which process ids are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def process(pid: int) -> Process:
    """Process of this machine with this id.

    Raises:
        ProcessLookupError: if there is none.
    """
    found = _status(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return Process(pid, found[1])


def is_alive(which: Process) -> bool:
    """True if a process of this machine runs or is stopped; a zombie has ended."""
    found = _status(which.pid)
    return found is not None and found[0] not in "ZX" and found[1] == which.started


def _status(pid: int) -> tuple[str, int] | None:
    """State and start of a process: fields 3 and 22 of /proc/pid/stat, proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # its name may hold spaces and brackets
    return fields[0], int(fields[19])


def judge(owner: Owner | None, silence: float) -> Verdict:
    """Judge whether an owner lives.

    On the owner's own machine its process decides. Silence does not count there, since a stopped process may go on.

    Args:
        owner: the owner; None if its entry cannot be read.
        silence: time since its last heart-beat, in seconds.
    """
    if owner is not None and owner.machine == machine():
        first, *others = owner.processes
        if is_alive(first):
            return Verdict("alive", "the process runs")
        if left := [str(other.pid) for other in others if is_alive(other)]:
            return Verdict("silent", f"process {first.pid} is gone, but not yet what it started ({', '.join(left)})")
        return Verdict("dead", f"process {first.pid} is gone")
    if owner is not None and (known := _judge_job(owner)) is not None:
        return known
    if silence > EXPIRED_SECONDS:
        return Verdict("dead", f"no heart-beat for {silence:.0f} s")
    return Verdict("silent", f"the last heart-beat was {silence:.0f} s ago")


def _judge_job(owner: Owner) -> Verdict | None:
    """Judgement by Slurm's queue; None if the owner has no job of this cluster or the queue proves nothing."""
    if owner.slurm_job is None or owner.slurm_cluster != cluster_name():
        return None
    mine = node()
    if owner.slurm_job == mine["slurm_job"] and owner.slurm_restarts < mine["slurm_restarts"]:
        return Verdict("dead", f"Slurm has started job {owner.slurm_job} again since")
    state = job_state(owner.slurm_job)
    if state == "":
        return Verdict("dead", f"Slurm job {owner.slurm_job} is no longer in the queue")
    return Verdict("alive", f"Slurm holds job {owner.slurm_job}: {state.lower()}") if state in HELD_BACK else None
