"""A tiny campaign in a folder of its own: two runs of twelve steps, each on one GPU that Slurm only counts, or none."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from redraft.ops.locking.lease import EVALUATION
from tests.slurm.cluster import INSTALLED, LIMIT, Cluster, trainer, until

ROOT = Path(__file__).parents[2]
MARKS = [pytest.mark.servers, *INSTALLED]
"""Marks of tests that run a campaign on a Slurm."""
COPIED = ("Snakefile", "config", "workflows", "profiles", "experiments", "envs", "src", "analysis")
CELLS = ("grpo-vanilla", "grpo-spec-linf")
STEPS = 12
TIMES = ("seconds", "grading_seconds", "tail_share")
"""Keys of a record that depend on the clock."""
SHOWN = {"tables": (1,), "figures": (2,)}
SITE: dict[str, Any] = {"partition": "gpu", "gpu_model": "pretended", "memory_gb": 1.5, "cpus": 1, "runtime": "20m"}


@dataclass
class Campaign:
    """Copy of the workflow and its results, on a cluster."""

    folder: Path
    cluster: Cluster
    gpus: int = 1
    started: list[subprocess.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        copy_to(self.folder)
        (self.folder / "config/config.yaml").write_text("preset: scheduled\n")
        self.site(**SITE)
        self._shrink()

    def _shrink(self) -> None:
        """Make a preset from the smoke preset, with its GPUs, and leave the paper only its cells."""
        presets = self.folder / "experiments/presets"
        preset = yaml.safe_load((presets / "smoke.yaml").read_text())
        preset |= {"name": "scheduled", "seeds": [0], "engine": preset["engine"] | {"gpus": self.gpus}}
        preset["default"] = {"spec_rl": preset["default"]["spec_rl"]}
        preset["trainer"] |= {"epochs": 6, "evaluate_every": 6}
        (presets / "scheduled.yaml").write_text(yaml.safe_dump(preset, sort_keys=False))
        paper = self.folder / "experiments/spec_rl"
        for kind, numbers in SHOWN.items():
            content = yaml.safe_load((paper / f"{kind}.yaml").read_text())
            content[kind] = [part for part in content[kind] if part["number"] in numbers]
            (paper / f"{kind}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        content = yaml.safe_load((paper / "cells.yaml").read_text())
        for grid in content["grids"]:
            grid["beyond_paper"] = grid["name"] != "smoke"
        (paper / "cells.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def site(self, **settings: Any) -> None:
        """Write the site file."""
        site(self.folder, **settings)

    def start(self, *arguments: str) -> subprocess.Popen:
        """Start `snakemake --profile slurm ARGUMENTS`."""
        process = start(self.cluster, self.folder, *arguments)
        self.started.append(process)
        return process

    def stop(self) -> None:
        """Kill the calls that still run, and cancel all jobs."""
        for process in self.started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        self.cluster.cancel_all()

    def call(self, *arguments: str) -> tuple[int, str]:
        """Run `snakemake --profile slurm ARGUMENTS`; returns its exit code and output."""
        return end(self.start(*arguments))

    def run(self, cell: str) -> Path:
        """Folder of a run."""
        return self.folder / f"results/scheduled/runs/spec_rl/{cell}/seed0"

    def manifests(self) -> list[str]:
        """Manifests of both runs, as targets."""
        return [str((self.run(cell) / "manifest.json").relative_to(self.folder)) for cell in CELLS]

    def manifest(self, cell: str) -> dict[str, Any]:
        """Content of a finished run's manifest."""
        return json.loads((self.run(cell) / "manifest.json").read_text())

    def records(self, cell: str) -> list[dict[str, Any]]:
        """Complete records of a run's steps, without seconds."""
        file = self.run(cell) / "steps.jsonl"
        text = file.read_text() if file.exists() else ""
        records = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [{key: value for key, value in record.items() if key not in TIMES} for record in records]

    def halted(self, steps: int, cells: Iterable[str] = CELLS) -> dict[str, int]:
        """Halt each cell's training as soon as it has trained `steps` steps; returns the ids of the processes."""
        halted: dict[str, int] = {}

        def all_are_halted() -> bool:
            for cell in set(cells) - set(halted):
                if len(self.records(cell)) >= steps and (process := trainer(self.folder, cell)):
                    signal_to(process, signal.SIGSTOP)
                    assert len(self.records(cell)) < STEPS, f"{cell} was trained before it could be disturbed"
                    halted[cell] = process
            return halted.keys() == set(cells)

        until(all_are_halted)
        return halted

    def hashes(self, cell: str) -> dict[str, str]:
        """Hashes of the policies in the manifest."""
        return {name: hash_ for name, hash_ in self.manifest(cell)["sha256"].items() if name.startswith("policies")}

    def leases(self, cell: str) -> list[dict[str, Any]]:
        """Entries of a run's lease, in order."""
        files = sorted((self.run(cell) / "lease").glob("*.json"))
        return [json.loads(file.read_text()) | {"beat": file.stat().st_mtime} for file in files]

    def trainings(self, cell: str) -> list[dict[str, Any]]:
        """Entries of the processes that trained."""
        return [lease for lease in self.leases(cell) if lease["run"] != EVALUATION]

    def resumed(self, cell: str) -> list[int]:
        """Steps from which the trainings resumed."""
        return [lease["resumed_from"] for lease in self.trainings(cell) if lease["resumed_from"] is not None]


def copy_to(folder: Path) -> None:
    """Copy the repository, with a profile that asks for the state of jobs sooner."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / "slurm").symlink_to("profiles/slurm")
    profile = folder / "profiles/slurm/profile.yaml"
    settings = yaml.safe_load(profile.read_text()) | {"slurm-init-seconds-before-status-checks": 2}
    profile.write_text(yaml.safe_dump(settings, sort_keys=False))


def site(folder: Path, **settings: Any) -> None:
    """Write a checkout's site file."""
    (folder / "profiles/slurm/site.yaml").write_text(yaml.safe_dump(settings))


def start(cluster: Cluster, folder: Path, *arguments: str, limit: int = LIMIT) -> subprocess.Popen:
    """Start `snakemake --profile slurm ARGUMENTS` in a folder, under a time limit in seconds."""
    # In the foreground `timeout` hands a signal on once; else twice, and the second interrupts the answer to one.
    limited = ["timeout", "--foreground", "-s", "INT", "-k", "60", str(limit), "env", "--default-signal=INT"]
    command = [*limited, "snakemake", "--profile", "slurm", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=cluster.env, text=True, start_new_session=True, **pipes)


def signal_to(process: int, number: int) -> None:
    """Send a signal."""
    subprocess.run(["kill", f"-{number}", str(process)], check=True)


def end(process: subprocess.Popen) -> tuple[int, str]:
    """Wait for the end of a call, which `timeout` limits."""
    text, _ = process.communicate()
    return process.returncode, text
