"""What the jobs of a preset ask of Slurm, by stage; a site file's settings go before (docs/slurm.md).

A number without a measurement in docs/slurm.md is a bound worked out from parameters, not a measurement.
"""

import math
import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from redraft.config.base import Config
from redraft.config.model import GgufModel, Model, TinyModel
from redraft.config.preset import Preset
from redraft.config.trainer import Engine, VerlEngine

Stage = Literal["train", "evaluate", "grade"]
SlurmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$")]
"""Name of a partition, account or the like, without characters that a shell interprets."""
Constraint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:*&|()\[\]-]*$")]
"""Argument of sbatch's `--constraint`."""
GpuModel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""GPU type, in the characters that the executor plugin allows."""
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[mhd]$")]
"""Minutes, hours or days: `90m`, `12h`, `3d`."""
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@+-]+)?$")]
"""Option of sbatch. Commands hold it unquoted, so it has no character that a shell interprets."""

SMALL = 1e8
"""Parameters below which a processor trains and samples in minutes."""
LARGEST = 14e9
"""Parameters of a checkpoint whose name tells none: SPEC-RL's largest."""
GIB = 2**30
VOCABULARY = 152_000
"""Tokens of the papers' models; a pass on a processor holds so many logits for each of its tokens."""
PROCESS_GIB = 20
"""Host memory of a process with CUDA, its libraries and buffers."""
MULTIPLE_GIB = 16
"""Requests for GPU nodes are multiples of it."""
GPU_CPUS = 8
"""Processors for each GPU: verl's workers ask Ray for 3, and its agents, storage and driver for some more."""


class Request(Config):
    """Slurm settings of one job. Empty ones are the site's, then those that follow from the preset."""

    partition: SlurmName | None = None
    """Partition, or several with commas; the cluster's default if empty."""
    account: SlurmName | None = None
    """Account that is charged; the user's default if empty."""
    qos: SlurmName | None = None
    """Quality of service."""
    constraint: Constraint | None = None
    """Features that nodes must have, such as `h100&ib`."""
    gpu_model: GpuModel | None = None
    """GPU type as `scontrol show node` lists it under Gres; any if empty."""
    runtime: Duration | None = None
    """Time limit of one attempt: `90m`, `12h`, `3d`."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Memory of the job on each node, GiB."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors on each of the job's nodes."""
    options: list[Option] | None = None
    """Further options of sbatch, such as `--exclusive` or `--reservation=NAME`."""


def gpus_of(stage: Stage, engine: Engine) -> int:
    """GPUs of a stage's job on each node: the preset's for a run, one to sample, none to grade."""
    return {"train": engine.gpus, "evaluate": min(engine.gpus, 1), "grade": 0}[stage]


def request_of(stage: Stage, preset: Preset) -> Request:
    """Processors and memory of a node, and the time limit of an attempt, that a job of a stage needs.

    They follow from the preset's largest model (the job's: `Preset.of_models`), its engine, GPUs, nodes and threads,
    and from its backend of evaluation.
    """
    size = max(map(parameters, preset.models.values()))
    if stage == "train":
        return _training(preset, size)
    if stage == "evaluate":
        return _evaluation(preset, size)
    # One process, which may take 4 GiB (docs/grading.md), beside the one that reads the generations. The answers of a
    # small model are short sums.
    return Request(cpus=1, memory_gb=3, runtime="1h") if size < SMALL else Request(cpus=1, memory_gb=16, runtime="6h")


def _training(preset: Preset, size: float) -> Request:
    engine = preset.engine
    # By `redraft cost` the papers' longest run takes 63 hours on the papers' GPUs; half as much again.
    runtime = "1h" if size < SMALL else "4d"
    if not engine.gpus:
        under_verl = engine.kind == "verl"
        # Over several nodes Ray counts the processors that Slurm gave, and its actors ask for more than they use.
        cpus = GPU_CPUS if engine.nodes > 1 else engine.threads
        state = size * 32 + _logits(preset, size)
        return Request(cpus=cpus, memory_gb=_on_cpu(state, 12 if under_verl else 2), runtime=runtime)
    replicas = engine.gpus // engine.tensor_parallel if isinstance(engine, VerlEngine) else 0
    # A parameter's bytes: weight, gradient and Adam's two moments in float32 of actor and of PPO's critic where they
    # are offloaded; both weights once more, whole, while they are loaded or saved; vLLM's in bfloat16.
    offloaded = 32 / engine.nodes if isinstance(engine, VerlEngine) and engine.offload else 0
    gathered, sampled = 8, 2 * replicas
    memory = _on_gpus(size * (offloaded + gathered + sampled), processes=engine.gpus)
    return Request(cpus=GPU_CPUS * engine.gpus, memory_gb=memory, runtime=runtime)


def _evaluation(preset: Preset, size: float) -> Request:
    runtime = "1h" if size < SMALL else "1d"
    if not preset.engine.gpus:
        processes = 6 if preset.evaluation.backend == "vllm" else 2
        memory = _on_cpu(size * 4 + _logits(preset, size), processes)
        return Request(cpus=preset.evaluation_threads, memory_gb=memory, runtime=runtime)
    # One GPU. Weights in bfloat16 pass through the page cache; vLLM's engine and its worker are two processes. What was
    # sampled is kept when time runs out (docs/evaluation.md).
    return Request(cpus=GPU_CPUS, memory_gb=_on_gpus(size * 4, processes=2), runtime=runtime)


def _logits(preset: Preset, size: float) -> float:
    """Bytes of a pass's logits in float32; those of a small model are few."""
    return 4 * VOCABULARY * preset.engine.max_batched_tokens if size >= SMALL else 0


def _on_cpu(size: float, processes: int) -> float:
    return processes + max(math.ceil(size / GIB), 1)


def _on_gpus(size: float, processes: int) -> float:
    whole = size / GIB + PROCESS_GIB * processes
    return MULTIPLE_GIB * math.ceil(whole / MULTIPLE_GIB)


def parameters(model: Model) -> float:
    """Number of parameters: a tiny model's without embeddings, any other's by its name (`Qwen3-1.7B-Base`)."""
    if isinstance(model, TinyModel):
        attention = 4 * model.hidden_size * model.heads * model.head_dim
        return model.layers * (attention + 3 * model.hidden_size * model.intermediate_size)
    name = model.name if isinstance(model, GgufModel) else model.path.rsplit("/", 1)[-1]
    named = re.search(r"(?<![0-9.])(\d+(?:\.\d+)?)([bBmM])(?![A-Za-z0-9])", name)
    return float(named[1]) * (1e9 if named[2] in "bB" else 1e6) if named else LARGEST
