"""Rollouts as tensors, and what the policy says of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from redraft.engines.torch.head import Head, hidden_states
from redraft.rollout.types import Rollout


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts and responses side by side, padded on the right.

    Attributes:
        tokens: int64 (rows, width), prompt and response.
        starts: int64 (rows,), position at which each response begins.
        mask: float32 (rows, longest response), 1 on response tokens.
        trained: float32 (rows, longest response), 1 on response tokens that losses are taken of.
    """

    tokens: torch.Tensor
    starts: torch.Tensor
    mask: torch.Tensor
    trained: torch.Tensor

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        rollouts: Sequence[Rollout],
        pad: int,
        device: torch.device,
        stopped: Sequence[bool] = (),
    ) -> "Batch":
        """Join each rollout with its prompt; `stopped` are the rollouts whose gradient is, none if empty."""
        rows = [[*prompt, *rollout.tokens.tolist()] for prompt, rollout in zip(prompts, rollouts, strict=True)]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([rollout.length for rollout in rollouts], device=device)
        mask = (torch.arange(int(lengths.max()), device=device) < lengths[:, None]).float()
        trained = mask * ~torch.tensor(stopped, device=device)[:, None] if any(stopped) else mask
        return cls(tokens, torch.tensor([len(p) for p in prompts], device=device), mask, trained)

    def parts(self, rows: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, "Batch"]]:
        """Some of the rows in micro-batches of about equal length, each no wider than it must be.

        Yields:
            the micro-batch's row indices, int64 (n,), and the micro-batch; its mask keeps the width of the whole.
        """
        ends = self.starts + self.mask.sum(1).long()
        for chosen in rows[ends[rows].argsort(stable=True)].split(size):
            width = int(ends[chosen].max())
            whole = (self.starts, self.mask, self.trained)
            yield chosen, Batch(self.tokens[chosen, :width], *(part[chosen] for part in whole))

    def log_probs(
        self, model: Any, entropy: bool = False, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability, and on request entropy, of each response token: float32 (rows, longest response)."""
        tokens = self.tokens.gather(1, self._positions())[self.mask > 0]
        log_probs, entropies = Head(model, temperature).log_probs(self._hidden(model), tokens, entropy)
        return self._spread(log_probs), None if entropies is None else self._spread(entropies)

    def divergences(self, model: Any, reference: Any, temperature: float = 1.0) -> torch.Tensor:
        """KL divergence of a model from a reference at each response token, float32 (rows, longest response), nats."""
        states = (self._hidden(model), self._hidden(reference))
        heads = (Head(model, temperature), Head(reference, temperature))
        return self._spread(heads[0].divergences(states[0], heads[1], states[1]))

    def _hidden(self, model: Any) -> torch.Tensor:
        """Hidden states before each response token, (response tokens of all rows, size)."""
        # Pad tokens after the end need no attention mask: attention is causal, and `mask` drops their own outputs.
        hidden = hidden_states(model, input_ids=self.tokens, attention_mask=None)
        rows, places = self.mask.nonzero(as_tuple=True)
        return hidden[rows, self.starts[rows] + places - 1]

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of all response tokens in (rows, longest response), 0 after their ends."""
        return torch.zeros_like(self.mask, dtype=values.dtype).masked_scatter(self.mask > 0, values)

    def values(self, critic: Any) -> torch.Tensor:
        """The critic's value before each response token: float32 (rows, longest response)."""
        values = critic(input_ids=self.tokens, attention_mask=None).logits.float()[..., 0]
        return values.gather(1, self._positions() - 1) * self.mask

    def _positions(self) -> torch.Tensor:
        """Position of each response token, int64 (rows, longest response); the last column's beyond a response."""
        positions = self.starts[:, None] + torch.arange(self.mask.shape[1], device=self.tokens.device)
        return positions.clamp(max=self.tokens.shape[1] - 1)
