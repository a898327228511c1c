"""Memory of one GPU in the phases of a step under verl with FSDP2 and vLLM, by formulas.

| what | bytes | source |
|---|---|---|
| weights, gradients, moments | 4 + 4 + 8 a parameter, over all GPUs | ZeRO (1910.02054) §3.1, stage 3; verl: float32 |
| gathered parameters | 2 a parameter of two layers, and of the head | FSDP2: bfloat16, and the next layer's |
| their gradients | 2 + 4 a parameter of a layer, and of the head | bfloat16, and the float32 buffer of their sum |
| inputs of layers | 2 · tokens · hidden · layers | full recomputation (2205.05198) §5 |
| a layer's recomputation | 3 · tokens · (14 hidden + 4 feed-forward) | tests/test_memory_check.py |
| logits | 2 · 2 · tokens · vocabulary | bfloat16, and their gradient |
| logits, fused head | 10 · 512 · vocabulary | verl: 512 tokens; bfloat16, float32, gradient |
| vLLM | its share: weights, a pass, keys and values | `gpu_memory_utilization` |
| keys and values | 2 · 2 · layers · heads · head size / tensor parallel | vLLM, for each token; heads of keys |

Phases follow verl 0.9.1: vLLM samples while the trained state is resident, unless it is offloaded; then vLLM sleeps,
and its CUDA graphs and context remain. Estimates are rounded up, and no GPU was at hand to measure against.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.config.trainer import VerlEngine
from redraft.errors import UserError
from redraft.ops.sizing.shapes import layer_parameters, parameters_of, shape_of
from redraft.selfspec.constants import ModelConstants

GIB = 2.0**30
WEIGHT, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes a parameter, float32."""
HALF = 2
"""Bytes of a number in bfloat16."""
HIDDEN, INTERMEDIATE = 14, 4
"""Numbers that a layer keeps per token for the backward pass, in units of the hidden size and of the feed-forward
width: inputs and outputs of norms, projections, attention and activation. Llama keeps 9 and 4, Qwen3 12 and 4."""
KEPT_BYTES = 3
"""Mean bytes of such a number in bfloat16: norms and the residual stream stay in float32."""
FUSED_TOKENS, FUSED_BYTES = 512, 10
"""Tokens of a chunk of verl's fused head, and bytes of one of its logits."""
CONTEXT = 0.6 * GIB
"""CUDA's context of a process; a trainer and a vLLM share a GPU."""
NCCL = 1.0 * GIB
"""Buffers of the trainer's collective operations."""
GRAPHS = 1.5 * GIB
"""CUDA graphs of vLLM, which stay while it sleeps (verl's tuning guide)."""
SAMPLER_BYTES = 12
"""Bytes per row and token of the vocabulary while vLLM samples: logits, probabilities and noise in float32."""
PASS_NUMBERS = 4
"""Hidden sizes per token of a pass of vLLM, besides two feed-forward widths."""
ACTOR = "actor_rollout_ref.actor.fsdp_config"
FUSED = "actor_rollout_ref.model.use_fused_kernels"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
POLICIES = {"actor": f"{ACTOR}.offload_policy", "critic": "critic.fsdp.offload_policy"}
ACCUMULATION = f"{ACTOR}.use_no_sync_for_gradient_accumulation"
NO_CHECK = "engine.gpu_memory is the memory of a GPU in GiB; null leaves this check out"

