"""A key-value cache in which a token's slot is its absolute position, and attention of a decoding pass over it.

Scoring a draft writes the draft's keys and values into the slots of its positions; decoding behind a verified prefix
overwrites the slots of the rejected tail. Nothing is moved, padded on the left or computed twice: whatever lies
behind a row's current position is stale and masked, because a query attends only to slots up to its own position.

On a CPU a decoding pass attends by two matrix products, which take half as long as PyTorch's fused kernel there. The
kernel is made for many queries a sequence, as a chunk of a draft has; a decoding pass has one, or the few of a
speculated block. It is replaced under a custom name, known to transformers, and only while an engine runs: training and
every other use of the model keep theirs.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel

GROWTH = 16
"""Slots by which a cache grows."""
NAME = "redraft_slots"
FEW = 16
"""Queries of a sequence up to which products are used: both take as long with 4, the kernel half as long with 65."""


class SlotCache(Cache):
    """Keys and values, (rows, heads, slots, head_dim) for each layer.

    On a GPU, and wherever passes have static shapes, all slots are allocated at once. Else they grow with the longest
    sequence, a few at a time, and all are attended to: gaps between rows defeat the processor's prefetching, and
    attention over them takes twice as long.

    transformers' attention calls `update` with the new keys and values; `prefill`, `decode` and `extend` say beforehand
    which rows and positions these belong to.

    Args:
        config: of a model with standard attention in every layer.
        rows: sequences at once.
        slots: longest sequence, tokens.
        grows: whether slots are allocated as they are needed.

    Attributes:
        most: slots that a row can have.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        rows: int,
        slots: int,
        device: torch.device,
        dtype: torch.dtype,
        grows: bool = True,
    ) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.most = -(-slots // GROWTH) * GROWTH
        self._growth = GROWTH if grows else self.most
        self._shape = (2, config.num_hidden_layers, rows, heads)
        self._head_dim = head_dim
        size = math.prod(self._shape) * self.most * head_dim
        # Growing copies from one buffer to the other; allocating anew each time would fault in every page again. They
        # start as zeros, since what a mask hides must still be finite.
        self._buffers = [torch.zeros(size, device=device, dtype=dtype) for _ in range(2 if grows else 1)]
        self.layers: list = []
        self.clear()

    def clear(self) -> None:
        """Forget everything; slots that grow do so anew."""
        self._all = self._view(0 if self._growth < self.most else self.most)
        self._rows = self._index = torch.empty(0, dtype=torch.long, device=self._all.device)
        self._seen: slice | torch.Tensor | None = None
        self._span = 0

    def _view(self, slots: int) -> torch.Tensor:
        """Keys and values, (2, layers, rows, heads, slots, head_dim), at the front of the buffer that is not in use."""
        self._buffers.reverse()
        size = math.prod(self._shape) * slots * self._head_dim
        return self._buffers[0][:size].view(*self._shape, slots, self._head_dim)

    def _reserve(self, slots: int) -> None:
        """Make room for sequences of so many tokens."""
        had = self._all.shape[4]
        if slots <= had:
            return
        grown = self._view(min(-(-slots // self._growth) * self._growth, self.most))
        grown[..., :had, :] = self._all
        self._all = grown

    def prefill(self, rows: torch.Tensor, width: int) -> None:
        """The next pass writes `width` slots of these rows from slot 0 on, and attends only to what it writes."""
        self._reserve(width)
        self._rows, self._seen = rows, None

    def decode(self, positions: torch.Tensor, longest: int, width: int = 1) -> int:
        """The next pass writes `width` slots of each of the first rows, one behind the other.

        Args:
            positions: int64 (rows,), the first slot of each.
            longest: slots in use after the pass.
            width: tokens of a row.

        Returns:
            the slots that the pass will attend to; the mask must hide those that a row does not use.
        """
        rows = torch.arange(len(positions), device=positions.device)
        return self._write(slice(0, len(positions)), rows, positions, longest, width)

    def extend(self, rows: torch.Tensor, positions: torch.Tensor, longest: int, width: int) -> int:
        """The next pass writes slots as of `decode`, but of any rows; it attends to copies of theirs.

        Args:
            rows: int64 (n,).
            positions: as of `decode`, as are the next two.
        """
        return self._write(rows, rows, positions, longest, width)

    def _write(
        self, seen: slice | torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, longest: int, width: int
    ) -> int:
        self._reserve(longest)
        heads, slots = self._all.shape[3:5]
        first = (rows[:, None] * heads + torch.arange(heads, device=rows.device)) * slots
        behind = torch.arange(width, device=positions.device)
        self._index = (first[..., None] + positions[:, None, None] + behind).view(-1)
        self._seen, self._span = seen, longest if self._growth == self.most else slots
        return self._span

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` slots of one row to another."""
        self._all[:, :, target, :, :length] = self._all[:, :, source, :, :length]

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` slots of two rows."""
        held = self._all[:, :, first, :, :length].clone()
        self.move(second, first, length)
        self._all[:, :, second, :, :length] = held

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values, (rows, heads, tokens, head_dim); return those to attend to."""
        keys, values = self._all[0, layer_idx], self._all[1, layer_idx]
        if self._seen is None:
            keys[self._rows, :, : key_states.shape[2]] = key_states
            values[self._rows, :, : key_states.shape[2]] = value_states
            return key_states, value_states
        for cache, new in ((keys, key_states), (values, value_states)):
            cache.view(-1, self._head_dim).index_copy_(0, self._index, new.reshape(-1, self._head_dim))
        return keys[self._seen, :, : self._span], values[self._seen, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the next pass, as transformers' mask builder asks for prefill."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys, as transformers' mask builder asks for prefill."""
        return query_length, 0


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
