"""Attention of a decoding pass on a CPU: two matrix products, which take half as long as PyTorch's fused kernel there.

The fused kernel is made for many queries a sequence, as a chunk of a draft has; a decoding pass has one, or the few of
a speculated block. It is replaced under a name of its own, known to transformers, and only while an engine runs:
training and every other use of the model keep theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "redraft_slots"
FEW = 16
"""Queries of a sequence up to which products are used: both take as long with 4, the kernel half as long with 65."""


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers asks for it: query (rows, heads, tokens, head_dim); key and value may have fewer heads.

    Args:
        attention_mask: float (rows, 1, tokens, slots), added to a decoding pass's scores; None for prefill, which is
            causal.
    """
    if attention_mask is None or query.shape[2] > FEW:
        grouped, causal = query.shape[1] != key.shape[1], attention_mask is None
        out = scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=grouped
        )
        return out.transpose(1, 2), None
    heads, tokens = key.shape[1], query.shape[2]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    grouped_query = (query * scale).unflatten(1, (heads, -1)).flatten(2, 3)  # heads that share keys join in one product
    scores = torch.matmul(grouped_query, key.transpose(2, 3)).unflatten(2, (-1, tokens)).add_(attention_mask[:, None])
    out = torch.matmul(scores.softmax(-1).flatten(2, 3), value).unflatten(2, (-1, tokens))
    return out.flatten(1, 2).transpose(1, 2), None


AttentionInterface.register(NAME, attention)


@contextmanager
def slot_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model on a CPU attend this way within the block."""
    before = model.config._attn_implementation
    if model.device.type == "cpu":
        model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
