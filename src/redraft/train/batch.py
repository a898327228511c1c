"""Rollouts as tensors, and what the policy says of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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
        cls, prompts: Sequence[Sequence[int]], rollouts: Sequence[Rollout], pad: int, device: torch.device,
        stopped: Sequence[bool] = (),
    ) -> "Batch":  # fmt: skip
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

    def log_probs(self, model: Any, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability, and on request entropy, of each response token: float32 (rows, longest response)."""
        chosen = self._laws(model)
        log_probs = chosen.gather(2, self.tokens.gather(1, self._positions())[..., None])[..., 0]
        return log_probs * self.mask, -(chosen.exp() * chosen).sum(-1) * self.mask if entropy else None

    def divergences(self, model: Any, reference: Any) -> torch.Tensor:
        """KL divergence of a model from a reference at each response token, float32 (rows, longest response), nats."""
        own, other = self._laws(model), self._laws(reference)
        return (own.exp() * (own - other)).sum(-1) * self.mask

    def _laws(self, model: Any) -> torch.Tensor:
        """Log-probabilities of all tokens before each response token: float32 (rows, longest response, vocabulary)."""
        # Pad tokens behind the end need no attention mask: attention is causal, and `mask` drops their own outputs.
        logits = model(input_ids=self.tokens, attention_mask=None).logits.float()
        before = (self._positions() - 1)[..., None].expand(-1, -1, logits.shape[-1])
        return logits.gather(1, before).log_softmax(-1)

    def values(self, critic: Any) -> torch.Tensor:
        """The critic's value before each response token: float32 (rows, longest response)."""
        values = critic(input_ids=self.tokens, attention_mask=None).logits.float()[..., 0]
        return values.gather(1, self._positions() - 1) * self.mask

    def _positions(self) -> torch.Tensor:
        """Position of each response token, int64 (rows, longest response); the last column's beyond a response."""
        positions = self.starts[:, None] + torch.arange(self.mask.shape[1], device=self.tokens.device)
        return positions.clamp(max=self.tokens.shape[1] - 1)
