"""GPUs of a job: as many as it needs, and none that another job has (docs/workstation.md).

A job locks one file for each of its GPUs, in one folder for all users and checkouts of the machine, and hides the
others from CUDA. The kernel drops a lock when the last process that holds it ends, killed or not, so nothing has to be
cleaned up. `fcntl` and not `filelock`, which empties a file when it only tries to lock it and would so lose the owner's
name.
"""

import fcntl
import getpass
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from redraft.errors import UserError
from redraft.ops.locking.gpus import VISIBLE, Device, available, check_devices, gpus

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA number GPUs of several kinds as nvidia-smi does."""
LOCK_FOLDER = Path("/tmp/redraft-devices")
"""Default folder of locks. Neither $TMPDIR nor a home would do: users and jobs have different ones."""
LOCK_VARIABLE = "REDRAFT_LOCKS"
"""Environment variable that names another folder of locks."""
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
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"CUDA is in use by now, and reads {VISIBLE} no more")
    supply = available()
    check_devices({purpose: count}, len(supply))
    with ExitStack() as stack:
        shared = HELD in os.environ or not count
        taken = supply[:count] if shared else _take(supply, count, purpose, stack)
        names = tuple(device.name for device in taken)
        held = {HELD: ",".join(names)} if count else {}
        stack.enter_context(_environment({VISIBLE: ",".join(names), **ORDER, **held}))
        yield names


def lock_descriptors() -> tuple[int, ...]:
    """Open files that hold this process's GPUs.

    Give them to `pass_fds` of a child that may outlive this process: its GPUs then become free when it has ended too.
    """
    return tuple(_locked)


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
    folder = Path(os.environ.get(LOCK_VARIABLE) or LOCK_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # anyone who made it did this
        folder.chmod(0o1777)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = f"user {os.getuid()}"
    text = f"{user}, process {os.getpid()} since {datetime.now():%d %b %H:%M}, {purpose}".rstrip(", ")
    files = {device: folder / f"{quote(device.lock, safe='')}.lock" for device in supply}
    taken: list[Device] = []
    with _turn(folder / "turn.lock", text, count) as was_told:
        told = was_told
        while True:
            for device in supply:
                free = len(taken) < count and device not in taken
                if free and (descriptor := lock(files[device], text, wait=False)) is not None:
                    taken.append(device)
                    _locked.append(descriptor)
                    stack.callback(os.close, descriptor)  # a child that inherited the file keeps the lock
                    stack.callback(_locked.remove, descriptor)
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
    if (descriptor := lock(file, text, wait=False)) is None:
        told = _say(count, {"first in turn": file})
        descriptor = lock(file, text, wait=True)
    assert descriptor is not None
    try:
        yield told
    finally:
        os.close(descriptor)


def _say(count: int, files: Mapping[str, Path]) -> bool:
    holders = "; ".join(f"{name}: {file.read_text(errors='replace') or 'someone'}" for name, file in files.items())
    print(f"waiting for {gpus(count)} ({holders})", file=sys.stderr, flush=True)
    return True


def lock(file: Path, text: str, *, wait: bool) -> int | None:
    """Lock a file and write its owner into it.

    Args:
        file: the file, made if it is not there.
        text: description of the owner.
        wait: wait for a lock that another process holds.

    Returns:
        The open file, which holds the lock until it is closed; None if another process holds it and `wait` is false.

    Raises:
        UserError: if the file cannot be opened or is a link.
    """
    while True:
        descriptor = _open(file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(follow_symlinks=False), os.fstat(descriptor)):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(), 0)
                return descriptor
        os.close(descriptor)  # the file was removed meanwhile, as by a cleaner of /tmp: its lock excludes nobody


def _open(file: Path) -> int:
    """Open a file of any user, but no link.

    The first attempt is without O_CREAT, which Linux refuses for another user's file in a folder like /tmp.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with suppress(FileNotFoundError):
            return os.open(file, flags)
        descriptor = os.open(file, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(
            f"this lock of a GPU cannot be opened ({error.strerror})",
            file=file,
            key=LOCK_VARIABLE,
            value=str(file.parent),
            allowed="a folder that all users can write to",
        ) from None
    with suppress(PermissionError):  # another user made it just now, and does this
        os.fchmod(descriptor, 0o666)
    return descriptor
