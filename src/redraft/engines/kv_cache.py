"""A key-value cache in which a token's slot is its absolute position.

Scoring a draft writes the draft's keys and values into the slots of its positions; decoding behind a verified prefix
overwrites the slots of the rejected tail. Nothing is moved, padded on the left or computed twice: whatever lies
behind a row's current position is stale and masked, because a query attends only to slots up to its own position.
"""

import torch
from transformers import Cache, PreTrainedConfig


class SlotCache(Cache):
    """Preallocated keys and values, (rows, heads, slots, head_dim) for each layer.

    transformers' attention calls `update` with the new keys and values; `prefill` and `decode` say beforehand which
    rows and positions these belong to.

    Args:
        config: of a model with standard attention in every layer.
        rows: sequences at once.
        slots: longest sequence, tokens.
    """

    def __init__(
        self, config: PreTrainedConfig, rows: int, slots: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (rows, heads, slots, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.layers: list = []
        self._rows: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._span = 0

    def prefill(self, rows: torch.Tensor) -> None:
        """The next pass writes these rows from slot 0 on, and attends only to what it writes."""
        self._rows, self._positions = rows, None

    def decode(self, positions: torch.Tensor, span: int) -> None:
        """The next pass writes one slot of each of the first rows, and attends to the first `span` slots."""
        self._rows = torch.arange(len(positions), device=positions.device)
        self._positions, self._span = positions, span

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` slots of one row to another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values, (rows, heads, tokens, head_dim); return those to attend to."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self._positions is None:
            keys[self._rows, :, : key_states.shape[2]] = key_states
            values[self._rows, :, : key_states.shape[2]] = value_states
            return key_states, value_states
        keys[self._rows, :, self._positions] = key_states[:, :, 0]
        values[self._rows, :, self._positions] = value_states[:, :, 0]
        count = len(self._positions)
        return keys[:count, :, : self._span], values[:count, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the next pass, as transformers' mask builder asks for prefill."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys, as transformers' mask builder asks for prefill."""
        return query_length, 0
