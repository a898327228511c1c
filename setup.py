"""Build step of the package: a wheel that is built in a checkout carries its commit. All else is in pyproject.toml."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CODE = ("src", "analysis", "experiments", "workflows")
"""Folders whose changes make the code another one than the commit's."""


def commit() -> str:
    """The commit of the checkout, followed by ` modified` if its code was changed since; empty outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    # A repository around a download is another one.
    if Path(git("rev-parse", "--show-toplevel") or ".git").resolve() != ROOT:
        return ""
    changed = " modified" if git("status", "--porcelain", "--", *CODE) else ""
    return git("rev-parse", "HEAD") + changed


class BuildWithCommit(build_py):
    """Writes the commit into the file in which a download of a commit has it (`redraft.provenance.git_state`)."""

    def run(self) -> None:
        """Copy all files, and write the commit after them."""
        super().run()
        if not self.editable_mode and (found := commit()):
            (Path(self.build_lib) / "redraft/archive_commit.txt").write_text(f"{found}\n", encoding="utf-8")


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithCommit})
