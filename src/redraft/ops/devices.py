"""Which GPUs a job takes on this machine: as many as it needs, and none that another job has.

A job takes a GPU by locking a file that stands for it. The kernel drops the lock when the last process that holds it
ends, however it ends, so nothing has to be cleaned up. The folder of these files is the same for all checkouts and
users of a machine (docs/workstation.md). `fcntl` and not `filelock`, which empties a file when it only tries to lock
it, and would so lose who holds it.
"""

import contextlib
import fcntl
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from redraft.errors import UserError

FOLDER = Path("/tmp/redraft-devices")
"""Of the locks, unless the variable names another: neither $TMPDIR nor a home, which differ between users and jobs."""
LOCKS = "REDRAFT_LOCKS"
"""Environment variable: the folder of the locks."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Without this CUDA may number GPUs of several kinds in another order than nvidia-smi."""
HELD = "REDRAFT_DEVICES_HELD"
"""Set for the children of a job that holds devices: they share them and lock nothing."""
LOOK_SECONDS = 0.2
"""Between looks at devices that others hold."""

_locked: list[int] = []


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: as CUDA_VISIBLE_DEVICES takes it: an index or a UUID.
        lock: the same for every process that means this GPU.
    """

    name: str
    lock: str


def available() -> list[Device]:
    """The GPUs that this process may use, in order; those that others hold are among them.

    They are those of CUDA_VISIBLE_DEVICES if it is set; else in a Slurm job what Slurm gave, and elsewhere what
    nvidia-smi lists.
    """
    job, installed = os.environ.get("SLURM_JOB_ID"), _installed()
    names = [uuid if index is None else index for index, uuid in installed]
    if VISIBLE in os.environ:
        names = _listed(os.environ[VISIBLE])
    elif job:
        names = _listed(os.environ.get("SLURM_STEP_GPUS", os.environ.get("SLURM_JOB_GPUS", "")))
    # Another job of Slurm cannot have these, and where Slurm hides other jobs' GPUs, all jobs call their first one 0.
    prefix = f"slurm-{job}-" if job else ""
    return [Device(name, prefix + _uuid(name, installed)) for name in names]


def _listed(names: str) -> list[str]:
    """The names up to the first that is none, as CUDA reads them, each once."""
    found: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        if name in ("", "-1", "NoDevFiles"):
            break
        found[name] = None
    return list(found)


def _uuid(name: str, installed: Sequence[tuple[str | None, str]]) -> str:
    """The UUID of an index, or of the beginning of a UUID; the name itself where no GPU is known by it."""
    return next((uuid for index, uuid in installed if name == index or uuid.startswith(name)), name)


@cache
def _installed() -> tuple[tuple[str | None, str], ...]:
    """Index and UUID of each GPU that nvidia-smi lists; without an index, of each part of a GPU that is split (MIG)."""
    try:
        result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse(result.stdout) if result.returncode == 0 else ()


def parse(listing: str) -> tuple[tuple[str | None, str], ...]:
    """What `nvidia-smi -L` printed; see `_installed`."""
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
    """Refuse what can never run here, before anything does.

    Args:
        needs: GPUs of one job, by what needs them.
        supply: GPUs that there are.

    Raises:
        UserError: for the first that needs more.
    """
    for what, count in needs.items():
        if count > supply:
            raise UserError(f"{what or 'this'} needs {count} {'GPU' if count == 1 else 'GPUs'}, and {supply} "
                            f"{'is' if supply == 1 else 'are'} here", key="engine.gpus", value=count,
                            allowed=f"at most {supply}, or more in {VISIBLE} if it hides any")  # fmt: skip


@contextmanager
def devices(count: int, purpose: str = "") -> Iterator[tuple[str, ...]]:
    """Take so many GPUs for this process and its children, which then see no others; give them back afterwards.

    Waits while others hold them, and says so once. Who waits first is served first, so a job that needs many is not
    passed over by jobs that need few. To be entered before CUDA is used, by one thread of a process at a time.

    Args:
        count: of GPUs; with 0 none is seen, so that a job that asked for none cannot take another's.
        purpose: what they are for, told to whoever waits for them.

    Yields:
        Their names, as in CUDA_VISIBLE_DEVICES.

    Raises:
        UserError: if there are fewer than that, at once.
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
    """The open files that hold this process's devices.

    For `pass_fds` of a child in a session of its own, which may outlive this process: its devices are then free only
    when it has ended too.
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
    """Lock so many of these devices until the stack is closed."""
    folder, text = _folder(), _holder(purpose)
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
    """Be the one process that looks for devices; yields whether it had to say that it waits for that.

    Two processes that each held some and waited for the other's would wait for ever.
    """
    told = False
    if (descriptor := _lock(file, text, wait=False)) is None:
        told = _say(count, {"first in turn": file})
        descriptor = _lock(file, text, wait=True)
    assert descriptor is not None
    try:
        yield told
    finally:
        os.close(descriptor)


def _hold(file: Path, text: str, stack: ExitStack) -> bool:
    """Lock a device until the stack is closed, if it is free."""
    if (descriptor := _lock(file, text, wait=False)) is None:
        return False
    _locked.append(descriptor)
    stack.callback(os.close, descriptor)  # a child that has it too keeps the lock
    stack.callback(_locked.remove, descriptor)
    return True


def _holder(purpose: str) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = f"user {os.getuid()}"
    return f"{user}, process {os.getpid()} since {datetime.now():%d %b %H:%M}, {purpose}".rstrip(", ")


def _say(count: int, files: Mapping[str, Path]) -> bool:
    holders = "; ".join(f"{name}: {file.read_text(errors='replace') or 'someone'}" for name, file in files.items())
    print(f"waiting for {count} {'GPU' if count == 1 else 'GPUs'} ({holders})", file=sys.stderr, flush=True)
    return True


def _folder() -> Path:
    """The folder of the locks, for all users as /tmp is."""
    folder = Path(os.environ.get(LOCKS) or FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # whoever made it did this
        folder.chmod(0o1777)
    return folder


def _lock(file: Path, text: str, *, wait: bool) -> int | None:
    """Lock a file and write into it who did; returns the open file, or None if another has it and it may not wait."""
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
        if _is_still(file, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)
            return descriptor
        os.close(descriptor)  # it was removed in between, by whoever tidies /tmp; the lock holds nobody off


def _open(file: Path) -> int:
    """Open a file of any user's, never a link.

    First without O_CREAT, which Linux refuses for another user's file in a folder like /tmp.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, flags)
        descriptor = os.open(file, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"this lock of a GPU cannot be opened ({error.strerror})", file=file, key=LOCKS,
                        value=str(file.parent), allowed="a folder that all users can write to") from None  # fmt: skip
    with contextlib.suppress(PermissionError):  # another user made it just now, and does this
        os.fchmod(descriptor, 0o666)
    return descriptor


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
