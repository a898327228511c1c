"""A Slurm for tests, started by up.sh, and the processes of campaigns on it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name, path="/usr/sbin:/sbin")]
INSTALLED = [
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)} (docs/slurm.md)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons run jobs of several users only as root"),
]
"""Marks of tests that start a Slurm."""
LIMIT = 600
"""Time limit of any step in seconds. The step is then interrupted, and killed after one more minute."""


@dataclass
class Cluster:
    """A running Slurm under a folder; `with` stops it."""

    home: Path
    port: int = 17817
    env: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Cluster":
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.env = clean | {"PORT": str(self.port), "PATH": f"{self.home / 'bin'}:/usr/sbin:{os.environ['PATH']}"}
        subprocess.run(["sh", HERE / "up.sh", self.home], env=self.env, check=True, timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["sh", HERE / "down.sh", self.home], env=self.env, check=False, timeout=60)

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    def jobs(self, *states: str) -> dict[str, str]:
        """Jobs by number, with rule and wildcards as the plugin writes them."""
        lines = self.ask("squeue", "--noheader", "--states", ",".join(states) or "all", "--format", "%i %k")
        return dict(line.split(" ", 1) for line in lines.splitlines())

    def submit(self, *arguments: str) -> None:
        """Submit a job and wait for its success."""
        command = ["timeout", str(LIMIT), "sbatch", "--wait", *arguments]
        subprocess.run(command, env=self.env, check=True, capture_output=True)

    def running(self, cell: str) -> str:
        """Number of the running job that trains a cell."""
        (job,) = [job for job, what in self.jobs("running").items() if "rule_train" in what and cell in what]
        return job

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left."""
        self.ask("scancel", "--me")
        until(lambda: not self.jobs("running", "pending", "completing"))

    def stop_controller(self) -> None:
        """Stop slurmctld; running jobs go on."""
        process = int((self.home / "slurmctld.pid").read_text())
        os.kill(process, signal.SIGTERM)
        until(lambda: not Path(f"/proc/{process}").exists())

    def start_controller(self) -> None:
        """Start slurmctld again from its saved state."""
        subprocess.run(["slurmctld", "-f", self.home / "slurm.conf"], env=self.env, check=True, timeout=30)
        until(lambda: subprocess.run(["squeue"], env=self.env, capture_output=True, check=False).returncode == 0)


def until(true: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait for a condition, which is asked at most a hundred times a second."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def trainer(folder: Path, cell: str) -> int | None:
    """Id of the process that trains a cell in a campaign's folder; None if there is none."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (
                b"redraft.train.job:train" in words
                and f"spec_rl/{cell}".encode() in words
                and (entry / "cwd").resolve() == folder
            ):
                return int(entry.name)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return None
