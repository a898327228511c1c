"""Training in bfloat16 without losing small updates: float32 weights are trained, a bfloat16 copy rolls out.

AdamW and its moments stay in float32, since an update at a usual learning rate is smaller than bfloat16 can add to a
weight. Forward and backward passes compute in bfloat16 by PyTorch's autocast. Rollouts and their scores come from a
copy of the weights, rounded after every update, as vLLM receives them from verl.
"""

import copy
from typing import Any

import torch

from redraft.config.precision import FASTEST, not_taken
from redraft.config.trainer import EngineSettings

DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
"""PyTorch's types by `EngineSettings.dtype`, for the in-process engine."""


def dtype_of(engine: EngineSettings) -> torch.dtype:
    """Compute type of the in-process engine.

    Raises:
        UserError: for `fastest`, for which the preset has no recorded precision.
    """
    if engine.dtype == FASTEST:
        raise not_taken()
    return DTYPES[engine.dtype]


def rounded(model: Any, dtype: torch.dtype) -> Any:
    """The model if its weights have that type, else a copy without gradients whose weights have it.

    Buffers keep theirs: rotary frequencies in bfloat16 would turn late positions by wrong angles.
    """
    if next(model.parameters()).dtype == dtype:
        return model
    other = copy.deepcopy(model).requires_grad_(False)
    for parameter in other.parameters():
        parameter.data, parameter.grad = parameter.data.to(dtype), None
    return other
