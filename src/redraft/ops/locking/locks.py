"""Locked files that stand for the GPUs of a machine, in one folder for all its users and checkouts.

The kernel drops a lock when the last process that holds it ends, killed or not, so nothing has to be cleaned up.
`fcntl` and not `filelock`, which empties a file when it only tries to lock it and would so lose the owner's name.
"""

import contextlib
import fcntl
import getpass
import os
from datetime import datetime
from pathlib import Path

from redraft.errors import UserError

FOLDER = Path("/tmp/redraft-devices")
"""Default folder. Neither $TMPDIR nor a home would do: users and jobs have different ones."""
VARIABLE = "REDRAFT_LOCKS"
"""Environment variable that names another folder."""


def folder() -> Path:
    """Folder of the locks, made with the permissions of /tmp."""
    path = Path(os.environ.get(VARIABLE) or FOLDER)
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # whoever made it did this
        path.chmod(0o1777)
    return path


def owner(purpose: str) -> str:
    """Describe this process to those that wait for its locks."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = f"user {os.getuid()}"
    return f"{user}, process {os.getpid()} since {datetime.now():%d %b %H:%M}, {purpose}".rstrip(", ")


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
        if _is_still(file, descriptor):
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
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, flags)
        descriptor = os.open(file, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"this lock of a GPU cannot be opened ({error.strerror})", file=file, key=VARIABLE,
                        value=str(file.parent), allowed="a folder that all users can write to") from None  # fmt: skip
    with contextlib.suppress(PermissionError):  # another user made it just now, and does this
        os.fchmod(descriptor, 0o666)
    return descriptor


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
