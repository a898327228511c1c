"""Memory check of a run before weights are loaded.

The estimate follows from the model's shape; activations are an upper bound. Libraries use about 1 GiB in addition, most
of it allocated before the check.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.engines.torch.kv_cache import GROWTH, cached_heads
from redraft.errors import UserError
from redraft.ops.sizing.gpu_memory import HIDDEN, INTERMEDIATE
from redraft.ops.sizing.gpu_memory import KEPT_BYTES as HALF_KEPT_BYTES
from redraft.train.models import load_config
from redraft.train.pretrained.precision import dtype_of

WEIGHTS = "model.safetensors"
PROCESS = Path("/proc/self")
"""Linux's folder about this process."""
CGROUP_FILES = {
    "cgroup2": ("memory.max", "memory.current", ("inactive_file", "active_file")),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
"""By version of control groups: files of a group's limit and use, and parts of `memory.stat` that Linux can free."""
SLURM_MB = {"SLURM_MEM_PER_NODE": "", "SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE"}
"""Variables of a Slurm job with its memory, MiB, and the variable with the number that it is multiplied by."""
TRAINED = {"weights": 4, "gradients": 4, "AdamW's moments": 8}
"""Bytes per trained parameter, all in float32."""
COPIES = 2
"""Copies of AdamW's moments while a checkpoint is written: its tensors and the bytes of its file."""
KEPT_BYTES = {4: 4, 2: HALF_KEPT_BYTES}
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


def training(run: Run, folder: Path, longest_prompt: int, device: torch.device) -> dict[str, float]:
    """Memory of `device` for a run of the local trainer with the initial policy in `folder`, in bytes by purpose.

    Rollouts and checkpoints are in host memory, so that of a GPU does not have them.
    """
    on_cpu = device.type == "cpu"
    config, size = load_config(folder), dtype_of(run.engine).itemsize
    parameters = (folder / WEIGHTS).stat().st_size / (config.dtype or torch.float32).itemsize
    length = longest_prompt + run.trainer.max_response_tokens
    trained = 1 + isinstance(run.algorithm, PPO)
    needed = {name: parameters * each * trained for name, each in TRAINED.items()}
    needed["rollout copy"] = parameters * size if size != 4 else 0.0
    needed["reference policy"] = parameters * 4 if run.algorithm.kl_loss_coef else 0.0
    needed["rollouts"] = run.least_bytes if on_cpu else 0.0
    rollouts = run.trainer.prompts_per_step * max(run.trainer.group_size, run.trainer.fresh_samples)
    needed["key-value cache"] = cache_row(config, length, size, device) * min(run.engine.max_rows, rollouts)
    rows = min(run.engine.rows_per_micro_batch, run.trainer.most_prompts_per_update * run.trainer.group_size)
    update = (
        KEPT_BYTES[size] * _kept(config) * rows * length + needed["rollout copy"]
    )  # autocast rounds all weights in a pass
    if on_cpu:
        needed["an update, or a checkpoint as it is written"] = max(update, COPIES * needed["AdamW's moments"])
    else:
        needed["an update"] = update
    return {name: each for name, each in needed.items() if each}


def cache_row(config: Any, length: int, size: int, device: torch.device) -> float:
    """Size of one row of the in-process engine's key-value cache, in bytes.

    Args:
        length: tokens of a row.
        size: bytes per number.
    """
    buffers = 2 if device.type == "cpu" else 1  # on a CPU the cache grows by a copy into a second buffer
    heads, head_dim = cached_heads(config)
    return 2 * buffers * size * config.num_hidden_layers * heads * head_dim * math.ceil(length / GROWTH) * GROWTH


def _kept(config: Any) -> float:
    """Numbers that all layers keep per token for the backward pass."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return config.num_hidden_layers * (HIDDEN * config.hidden_size + INTERMEDIATE * inner)


def available(device: torch.device) -> float:
    """Free memory of a device, in bytes; on a CPU at most that of this process's control groups and Slurm job."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min([float(psutil.virtual_memory().available), *map(_left, _control_groups()), *_slurm_limits()])


def _control_groups() -> Iterator[tuple[Path, str]]:
    """Folders of this process's memory control group and of all groups around it, with the version of each.

    A container, a Slurm job or a user's session is such a group. In a container without its own view of groups, the
    group's path is that on the host, and the mounted folder is the group itself.
    """
    try:
        mounts = [line.split() for line in (PROCESS / "mountinfo").read_text().splitlines()]
        groups = [line.split(":", 2) for line in (PROCESS / "cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        return
    for mount in mounts:
        root, folder, (kind, *_, options) = mount[3], Path(mount[4]), mount[mount.index("-") + 1 :]
        if kind not in CGROUP_FILES or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        controller = "memory" if kind == "cgroup" else ""
        for path in (path for _, controllers, path in groups if controller in controllers.split(",")):
            inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
            for group in (inner, *inner.parents):
                yield folder / group, kind


def _left(group: tuple[Path, str]) -> float:
    """Bytes that a control group may still take; infinite without a limit, or if it cannot be read."""
    folder, kind = group
    limit, use, freeable = CGROUP_FILES[kind]
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return math.inf
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        kept = int((folder / use).read_text()) - sum(int(stat.get(part, 0)) for part in freeable)
        return float(max(int(most) - max(kept, 0), 0))
    except (OSError, ValueError):
        return math.inf


def _slurm_limits() -> Iterator[float]:
    """Memory of this Slurm job, bytes; on some clusters no control group limits it, and Slurm ends a job with more."""
    for name, factor in SLURM_MB.items():
        memory, count = os.environ.get(name, ""), os.environ.get(factor, "" if factor else "1")
        if memory.isdecimal() and count.isdecimal() and int(memory):  # 0 is all of the node's
            yield float(memory) * int(count) * 2**20


def gib(size: float) -> str:
    """A number of bytes in GiB, as text."""
    return f"{size / 2**30:.1f} GiB"
