"""Passes in which no row depends on the number, order or length of the others, to the last bit, on a CPU.

Two things make the last bits of log-probabilities depend on the batch. The order in which a matrix product adds
depends on the shapes of both matrices. And PyTorch computes a function such as the cosine by other instructions for the
last elements of a tensor, which do not fill a vector of the processor.

Here every product of a layer has the same shape: rows are computed in tiles of `TILE`, of which the last is filled with
zeros, and attention covers all slots of the cache. Tensors are filled to whole vectors before a function is applied. A
token gets the same keys, values and log-probabilities in any batch, in a prefill and in a decoding pass. So a session
that lost its row of the cache continues as if it had kept it.

It holds with one thread, since threads divide a tensor by its size. It is measured and not derived from a property of
the library: tests/test_invariant.py compares random batches. On a GPU it was not tried.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel

TILE = 16
"""Rows of every product."""
NAME = "redraft_invariant"
"""Name of this attention among transformers' implementations."""
VECTOR = 64
"""Multiple of the elements that any processor computes at once, unrolled loops included."""
FUNCTIONS = {
    torch.nn.functional.silu,
    torch.nn.functional.gelu,
    *(
        getattr(space, name)
        for space in (torch, torch.Tensor)
        for name in ("cos", "exp", "log", "rsqrt", "sigmoid", "sin", "tanh")
    ),
}
"""Functions of single elements that are not rounded exactly."""
SLOTS: ContextVar[int] = ContextVar("slots")
"""Slots that attention covers."""


@contextmanager
def invariant_passes(model: PreTrainedModel, slots: int) -> Iterator[None]:
    """Let a model compute invariant passes within the block.

    Args:
        slots: of a row of the cache.
    """
    before, token = model.config._attn_implementation, SLOTS.set(slots)
    model.config._attn_implementation = NAME
    try:
        with _InvariantFunctions():
            yield
    finally:
        model.config._attn_implementation = before
        SLOTS.reset(token)


def product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Product of rows (..., N, K) with a matrix (..., K, M), in tiles; (..., N, M)."""
    count = rows.shape[-2]
    tiles = pad(rows, (0, 0, 0, -count % TILE)).split(TILE, dim=-2)
    return torch.cat([tile @ matrix for tile in tiles], dim=-2)[..., :count, :]


class _InvariantFunctions(TorchFunctionMode):
    """Computes linear layers by `product`, and `FUNCTIONS` on whole vectors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in FUNCTIONS:
            return _filled(func, *args, **(kwargs or {}))
        return (_linear if func is linear else func)(*args, **(kwargs or {}))


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = product(input.reshape(-1, input.shape[-1]), weight.t()).view(*input.shape[:-1], -1)
    return out if bias is None else out + bias


def _filled(function: Callable[..., torch.Tensor], input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A function of each element of a tensor that is filled to whole vectors."""
    # Filled with 1, where every function of `FUNCTIONS` is finite.
    flat = pad(input.reshape(-1), (0, -input.numel() % VECTOR), value=1.0)
    return function(flat, *args, **kwargs)[: input.numel()].view(input.shape)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over all slots; arguments as of `redraft.engines.torch.kv_cache.attention`."""
    queries, unused = query.shape[2], SLOTS.get() - key.shape[2]
    if attention_mask is None:
        causal = torch.full((queries, key.shape[2]), -torch.inf, dtype=query.dtype, device=query.device)
        attention_mask = causal.triu(1)
    shared = query.shape[1] // key.shape[1]
    # Slots beyond those in use are zeros, and masked below.
    key, value = (pad(each.repeat_interleave(shared, 1), (0, 0, 0, unused)) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = product(query * scale, key.transpose(2, 3)) + pad(attention_mask, (0, unused), value=-torch.inf)
    return product(scores.softmax(-1), value).transpose(1, 2), None


AttentionInterface.register(NAME, attention)