Bytes = Mapping[str, float]
"""Bytes by purpose."""


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU.

    Attributes:
        rollout: bytes by purpose while vLLM samples.
        update: bytes by purpose at the peak of an update; the larger one of actor and critic.
        vllm: bytes by purpose within vLLM's share.
        cached_tokens: tokens whose keys and values fit into all replicas; below 0 if weights and a pass do not fit.
        longest: tokens of the longest sequence.
        replicas: number of vLLM's replicas.
        available: bytes of the GPU; infinite if unknown.
    """

    rollout: Bytes
    update: Bytes
    vllm: Bytes
    cached_tokens: float
    longest: int
    replicas: int
    available: float

    @property
    def faults(self) -> list[str]:
        """Phases that do not fit, each with its parts in GiB."""
        phases = {"the rollout": self.rollout, "an update": self.update}
        found = [
            f"{name} needs {gib(sum(parts.values()))} of {gib(self.available)} GiB ({parts_text(parts)})"
            for name, parts in phases.items()
            if sum(parts.values()) > self.available
        ]
        if self.cached_tokens < self.longest * self.replicas:
            share = parts_text({name: size for name, size in self.vllm.items() if name != "keys and values"})
            found.append(f"vLLM's share has no memory for a sequence of {self.longest:,} tokens beside {share} GiB")
        return found


def gpu_memory(run: Run, shape: ModelConstants) -> GpuMemory:
    """Memory of a run under verl on GPUs."""
    engine = run.engine
    assert isinstance(engine, VerlEngine)
    available = math.inf if engine.gpu_memory is None else engine.gpu_memory * GIB
    # Unknown memory is that of an H100, so that parts can be shown; nothing is rejected then.
    total = 80 * GIB if engine.gpu_memory is None else available
    ranks = max(engine.gpus, 1) * engine.nodes
    state = _state(run, engine, shape, ranks)
    resident = 0.0 if engine.offload else sum(state.values())
    sampling = {"vLLM's share": engine.gpu_memory_utilization * total, "contexts and NCCL": 2 * CONTEXT + NCCL}
    sampling |= {"weights and moments": resident} if resident else {}
    graphs = 0.0 if engine.eager else GRAPHS
    vllm = _vllm(run, engine, shape, engine.gpu_memory_utilization * total)
    # vLLM copies heads of keys and values where there are fewer of them than GPUs of a replica.
    each = shape.costs.kv_bytes / min(engine.tensor_parallel, shape.kv_heads)
    replicas = ranks // engine.tensor_parallel
    return GpuMemory(
        rollout=sampling | ({"CUDA graphs": graphs} if graphs else {}),
        update=_update(run, engine, shape, ranks) | {"contexts, NCCL and graphs": 2 * CONTEXT + NCCL + graphs},
        vllm=vllm,
        cached_tokens=vllm["keys and values"] / each * replicas,
        longest=run.longest_sequence,
        replicas=replicas,
        available=available,
    )


def _trained(run: Run, shape: ModelConstants) -> dict[str, float]:
    """Parameters of the trained models; the critic has one output in place of the vocabulary."""
    size = float(parameters_of(shape))
    # A tied head is the embedding, which the critic keeps.
    critic = size - (0 if shape.tied else shape.head_parameters)
    return {"actor": size} | ({"critic": critic} if isinstance(run.algorithm, PPO) else {})


def _state(run: Run, engine: VerlEngine, shape: ModelConstants, ranks: int) -> dict[str, float]:
    """Bytes of weights and moments of each trained model on a GPU; none if FSDP2 keeps them in host memory."""
    sizes = {name: size * (WEIGHT + MOMENTS) / ranks for name, size in _trained(run, shape).items()}
    return {name: 0.0 if engine.verl_leaves.get(POLICIES[name], False) else size for name, size in sizes.items()}


def _update(run: Run, engine: VerlEngine, shape: ModelConstants, ranks: int) -> dict[str, float]:
    """Bytes by purpose at the peak of an update of the actor, whose logits make it larger than the critic's."""
    parameters, tokens = parameters_of(shape), engine.max_tokens_per_gpu
    state, layer, head = _state(run, engine, shape, ranks), layer_parameters(shape), shape.head_parameters
    # The critic's state stays in memory while the actor is updated.
    waiting = 0.0 if engine.offload else state.get("critic", 0.0)
    parts = {
        "weights and moments": state["actor"] + waiting,
        # Gradients are in host memory if the state is (FSDP2's CPUOffloadPolicy).
        "gradients": parameters * GRADIENT / ranks if state["actor"] else 0.0,
        "gathered layers": HALF * (2 * layer + head) + (HALF + GRADIENT) * (layer + head),
    }
    if engine.verl_leaves.get(ACCUMULATION, False):  # each GPU keeps all gradients until the last pass of an update
        parts["gradients"] = float(parameters * GRADIENT)
    kept = KEPT_BYTES * tokens * (HIDDEN * shape.hidden + INTERMEDIATE * shape.intermediate)
    if engine.verl_leaves.get(CHECKPOINTING, True):
        parts["activations"] = HALF * tokens * shape.hidden * shape.layers + kept
    else:
        parts["activations"] = float(kept * shape.layers)
    fused = engine.verl_leaves.get(FUSED, engine.bitwise)
    parts["logits"] = float(
        FUSED_BYTES * FUSED_TOKENS * shape.vocabulary if fused else 2 * HALF * tokens * shape.vocabulary
    )
    return parts


def _vllm(run: Run, engine: VerlEngine, shape: ModelConstants, share: float) -> dict[str, float]:
    """Bytes by purpose within the share of one of vLLM's workers."""
    parallel = engine.tensor_parallel
    numbers = PASS_NUMBERS * shape.hidden + 2 * shape.intermediate / parallel
    parts = {
        "weights": HALF * parameters_of(shape) / parallel,
        "a pass": HALF * engine.max_batched_tokens * numbers + SAMPLER_BYTES * engine.max_rows * shape.vocabulary,
    }
    return parts | {"keys and values": share - sum(parts.values())}


def alternatives(run: Run, shape: ModelConstants, accepts: Callable[[VerlEngine], bool] = lambda _: True) -> list[str]:
    """Changes of the engine with which a run fits, the smallest change first; each as settings of the preset.

    Args:
        accepts: further condition that an engine has to meet, such as enough memory on the cluster's nodes.
    """
    trainer = run.trainer
    rows = trainer.most_prompts_per_update * trainer.group_size
    found = []
    for name, engine in _candidates(run):
        memory = gpu_memory(run.model_copy(update={"engine": engine}), shape)
        # verl rejects the others: the longest sequence is one pass, and GPUs have equal shares of an update.
        possible = (
            engine.max_tokens_per_gpu >= trainer.max_prompt_tokens + trainer.max_response_tokens
            and rows % (engine.gpus * engine.nodes) == 0
        )
        possible = possible and engine.gpus % engine.tensor_parallel == 0 and not _heads_fault(engine, shape)
        found += [name] if possible and not memory.faults and accepts(engine) else []
    return found[:3]


