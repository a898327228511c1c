"""A key-value cache in which a token's slot is its absolute position, and attention of a decoding pass over it.

Scoring a draft writes the draft's keys and values into the slots of its positions; decoding after a verified prefix
overwrites the slots of the rejected tail. Nothing is moved, padded on the left or computed twice: slots after a row's
current position are stale and masked, because a query attends only to slots up to its own position.

On a CPU a decoding pass attends by two matrix products, which take half as long as PyTorch's fused kernel there. The
kernel is made for many queries per sequence, as a chunk of a draft has; a decoding pass has one, or the few of a
speculated block. The replacement has a custom name, known to transformers, and is active only while an engine runs:
training and every other use of the model keep their own attention.

In bfloat16 prefill and chunks attend by the same products. They take half as long as the fused kernel there too, and a
token then has the same hidden state to the last bit whether it is decoded or scored: oneDNN's products add in an order
that does not depend on the number of rows or masked keys (measured up to 1,024 keys; docs/real-model.md). The fused
kernel's do, and rounding to bfloat16 enlarges every difference at the next product.

Shapes: B rows of a pass, T tokens of a row in a pass, S slots, D size of a head.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel

GROWTH = 16
"""Slots by which a cache grows."""
NAME = "redraft_slots"
"""Name of this attention among transformers' implementations."""
MAX_QUERIES_BY_PRODUCTS = 16
"""Most queries of a sequence for which attention uses matrix products: the fused kernel takes as long with 4 queries,
and half as long with 65."""
QUERIES_AT_ONCE = 64
"""Queries of a sequence whose scores are computed at once in bfloat16: in a prefill they see no key after them, and
their scores stay in a CPU's cache."""


