"""GPUs that this process may use, and a check that there are enough of them."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from redraft.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: index or UUID, for CUDA_VISIBLE_DEVICES.
        lock: name of its lock, the same in every process that may use this GPU.
    """

    name: str
    lock: str


def available() -> list[Device]:
    """List the GPUs that this process may use, in order, including GPUs that other processes have locked.

    The source is CUDA_VISIBLE_DEVICES if it is set, else the GPUs of the Slurm job, else, outside of Slurm, the list of
    nvidia-smi.
    """
    job, installed = os.environ.get("SLURM_JOB_ID"), _installed()
    names = [uuid if index is None else index for index, uuid in installed]
    if VISIBLE in os.environ:
        names = _listed(os.environ[VISIBLE])
    elif job:
        # A step may have fewer GPUs than its job.
        names = _listed(os.environ.get("SLURM_STEP_GPUS", os.environ.get("SLURM_JOB_GPUS", "")))
    # Slurm gives these GPUs to no other job, but where it hides the others, the first GPU of every job is called 0:
    # without the job's number in the name, jobs would wait for each other's locks.
    prefix = f"slurm-{job}-" if job else ""
    # CUDA also accepts the beginning of a UUID; the lock needs all of it, as in every other process.
    uuids = {
        name: next((uuid for index, uuid in installed if name == index or uuid.startswith(name)), name)
        for name in names
    }
    return [Device(name, prefix + uuid) for name, uuid in uuids.items()]


def _listed(names: str) -> list[str]:
    """Names up to the first invalid one, each once, as CUDA reads them."""
    valid: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        # CUDA ignores what follows an invalid name; Slurm sets NoDevFiles in jobs without GPUs.
        if name in ("", "-1", "NoDevFiles"):
            break
        valid[name] = None
    return list(valid)


@cache
def _installed() -> tuple[tuple[str | None, str], ...]:
    """Index and UUID of each GPU that nvidia-smi lists; empty without nvidia-smi."""
    try:
        result = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse(result.stdout) if result.returncode == 0 else ()


def parse(listing: str) -> tuple[tuple[str | None, str], ...]:
    """Parse the output of `nvidia-smi -L`.

    Returns:
        Index and UUID of each GPU. A GPU that is split (MIG) is replaced by its parts, which have no index.
    """
    devices: list[tuple[str | None, str]] = []
    for line in listing.splitlines():
        head, _, rest = line.partition(": ")
        uuid = line.rpartition("(UUID: ")[2].rstrip(" )")
        if line.startswith("GPU ") and rest:
            devices.append((head.removeprefix("GPU ").strip(), uuid))
        elif line.lstrip().startswith("MIG ") and devices:
            # The first part replaces its GPU, which has an index; further parts follow.
            devices = [*(devices[:-1] if devices[-1][0] is not None else devices), (None, uuid)]
    return tuple(devices)


def check_devices(needs: Mapping[str, int], supply: int) -> None:
    """Reject jobs that need more GPUs than this machine has.

    Args:
        needs: number of GPUs by job.
        supply: number of GPUs of this machine.

    Raises:
        UserError: for the first job that needs more.
    """
    for job, count in needs.items():
        if count > supply:
            raise UserError(
                f"{job or 'this'} needs {gpus(count)}, but this machine has {supply}",
                key="engine.gpus",
                value=count,
                allowed=f"at most {supply}, or list more in {VISIBLE} if it hides any",
            )


def gpus(count: int) -> str:
    """A count of GPUs as text: `1 GPU`, `2 GPUs`."""
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"
