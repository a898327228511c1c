"""GPUs of a job: as many as it needs, and none that another job has (docs/workstation.md).

A job locks one file for each of its GPUs (`redraft.ops.locking.locks`) and hides the others from CUDA.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from redraft.ops.locking import locks
from redraft.ops.locking.gpus import VISIBLE, Device, available, check_devices, gpus

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA number GPUs of several kinds as nvidia-smi does."""
HELD = "REDRAFT_DEVICES_HELD"
"""Environment variable of the children of a job that holds GPUs: they share these and lock nothing."""
LOOK_SECONDS = 0.2
"""Time between looks at GPUs that other jobs hold."""

_locked: list[int] = []


@contextmanager
def devices(count: int, purpose: str = "") -> Iterator[tuple[str, ...]]:
    """Hold GPUs during the block, for this process and its children; all others are hidden from them.

    Waits while other jobs hold them, and says so once. Jobs are served in the order of their calls, so jobs that need
    few GPUs do not overtake one that needs many. Enter the block before CUDA is used, in one thread at a time.

    Args:
        count: number of GPUs; 0 hides all, so that a job that asked for none cannot take another's.
        purpose: purpose of the GPUs, for the messages of those that wait for them.

    Yields:
        The names of the GPUs, as in CUDA_VISIBLE_DEVICES.

    Raises:
        UserError: if the machine has fewer GPUs.
        RuntimeError: if CUDA is in use already.
    """
    _refuse_if_used()
    supply = available()
    check_devices({purpose: count}, len(supply))
    with ExitStack() as stack:
        shared = HELD in os.environ or not count
        taken = supply[:count] if shared else _take(supply, count, purpose, stack)
        names = tuple(device.name for device in taken)
        held = {HELD: ",".join(names)} if count else {}
        stack.enter_context(_environment({VISIBLE: ",".join(names), **ORDER, **held}))
        yield names


def held() -> tuple[int, ...]:
    """Open files that hold this process's GPUs.

    Give them to `pass_fds` of a child that may outlive this process: its GPUs then become free when it has ended too.
    """
    return tuple(_locked)


def _refuse_if_used() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"CUDA is in use by now, and reads {VISIBLE} no more")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _take(supply: Sequence[Device], count: int, purpose: str, stack: ExitStack) -> list[Device]:
    """Lock `count` of these GPUs until the stack is closed."""
    folder, text = locks.folder(), locks.owner(purpose)
    files = {device: folder / f"{quote(device.lock, safe='')}.lock" for device in supply}
    taken: list[Device] = []
    with _turn(folder / "turn.lock", text, count) as was_told:
        told = was_told
        while True:
            for device in supply:
                if len(taken) < count and device not in taken and _hold(files[device], text, stack):
                    taken.append(device)
            if len(taken) == count:
                return sorted(taken, key=supply.index)
            told = told or _say(count, {d.name: file for d, file in files.items() if d not in taken})
            time.sleep(LOOK_SECONDS)


@contextmanager
def _turn(file: Path, text: str, count: int) -> Iterator[bool]:
    """Be the only process that collects GPUs; two that each held some could wait for each other for ever.

    Yields:
        True if the process had to wait for its turn and has said so.
    """
    told = False
    if (descriptor := locks.lock(file, text, wait=False)) is None:
        told = _say(count, {"first in turn": file})
        descriptor = locks.lock(file, text, wait=True)
    assert descriptor is not None
    try:
        yield told
    finally:
        os.close(descriptor)


def _hold(file: Path, text: str, stack: ExitStack) -> bool:
    """Lock a free GPU until the stack is closed; False if another job holds it."""
    if (descriptor := locks.lock(file, text, wait=False)) is None:
        return False
    _locked.append(descriptor)
    stack.callback(os.close, descriptor)  # a child that inherited the file keeps the lock
    stack.callback(_locked.remove, descriptor)
    return True


def _say(count: int, files: Mapping[str, Path]) -> bool:
    holders = "; ".join(f"{name}: {file.read_text(errors='replace') or 'someone'}" for name, file in files.items())
    print(f"waiting for {gpus(count)} ({holders})", file=sys.stderr, flush=True)
    return True
