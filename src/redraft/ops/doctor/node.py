"""What a machine tells about itself; the tests replace it with faked machines."""

import fcntl
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

ANSWER_SECONDS = 20
"""Longest wait for a command or the hub."""


class Node:
    """This machine."""

    environ: Mapping[str, str] = os.environ

    def output(self, *command: str) -> str | None:
        """Standard output of a command; None if there is no such command, or if it fails or hangs."""
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return None if answer.returncode else answer.stdout

    def program(self, name: str) -> str | None:
        """Path of a program; None if it is not on the PATH."""
        return shutil.which(name)

    def version(self, distribution: str) -> str | None:
        """Version of an installed distribution; None if it is not installed."""
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def libc(self) -> str:
        """Version of the GNU C library; empty on a system with another one."""
        name, version = platform.libc_ver()
        return version if name == "glibc" else ""

    def python_header(self) -> Path:
        """The header file that extensions of this Python are compiled with; it may be missing."""
        return Path(sysconfig.get_paths()["include"]) / "Python.h"

    def exists(self, path: Path) -> bool:
        """True if there is such a file or folder."""
        return path.exists()

    def free_gb(self, path: Path) -> float:
        """Free space for this user in the file system of a folder that exists, or of its parents, 1e9 bytes."""
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free / 1e9

    def file_faults(self, folder: Path) -> list[str]:
        """What a file system lacks of what leases and records need: locks, hard links, atomic renames, a right clock.

        Files are made in the folder, or in its nearest parent that exists, and removed.
        """
        while not folder.exists():
            folder = folder.parent
        try:
            with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as name:
                return _faults(Path(name))
        except OSError as error:
            return [f"it is not writable ({error.strerror})"]

    def hub_fault(self, kind: str, name: str, revision: str | None, files: Sequence[str]) -> str:
        """Why a model or data set cannot be had from the local cache or the hub; empty if it can.

        Args:
            kind: `model` or `dataset`.
            name: hub id.
            revision: commit, branch or tag; None for the default.
            files: patterns of the files that are needed, each of which one in the cache has to match.
        """
        try:
            from httpx import HTTPError
            from huggingface_hub import HfApi, snapshot_download
            from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
        except ModuleNotFoundError as error:
            return f"not checked, since {error.name} is not installed"
        try:
            folder = Path(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True))
            cached = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
            if all(any(fnmatch(file, pattern) for file in cached) for pattern in files):
                return ""
        except HFValidationError:  # such as ./model, or a name with a blank
            return "neither an existing folder nor a hub id"
        except OSError:  # nothing of it is in the cache
            pass
        if self.environ.get("HF_HUB_OFFLINE", "0") in ("1", "true", "ON", "YES"):
            return "not in the cache, and HF_HUB_OFFLINE is set"
        try:
            # Asks for access only; nothing is fetched.
            HfApi().auth_check(name, repo_type=kind)
        except GatedRepoError:
            return "its licence has to be accepted on its page of the hub, and HF_TOKEN set"
        except RepositoryNotFoundError:
            return "not in the hub"
        except (HTTPError, OSError) as error:
            return f"not in the cache, and the hub cannot be reached ({type(error).__name__})"
        return ""


def _faults(folder: Path) -> list[str]:
    found = []
    file, other = folder / "file", folder / "other"
    file.write_bytes(b"1")
    with file.open("r+b") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found.append(f"it has no file locks ({error.strerror})")
    try:
        os.link(file, other)
    except OSError as error:
        found.append(f"it has no hard links ({error.strerror})")
    # A file of its own: the rename of a file onto its own hard link does nothing and succeeds (rename(2)).
    other.unlink(missing_ok=True)
    other.write_bytes(b"2")
    try:
        file.replace(other)
    except OSError as error:
        found.append(f"files cannot be replaced ({error.strerror})")
    # `redraft recover` and `redraft status` compare times of heart-beats with this machine's clock.
    off = other.stat().st_mtime - time.time()
    if abs(off) > 60:
        found.append(f"its clock differs from this machine's by {off:.0f} s")
    return found
