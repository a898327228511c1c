"""Configuration of Slurm requests: resources of a preset's jobs by stage. A site file overrides them (docs/slurm.md).

Numbers without a measurement in docs/slurm.md are bounds that follow from parameter counts.
"""

import math
import re
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from redraft.config.base import MOST_CPUS, Config
from redraft.config.model import GgufModel, Model, TinyModel
from redraft.config.preset import Preset
from redraft.config.trainer import Engine, VerlEngine
from redraft.errors import UserError

Stage = Literal["train", "evaluate", "grade"]
SlurmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$")]
"""Name of a partition, account or the like, without characters that a shell interprets."""
Constraint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:*&|()\[\]-]*$")]
"""Argument of sbatch's `--constraint`."""


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


GpuModel = Annotated[
    str, BeforeValidator(_number_as_text), StringConstraints(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*$")
]
"""GPU type; YAML reads some as numbers, such as 3090."""
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}[mhd]$")]
"""Minutes, hours or days: `90m`, `12h`, `3d`."""
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@+-]+)?$")]
"""Option of sbatch. It is unquoted in commands, so characters that a shell interprets are invalid."""

MAX_SMALL_PARAMETERS = 1e8
"""Parameters below which a CPU trains and samples in minutes."""
DEFAULT_PARAMETERS = 14e9
"""Parameters of a checkpoint whose name has no number: those of SPEC-RL's largest."""
GIB = 2**30
VOCABULARY = 152_000
"""Vocabulary of the papers' models, the number of logits per token of a pass on a CPU."""
PROCESS_GIB = 20
"""Host memory of a process with CUDA, its libraries and buffers, GiB."""
MULTIPLE_GIB = 16
"""Memory requests for GPU nodes are multiples of this, GiB."""
GPU_CPUS = 8
"""CPU cores per GPU, more than `ray_cpus` on nodes of several GPUs."""
BUNDLE_CPUS = 3
"""CPUs in Ray's placement group for each GPU: `max_colocate_count` of verl's resource pool."""
STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
"""Key of verl with the number of TransferQueue's storage actors, spread over the nodes; each reserves a CPU."""
DEFAULT_STORAGE_UNITS = 8
"""verl's default. A run on a CPU has one."""
OTHER_CPUS = 2
"""CPUs for TransferQueue's controller, and for actors without a reservation, which start only where a CPU is free."""


class Request(Config):
    """Slurm settings of one job. Empty ones come from the site, then from the preset."""

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
    memory_gb: float | None = Field(default=None, gt=0, le=10**6)
    """Memory of the job on each node, GiB."""
    cpus: int | None = Field(default=None, ge=1, le=MOST_CPUS)
    """Processors on each of the job's nodes."""
    options: list[Option] | None = None
    """Further options of sbatch, such as `--exclusive` or `--reservation=NAME`."""


def gpus_of(stage: Stage, engine: Engine) -> int:
    """GPUs per node of a stage's job: the preset's for training, at most one for evaluation, none for grading."""
    # Evaluation samples with one replica on one GPU; further GPUs of the job would idle.
    return {"train": engine.gpus, "evaluate": min(engine.gpus, 1), "grade": 0}[stage]


def request_of(stage: Stage, preset: Preset) -> Request:
    """CPU cores and memory per node, and time limit per attempt, of a stage's job.

    They follow from the preset's largest model (`Preset.of_models` restricts it to the job's models), its engine, GPUs,
    nodes and threads, and the backend of evaluation.
    """
    size = max(map(parameters, preset.models.values()))
    if stage == "train":
        return _training(preset, size)
    if stage == "evaluate":
        return _evaluation(preset, size)
    # A grading process, limited to 4 GiB (docs/grading.md), and the process that reads the generations. Answers of a
    # small model are short sums.
    return (
        Request(cpus=1, memory_gb=3, runtime="1h")
        if size < MAX_SMALL_PARAMETERS
        else Request(cpus=1, memory_gb=16, runtime="6h")
    )


def ray_cpus(engine: VerlEngine) -> int:
    """CPUs of each node that Ray's actors reserve under verl. Where Ray counts fewer, it waits forever and silently.

    Raises:
        UserError: for a number of storage units that is none.
    """
    # Each storage actor reserves a CPU; a run without GPUs has one (`train.verl.settings`).
    units = engine.verl_leaves.get(STORAGE_UNITS, DEFAULT_STORAGE_UNITS if engine.gpus else 1)
    if type(units) is not int or units < 1:  # verl's own check of types comes once a job runs
        raise UserError(
            "verl needs a number of storage units", key=f"engine.verl.{STORAGE_UNITS}", value=units, allowed="1 or more"
        )
    return BUNDLE_CPUS * max(engine.gpus, 1) + math.ceil(units / engine.nodes) + OTHER_CPUS