def cached_heads(config: PreTrainedConfig) -> tuple[int, int]:
    """Number of key-value heads of a layer, and their size."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class SlotCache(Cache):
    """Keys and values, (rows, heads, S, D) for each layer.

    On a GPU, and for passes with static shapes, all slots are allocated at once. Otherwise they grow with the longest
    sequence, a few at a time, and all of them are attended to: on a CPU gaps between rows defeat prefetching, so that
    attention over them takes twice as long.

    transformers' attention calls `update` with the new keys and values; `prefill` or `decode` sets beforehand which
    rows and positions these belong to.

    Args:
        config: of a model with standard attention in every layer.
        rows: sequences at once.
        slots: longest sequence, tokens.
        grows: whether slots are allocated as they are needed.

    Attributes:
        max_slots: most slots of a row.
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
        heads, head_dim = cached_heads(config)
        self.max_slots = -(-slots // GROWTH) * GROWTH
        self._growth = GROWTH if grows else self.max_slots
        self._shape = (2, config.num_hidden_layers, rows, heads)
        self._head_dim = head_dim
        size = math.prod(self._shape) * self.max_slots * head_dim
        # Growing copies from one buffer to the other: a new allocation each time would fault in every page again. They
        # start as zeros, since masked values must be finite too.
        self._buffers = [torch.zeros(size, device=device, dtype=dtype) for _ in range(2 if grows else 1)]
        self.layers: list = []
        self._all = self._buffers[0][:0].view(*self._shape, 0, head_dim)
        if not grows:
            self._reserve(self.max_slots)
        self.clear()

    def clear(self) -> None:
        """Forget everything; slots that grow start from none."""
        if self._growth < self.max_slots:
            self._all = self._all[..., :0, :]
        self._rows = self._index = torch.empty(0, dtype=torch.long, device=self._all.device)
        self._attended_rows: slice | torch.Tensor | None = None
        self._span = 0

    def _reserve(self, slots: int) -> None:
        """Allocate slots for sequences of `slots` tokens; keys and values are copied to the other buffer."""
        before = self._all.shape[4]
        if slots <= before:
            return
        slots = min(-(-slots // self._growth) * self._growth, self.max_slots)
        # `_all` is a view of the other buffer from now on, and is copied from there.
        self._buffers.reverse()
        size = math.prod(self._shape) * slots * self._head_dim
        grown = self._buffers[0][:size].view(*self._shape, slots, self._head_dim)
        grown[..., :before, :] = self._all
        self._all = grown

    def prefill(self, rows: torch.Tensor, width: int) -> None:
        """Let the next pass write `width` slots of these rows from slot 0 on, and attend only to what it writes."""
        self._reserve(width)
        self._rows, self._attended_rows = rows, None

    def decode(
        self, positions_B: torch.Tensor, longest: int, width: int = 1, rows_B: torch.Tensor | None = None
    ) -> int:
        """Let the next pass write `width` consecutive slots of each of its rows.

        Args:
            positions_B: int64, the first slot of each row.
            longest: slots in use after the pass.
            width: tokens of a row, T.
            rows_B: int64, the rows; None for the first ones, whose slots are attended to without a copy.

        Returns:
            Number of slots that the pass attends to; the mask must hide those that a row does not use.
        """
        self._reserve(longest)
        heads, slots = self._all.shape[3:5]
        count, device = len(positions_B), positions_B.device
        rows = torch.arange(count, device=device) if rows_B is None else rows_B
        # Index of each new token in a layer's keys as (rows * heads * S, D).
        starts = (rows[:, None] * heads + torch.arange(heads, device=device)) * slots
        offsets = torch.arange(width, device=device)
        self._index = (starts[..., None] + positions_B[:, None, None] + offsets).view(-1)
        self._attended_rows = slice(0, count) if rows_B is None else rows_B
        # A growing cache is attended to as a whole, since gaps between rows are slow (see the class).
        self._span = longest if self._growth == self.max_slots else slots
        return self._span

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` slots of one row to another."""
        self._all[:, :, target, :, :length] = self._all[:, :, source, :, :length]

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` slots of two rows."""
        copy = self._all[:, :, first, :, :length].clone()
        self.move(second, first, length)
        self._all[:, :, second, :, :length] = copy

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values, (B, heads, T, D); return those to attend to."""
        keys, values = self._all[0, layer_idx], self._all[1, layer_idx]
        # Under autocast rotated keys are float32, which attention would round as it rounds all operands of products.
        key_states, value_states = key_states.to(keys.dtype), value_states.to(values.dtype)
        if self._attended_rows is None:
            keys[self._rows, :, : key_states.shape[2]] = key_states
            values[self._rows, :, : key_states.shape[2]] = value_states
            return key_states, value_states
        for cache, new in ((keys, key_states), (values, value_states)):
            # One write for all rows, at indices on the device: it can be captured in a graph.
            cache.view(-1, self._head_dim).index_copy_(0, self._index, new.reshape(-1, self._head_dim))
        return keys[self._attended_rows, :, : self._span], values[self._attended_rows, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the next pass; transformers' mask builder calls this for prefill."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys; transformers' mask builder calls this for prefill."""
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
    """Attention by transformers' interface; query (B, heads, T, D), key and value (B, fewer heads, S, D).

    Args:
        attention_mask: float (B, 1, T, S), added to a decoding pass's scores; None for prefill, which is causal.
    """
    query, mask, queries = query.to(key.dtype), attention_mask, query.shape[2]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.dtype == torch.bfloat16:
        causal = mask is None
        if mask is None:
            # Whole vectors of keys, since the softmax of a part of a vector is computed by other instructions.
            key, value = (pad(each, (0, 0, 0, -queries % GROWTH)) for each in (key, value))
            mask = torch.full((1, 1, queries, key.shape[2]), -torch.inf, dtype=query.dtype).triu_(1)
        blocks = []
        for first in range(0, queries, QUERIES_AT_ONCE):
            block = slice(first, first + QUERIES_AT_ONCE)
            seen = slice(block.stop if causal else None)
            attended = (key[:, :, seen], value[:, :, seen], mask[:, :, block, seen])
            blocks.append(_by_products(query[:, :, block], *attended, scale))
        return torch.cat(blocks, dim=1), None
    if mask is None or queries > MAX_QUERIES_BY_PRODUCTS:
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        return out.transpose(1, 2), None
    return _by_products(query, key, value, mask, scale), None


def _by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention (B, T, heads, D) by two matrix products; heads that share keys join in one product."""
    heads, tokens = key.shape[1], query.shape[2]
    grouped_query = (query * scale).unflatten(1, (heads, -1)).flatten(2, 3)
    # (B, key heads, queries of a key head, T, S); the mask is (B, 1, 1, T, S).
    scores = torch.matmul(grouped_query, key.transpose(2, 3)).unflatten(2, (-1, tokens)).add_(mask[:, None])
    out = torch.matmul(scores.softmax(-1).flatten(2, 3), value).unflatten(2, (-1, tokens))
    return out.flatten(1, 2).transpose(1, 2)


AttentionInterface.register(NAME, attention)


@contextmanager
def slot_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model use, within the block, this attention on a CPU, and elsewhere one that takes the cache's masks."""
    before = model.config._attn_implementation
    if model.device.type == "cpu":
        model.config._attn_implementation = NAME
    elif before not in ("eager", "sdpa"):  # FlashAttention has no masks of single positions
        model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = before
