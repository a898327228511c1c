"""Drawing tokens: what a row draws depends on its own distribution and random numbers, whatever else is in the batch.

Distributions are log-probabilities in float32. A residual, and Gumbel noise, are computed from them in float64.
"""

from collections.abc import Sequence

import torch

from redraft.rollout.engine import Residual
from redraft.rollout.streams import BITS, hashed, signed


def log_probs_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities, float32, of logits (..., vocabulary) at a temperature."""
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def sample(log_probs: torch.Tensor, uniforms: torch.Tensor, greedy: bool = False, top_p: float = 1.0) -> torch.Tensor:
    """Draw one token a row by inversion, int64 (rows,).

    Args:
        log_probs: (rows, vocabulary).
        uniforms: (rows,) on (0, 1].
        top_p: only the most probable tokens that together reach this mass can be drawn; 1 keeps all.
    """
    if greedy:
        return log_probs.argmax(dim=-1)
    if top_p >= 1:
        return invert(log_probs.exp(), uniforms)
    ordered, index = log_probs.exp().sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    rank = invert(ordered.masked_fill(before >= top_p, 0.0), uniforms)
    return index.gather(1, rank[:, None])[:, 0]


def sample_specially(
    log_probs: torch.Tensor,
    firsts: Sequence[Residual | None],
    uniforms: torch.Tensor,
    keys: Sequence[int | None],
    positions: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row, int64 (rows,), from a residual distribution or by Gumbel noise or both.

    Args:
        log_probs: (rows, vocabulary), the policy's distribution.
        firsts: what is left of it; None for the distribution itself.
        uniforms: (rows,) on (0, 1], for rows without a key, which draw by inversion.
        keys: 64 bits each, for rows that draw by Gumbel noise.
        positions: int64 (rows,), position of the token in the response.
    """
    distribution = log_probs.double()
    for row, first in enumerate(firsts):
        if first is not None:
            distribution[row] = _rest(distribution[row], first)
    tokens = torch.empty_like(positions)
    inverted = [row for row, key in enumerate(keys) if key is None]
    noisy = [row for row, key in enumerate(keys) if key is not None]
    if inverted:
        tokens[inverted] = invert(distribution[inverted].exp(), uniforms[inverted])
    if noisy:
        own = keys_of([key for key in keys if key is not None], distribution.device)
        noise = gumbel(own, positions[noisy], distribution.shape[1])
        tokens[noisy] = (distribution[noisy] + noise).argmax(dim=-1)
    return tokens


def keys_of(keys: Sequence[int], device: torch.device) -> torch.Tensor:
    """Keys of 64 bits on a device, int64 (rows,)."""
    return torch.tensor([signed(key) for key in keys], dtype=torch.long, device=device)


def gumbel(keys: torch.Tensor, positions: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Noise, float64 (rows, vocabulary), of keys and positions, int64 (rows,); see `redraft.rollout.streams.gumbel`."""
    numbers = hashed(keys[:, None], positions[:, None], torch.arange(vocabulary, device=keys.device)[None])
    return -(-((numbers.double() + 0.5) * 2.0**-BITS).log()).log()


def _rest(distribution: torch.Tensor, first: Residual) -> torch.Tensor:
    """Logarithm of what is left of p, not normalised, of log-probabilities (vocabulary,).

    Where nothing is left, as by rounding where all of p was accepted, it is p: a rejection there had a probability of
    the size of the rounding error.
    """
    rest = distribution.exp()
    tokens = torch.tensor(first.tokens, device=distribution.device, dtype=torch.long)
    rest[tokens] *= torch.tensor(first.left, device=distribution.device, dtype=torch.float64)
    return torch.where(rest.sum() > 0, rest.log(), distribution)


def invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulative weight reaches the uniform's share of the whole; never one of weight 0."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms.to(torch.float64)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets)[:, 0].clamp_(max=weights.shape[1] - 1)