def _training(preset: Preset, size: float) -> Request:
    engine = preset.engine
    # `redraft cost` estimates 63 hours for the papers' longest run on the papers' GPUs; this is 1.5 times as long.
    runtime = "1h" if size < MAX_SMALL_PARAMETERS else "4d"
    if not engine.gpus:
        under_verl = engine.kind == "verl"
        # On several nodes Ray counts the cores that Slurm granted, and its actors reserve more than they use.
        cpus = engine.threads
        if isinstance(engine, VerlEngine) and engine.nodes > 1:
            cpus = max(GPU_CPUS, ray_cpus(engine))
        # 32 bytes for each parameter as below: actor and critic in float32. No GPU, so nothing is offloaded.
        state = size * 32 + _logits(preset, size)
        return Request(cpus=cpus, memory_gb=_on_cpu(state, 12 if under_verl else 2), runtime=runtime)
    # Each replica of vLLM has the weights once more, in bfloat16.
    replicas = engine.gpus // engine.tensor_parallel if isinstance(engine, VerlEngine) else 0
    reserved = ray_cpus(engine) if isinstance(engine, VerlEngine) else 0
    # Bytes per parameter: if offloaded, weight, gradient and Adam's two moments in float32, for the actor and for PPO's
    # critic, else the weights of the reference policy, which FSDP2 always keeps in host memory; the weights of both in
    # full while they are loaded or saved; vLLM's weights in bfloat16.
    offloaded = 0.0
    if isinstance(engine, VerlEngine):
        offloads = engine.offload or any("offload_policy" in key for key in engine.verl_leaves)
        offloaded = (32 if offloads else 4) / engine.nodes
    gathered, sampled = 8, 2 * replicas
    memory = _on_gpus(size * (offloaded + gathered + sampled), processes=engine.gpus)
    return Request(cpus=max(GPU_CPUS * engine.gpus, reserved), memory_gb=memory, runtime=runtime)


def _evaluation(preset: Preset, size: float) -> Request:
    runtime = "1h" if size < MAX_SMALL_PARAMETERS else "1d"
    if not preset.engine.gpus:
        # GiB of vLLM's processes and of this one, and of this one alone (docs/slurm.md).
        processes = 6 if preset.evaluation.backend == "vllm" else 2
        memory = _on_cpu(size * 4 + _logits(preset, size), processes)
        return Request(cpus=preset.evaluation_threads, memory_gb=memory, runtime=runtime)
    # One GPU. Weights in bfloat16 pass through the page cache; vLLM's engine and its worker are two processes. After
    # the time limit a new attempt continues from the saved samples (docs/evaluation.md).
    return Request(cpus=GPU_CPUS, memory_gb=_on_gpus(size * 4, processes=2), runtime=runtime)


def _logits(preset: Preset, size: float) -> float:
    """Size of a pass's logits in float32, bytes; negligible for a small model."""
    return 4 * VOCABULARY * preset.engine.max_batched_tokens if size >= MAX_SMALL_PARAMETERS else 0


def _on_cpu(size: float, processes: int) -> float:
    return processes + max(math.ceil(size / GIB), 1)


def _on_gpus(size: float, processes: int) -> float:
    whole = size / GIB + PROCESS_GIB * processes
    return MULTIPLE_GIB * math.ceil(whole / MULTIPLE_GIB)


def parameters(model: Model) -> float:
    """Number of parameters: of a tiny model without embeddings, else from the model's name (`Qwen3-1.7B-Base`)."""
    if isinstance(model, TinyModel):
        attention = 4 * model.hidden_size * model.heads * model.head_dim
        return model.layers * (attention + 3 * model.hidden_size * model.intermediate_size)
    name = model.name if isinstance(model, GgufModel) else PurePath(model.path).name
    if not isinstance(model, GgufModel) and PurePath(model.path).parent.name == "snapshots":
        name = PurePath(model.path).parent.parent.name  # in the hub's cache the last folder is a commit
    # A number and its unit as a whole word: neither the 2.5 of Qwen2.5 nor the 2b of `v2b1` is a size.
    named = re.search(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bBmM])(?![A-Za-z0-9])", name)
    if not named:
        return DEFAULT_PARAMETERS
    return int(named[1] or 1) * float(named[2]) * (1e9 if named[3] in "bB" else 1e6)
