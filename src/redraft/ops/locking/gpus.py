"""GPUs of this machine that a process may use, and a check that they suffice."""

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
    """List the GPUs that this process may use, in order, including those that other processes hold.

    They are those of CUDA_VISIBLE_DEVICES if it is set, else those that Slurm gave to its job, else, outside of Slurm,
    those that nvidia-smi lists.
    """
    job, installed = os.environ.get("SLURM_JOB_ID"), _installed()
    names = [uuid if index is None else index for index, uuid in installed]
    if VISIBLE in os.environ:
        names = _listed(os.environ[VISIBLE])
    elif job:
        names = _listed(os.environ.get("SLURM_STEP_GPUS", os.environ.get("SLURM_JOB_GPUS", "")))
    # Slurm gives these to no other job. Where it hides the GPUs of other jobs, the first GPU of every job is called 0.
    prefix = f"slurm-{job}-" if job else ""
    uuids = {
        name: next((uuid for index, uuid in installed if name == index or uuid.startswith(name)), name)
        for name in names
    }
    return [Device(name, prefix + uuid) for name, uuid in uuids.items()]


def _listed(names: str) -> list[str]:
    """Names up to the first invalid one, each once, as CUDA reads them."""
    found: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        if name in ("", "-1", "NoDevFiles"):
            break
        found[name] = None
    return list(found)


@cache
def _installed() -> tuple[tuple[str | None, str], ...]:
    """Index and UUID of each GPU that nvidia-smi lists; empty without nvidia-smi."""
    try:
        result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse(result.stdout) if result.returncode == 0 else ()


def parse(listing: str) -> tuple[tuple[str | None, str], ...]:
    """Read the output of `nvidia-smi -L`.

    Returns:
        Index and UUID of each GPU. A GPU that is split (MIG) is replaced by its parts, which have no index.
    """
    found: list[tuple[str | None, str]] = []
    for line in listing.splitlines():
        head, _, rest = line.partition(": ")
        uuid = line.rpartition("(UUID: ")[2].rstrip(" )")
        if line.startswith("GPU ") and rest:
            found.append((head.removeprefix("GPU ").strip(), uuid))
        elif line.lstrip().startswith("MIG ") and found:
            found = [*(found[:-1] if found[-1][0] is not None else found), (None, uuid)]
    return tuple(found)


def check_devices(needs: Mapping[str, int], supply: int) -> None:
    """Reject a job that can never run here, by the number of GPUs of each job and of this machine.

    Raises:
        UserError: for the first job that needs more.
    """
    for job, count in needs.items():
        if count > supply:
            raise UserError(
                f"{job or 'this'} needs {gpus(count)}, and {supply} {'is' if supply == 1 else 'are'} here",
                key="engine.gpus",
                value=count,
                allowed=f"at most {supply}, or more in {VISIBLE} if it hides any",
            )


def gpus(count: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"