def _candidates(run: Run) -> Iterator[tuple[str, VerlEngine]]:
    """Engines to try, with the settings that differ."""
    engine = run.engine
    assert isinstance(engine, VerlEngine)
    share = next(s for s in (0.6, 0.5, 0.4, 0.3) if s < engine.gpu_memory_utilization or s == 0.3)
    passes = engine.max_tokens_per_gpu // 2
    parallel = min(2 * engine.tensor_parallel, max(engine.gpus, 1))
    on_host = {POLICIES[name]: True for name in ("actor", "critic")[: 1 + isinstance(run.algorithm, PPO)]}
    policy = {"verl": {**engine.verl, **on_host}}
    options: list[dict[str, Any]] = [
        {"gpu_memory_utilization": share},
        {"offload": True},
        {"tensor_parallel": parallel},
        {"max_tokens_per_gpu": passes},
        {"offload": True, "max_tokens_per_gpu": passes},
        {"nodes": 2 * engine.nodes},
        {"nodes": 2 * engine.nodes, "tensor_parallel": parallel},
        {"nodes": 2 * engine.nodes, "gpu_memory_utilization": share},
        {"nodes": 4 * engine.nodes, "tensor_parallel": parallel, "gpu_memory_utilization": share},
        policy,
        {"tensor_parallel": parallel, **policy},
        {"tensor_parallel": parallel, "max_tokens_per_gpu": passes, **policy},
    ]
    for changes in options:
        shown = {name: value for name, value in changes.items() if name != "verl"}
        text = ", ".join(f"{name}: {str(value).lower()}" for name, value in shown.items())
        text += f", verl: {{{', '.join(f'{key}: true' for key in on_host)}}} (slower)" if "verl" in changes else ""
        yield text.removeprefix(", "), engine.model_copy(update=changes)


def memory_fault(run: Run, accepts: Callable[[VerlEngine], bool] = lambda _: True) -> str:
    """Reason why a run under verl does not fit into the memory of its GPUs, and what would fit; empty if it fits.

    Models whose sizes are not known before they are fetched are not checked. `accepts` is that of `alternatives`.
    """
    shape, engine = shape_of(run.model), run.engine
    if shape is None or not isinstance(engine, VerlEngine) or engine.gpu_memory is None:
        return ""
    faults = [*gpu_memory(run, shape).faults, *_heads_fault(engine, shape)]
    return f"model {run.model_role}: {'; '.join(faults)}; {fitting_text(run, accepts)}" if faults else ""


def _heads_fault(engine: VerlEngine, shape: ModelConstants) -> list[str]:
    """Message if the heads of attention cannot be split; vLLM would say so only when the job runs."""
    parallel, kv_heads = engine.tensor_parallel, shape.kv_heads
    if shape.heads % parallel:
        return [f"tensor_parallel {parallel} does not divide its {shape.heads} heads"]
    # vLLM's models (qwen2.py and others) assert `total_num_kv_heads % tp_size == 0` or, if there are fewer of these
    # heads than GPUs, which then have copies, `tp_size % total_num_kv_heads == 0`.
    if max(kv_heads, parallel) % min(kv_heads, parallel):
        verb = "does not divide" if parallel < kv_heads else "is no multiple of"
        return [f"tensor_parallel {parallel} {verb} its {kv_heads} heads of keys and values"]
    return []


def fitting_text(run: Run, accepts: Callable[[VerlEngine], bool]) -> str:
    """Engines with which a run would fit, as text; `accepts` is that of `alternatives`."""
    shape = shape_of(run.model)
    names = alternatives(run, shape, accepts) if shape and isinstance(run.engine, VerlEngine) else []
    return f"this would fit: {' or '.join(f'{{{name}}}' for name in names) or 'nothing that was tried'}"


def check_fits(runs: Iterable[Run]) -> None:
    """Raise a UserError if GPUs are too small for runs under verl; it names their cells and what would fit."""
    checked = list(runs)
    reasons = {f"{run.paper}/{run.cell}": reason for run in checked if (reason := memory_fault(run))}
    if reasons:
        raise misfit_error(reasons, checked[0].preset)


def misfit_error(reasons: Mapping[str, str], preset: str, hint: str = "") -> UserError:
    """Error about cells that do not fit, with the reason of each; cells with the same reason share a line."""
    cells: dict[str, list[str]] = {}
    for cell, reason in reasons.items():
        cells.setdefault(reason, []).append(cell)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in cells.items()]
    return UserError(
        "\n  ".join(["these cells do not fit", *lines]),
        file=f"experiments/presets/{preset}.yaml",
        key="engines, by model",
        hint=f"{hint}{NO_CHECK}",
    )


def gib(size: float) -> str:
    """Bytes in GiB, as a number with one digit."""
    return f"{size / GIB:.1f}"


def parts_text(parts: Bytes) -> str:
    """Parts with their GiB."""
    return ", ".join(f"{name} {gib(size)}" for name, size in parts.items())
