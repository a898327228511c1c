"""Memory check of a run before weights are loaded.

The estimate follows from the model's shape; activations are an upper bound. Libraries use about 1 GiB in addition, most
of it allocated before the check.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.engines.torch.kv_cache import GROWTH
from redraft.errors import UserError
from redraft.train.models import load_config
from redraft.train.pretrained.precision import dtype_of

WEIGHTS = "model.safetensors"
CGROUP = Path("/sys/fs/cgroup/memory.max")
"""Memory limit of a container, if one is set."""
TRAINED = {"weights": 4, "gradients": 4, "AdamW's moments": 8}
"""Bytes per trained parameter, all in float32."""
COPIES = 2
"""Copies of AdamW's moments while a checkpoint is written: its tensors and the bytes of its file."""
HIDDEN, INTERMEDIATE = 14, 4
"""Numbers that a layer keeps per token for the backward pass, in units of the hidden size and of the feed-forward
width: inputs and outputs of norms, projections, attention and activation. Llama keeps 9 and 4, Qwen3 12 and 4."""
KEPT_BYTES = {4: 4, 2: 3}
"""Mean bytes of such a number, by bytes of the compute type: norms and the residual stream stay in float32."""

Bytes = Mapping[str, float]
"""Bytes by purpose."""


def check_memory(needed: Bytes, free: float, file: Path) -> None:
    """Raise a UserError if more memory is needed than free, both in bytes; the message lists the parts in GiB."""
    if (total := sum(needed.values())) > free:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in needed.items())
        raise UserError(
            "there is too little memory for this model",
            file=file,
            key="memory",
            value=gib(free),
            allowed=f"at least {gib(total)} ({parts})",
            hint="a smaller engine.rows_per_micro_batch or engine.max_rows needs less",
        )


def training(run: Run, folder: Path, longest_prompt: int) -> dict[str, float]:
    """Memory of a run of the local trainer with the initial policy in `folder`, in bytes by purpose."""
    config, size = load_config(folder), dtype_of(run.engine).itemsize
    parameters = (folder / WEIGHTS).stat().st_size / (config.dtype or torch.float32).itemsize
    length = longest_prompt + run.trainer.max_response_tokens
    trained = 1 + isinstance(run.algorithm, PPO)
    needed = {name: parameters * each * trained for name, each in TRAINED.items()}
    needed["rollout copy"] = parameters * size if size != 4 else 0.0
    needed["reference policy"] = parameters * 4 if run.algorithm.kl_loss_coef else 0.0
    needed["rollouts"] = run.least_bytes
    rollouts = run.trainer.prompts_per_step * max(run.trainer.group_size, run.trainer.fresh_samples)
    needed["key-value cache"] = cache_row(config, length, size) * min(run.engine.max_rows, rollouts)
    rows = min(run.engine.rows_per_micro_batch, run.trainer.most_prompts_per_update * run.trainer.group_size)
    update = (
        KEPT_BYTES[size] * _kept(config) * rows * length + needed["rollout copy"]
    )  # autocast rounds all weights in a pass
    needed["an update, or a checkpoint as it is written"] = max(update, COPIES * needed["AdamW's moments"])
    return {name: each for name, each in needed.items() if each}


def cache_row(config: Any, length: int, size: int, buffers: int = 2) -> float:
    """Size of one row of the in-process engine's key-value cache, in bytes.

    Args:
        length: tokens of a row.
        size: bytes per number.
        buffers: 2 on a CPU, where the cache grows by a copy into a second buffer; 1 on a GPU.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * buffers * size * config.num_hidden_layers * heads * head_dim * math.ceil(length / GROWTH) * GROWTH


def _kept(config: Any) -> float:
    """Numbers that all layers keep per token for the backward pass."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return config.num_hidden_layers * (HIDDEN * config.hidden_size + INTERMEDIATE * inner)


def available(device: torch.device) -> float:
    """Free memory of a device, in bytes; on a CPU at most the limit of the container."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(float(psutil.virtual_memory().available), math.inf if limit == "max" else float(limit))


def gib(size: float) -> str:
    """A number of bytes in GiB, as text."""
    return f"{size / 2**30:.1f} GiB"
