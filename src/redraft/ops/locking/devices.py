"""Locks of GPUs, so that no two jobs of a machine use the same GPU (docs/workstation.md).

A job locks one file for each of its GPUs, in one folder for all users and checkouts of the machine, and hides the
other GPUs from CUDA. The kernel releases a lock when the last process that holds it ends, even if it was killed, so
nothing needs a clean-up. This uses `fcntl` because `filelock` truncates a file when it only tries to lock it, which
would lose the owner's name.
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
from redraft.files import environment
from redraft.messages import echo
from redraft.ops.locking.gpus import VISIBLE, Device, available, check_devices, gpus

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA number GPUs of several kinds as nvidia-smi does."""
LOCK_FOLDER = Path("/tmp/redraft-devices")
"""Default folder of locks. $TMPDIR and home folders are unsuitable, since they differ between users and jobs."""
LOCK_VARIABLE = "REDRAFT_LOCKS"
"""Environment variable that names another folder of locks."""
INHERITED = "REDRAFT_DEVICES_HELD"
"""Environment variable of the children of a job that holds GPUs: they share its GPUs and lock nothing."""
POLL_SECONDS = 0.2
"""Time between attempts to lock GPUs of other jobs."""

_locked: list[int] = []


@contextmanager
def devices(count: int, purpose: str = "") -> Iterator[tuple[str, ...]]:
    """Reserve GPUs during the block for this process and its children, and hide all others from them.

    Waits while other jobs hold the GPUs and prints one message about it. Jobs are served in the order of their calls,
    so that jobs with few GPUs do not overtake one that needs many. Enter the block before CUDA is initialised, in one
    thread at a time.

    Args:
        count: number of GPUs; 0 hides all of them.
        purpose: purpose of the GPUs, shown to jobs that wait for them.

    Yields:
        The names of the GPUs, as in CUDA_VISIBLE_DEVICES.

    Raises:
        UserError: if the machine has fewer GPUs.
        RuntimeError: if CUDA is already initialised.
    """
    # Not imported to find out: the import takes seconds, and without it CUDA cannot be initialised.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(f"CUDA is already initialised and ignores changes of {VISIBLE}")
    supply = available()
    check_devices({purpose: count}, len(supply))
    # If SystemExit comes while some GPUs are locked and others awaited, the stack releases them.
    with ExitStack() as stack:
        # The GPUs of a child are locked by its parent.
        shared = INHERITED in os.environ or not count
        reserved = supply[:count] if shared else _lock_devices(supply, count, purpose, stack)
        names = tuple(device.name for device in reserved)
        inherited = {INHERITED: ",".join(names)} if count else {}
        stack.enter_context(environment({VISIBLE: ",".join(names), **ORDER, **inherited}))
        yield names


def lock_descriptors() -> tuple[int, ...]:
    """File descriptors of this process's GPU locks.

    Pass them as `pass_fds` to a child that may outlive this process: the GPUs are then released only after both ended.
    """
    return tuple(_locked)


def _lock_devices(supply: Sequence[Device], count: int, purpose: str, stack: ExitStack) -> list[Device]:
    """Lock `count` of these GPUs until the stack is closed."""
    folder = Path(os.environ.get(LOCK_VARIABLE) or LOCK_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another user created the folder, with these permissions
        # As /tmp: every user may create a lock, and none may remove another's.
        folder.chmod(0o1777)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = f"user {os.getuid()}"
    text = f"{user}, process {os.getpid()} since {datetime.now():%d %b %H:%M}, {purpose}".rstrip(", ")
    files = {device: folder / f"{quote(device.lock, safe='')}.lock" for device in supply}
    locked: list[Device] = []
    with _turn(folder / "turn.lock", text, count) as has_waited:
        announced = has_waited
        while True:
            for device in supply:
                needed = len(locked) < count and device not in locked
                if needed and (descriptor := lock(files[device], text, wait=False)) is not None:
                    locked.append(device)
                    _locked.append(descriptor)
                    stack.callback(os.close, descriptor)  # a child that inherited the file keeps the lock
                    # Called before the file is closed, as the last callback: no child gets a closed descriptor.
                    stack.callback(_locked.remove, descriptor)
            if len(locked) == count:
                return sorted(locked, key=supply.index)
            if not announced:
                _announce_wait(count, {d.name: file for d, file in files.items() if d not in locked})
                announced = True
            # A lock that waits would wait for one certain GPU, and any of them may become free first.
            time.sleep(POLL_SECONDS)


@contextmanager
def _turn(file: Path, text: str, count: int) -> Iterator[bool]:
    """Wait for the exclusive right to lock GPUs; two processes that each hold some GPUs would deadlock.

    Yields:
        True if the process had to wait and has printed a message about it.
    """
    descriptor = lock(file, text, wait=False)
    announced = descriptor is None
    if descriptor is None:
        _announce_wait(count, {"first in turn": file})
        descriptor = lock(file, text, wait=True)
    assert descriptor is not None
    try:
        yield announced
    finally:
        os.close(descriptor)


def _announce_wait(count: int, files: Mapping[str, Path]) -> None:
    # A lock file is empty for the moment between its owner's lock and the writing of its name.
    holders = "; ".join(f"{name}: {file.read_text(errors='replace') or 'someone'}" for name, file in files.items())
    echo(f"waiting for {gpus(count)} ({holders})", err=True)


def lock(file: Path, text: str, *, wait: bool) -> int | None:
    """Lock a file and write its owner into it.

    Args:
        file: the file, created if missing.
        text: description of the owner.
        wait: wait if another process holds the lock.

    Returns:
        The file descriptor, which holds the lock until it is closed; None if another process holds it and `wait` is
        false.

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
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"this file system supports no locks ({error.strerror})",
                file=file,
                key=LOCK_VARIABLE,
                value=str(file.parent),
                allowed="a folder on a local file system, the same for all users and jobs of the machine",
            ) from None
        # Such as SystemExit, if SIGTERM comes while this waits.
        except BaseException:
            os.close(descriptor)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(follow_symlinks=False), os.fstat(descriptor)):
                # Only the holder of a lock writes its name.
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(), 0)
                return descriptor
        # The file was removed meanwhile, for example by a cleaner of /tmp, so this lock excludes nobody: try again.
        os.close(descriptor)


def _open(file: Path) -> int:
    """Open a file of any user, without following links.

    The first attempt omits O_CREAT, which Linux rejects for another user's file in a sticky folder such as /tmp.
    """
    # Closed on exec, so that only a child with `lock_descriptors` keeps a lock.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with suppress(FileNotFoundError):
            return os.open(file, flags)
        descriptor = os.open(file, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(
            f"this GPU lock cannot be opened ({error.strerror})",
            file=file,
            key=LOCK_VARIABLE,
            value=str(file.parent),
            allowed="a folder that all users can write to",
        ) from None
    with suppress(PermissionError):  # another user has just created it, and sets the same
        os.fchmod(descriptor, 0o666)
    return descriptor
