"""Sampling of tokens: a row's token depends on its own distribution and random numbers alone, not on the batch.

Distributions are log-probabilities in float32. A residual, and Gumbel noise, are computed in float64. Shapes: B rows, V
vocabulary.
"""

from collections.abc import Sequence

import torch

from redraft.rollout.engine import Residual
from redraft.rollout.streams import BITS, hashed, signed


def log_probs_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities, float32, of logits (..., V) at a temperature."""
    scaled = logits.float() if temperature == 1 else logits.float() / temperature
    return torch.log_softmax(scaled, dim=-1)


def sample(
    log_probs_BV: torch.Tensor, uniforms_B: torch.Tensor, greedy: bool = False, top_p: float = 1.0
) -> torch.Tensor:
    """Sample one token a row, int64 (B,), by the inverse CDF.

    Args:
        uniforms_B: on (0, 1].
        top_p: only the most probable tokens that together reach this mass can be sampled; 1 keeps all.
    """
    if greedy:
        return log_probs_BV.argmax(dim=-1)
    if top_p >= 1:
        return invert(log_probs_BV.exp(), uniforms_B)
    ordered_BV, tokens_BV = log_probs_BV.exp().sort(dim=-1, descending=True)
    # Mass of the more probable tokens: 0 for the first one, which is always kept.
    before_BV = ordered_BV.cumsum(dim=-1) - ordered_BV
    rank_B = invert(ordered_BV.masked_fill(before_BV >= top_p, 0.0), uniforms_B)
    return tokens_BV.gather(1, rank_B[:, None])[:, 0]


def sample_specially(
    log_probs_BV: torch.Tensor,
    firsts: Sequence[Residual | None],
    uniforms_B: torch.Tensor,
    keys: Sequence[int | None],
    positions_B: torch.Tensor,
) -> torch.Tensor:
    """Sample one token a row, int64 (B,), from a residual distribution or by Gumbel noise or both.

    Args:
        log_probs_BV: the policy's distribution.
        firsts: residual of each row; None for the policy's distribution itself.
        uniforms_B: on (0, 1], for rows without a key, which use the inverse CDF.
        keys: 64 bits each, for rows with Gumbel noise.
        positions_B: int64, position of the token in the response.
    """
    log_weights_BV = log_probs_BV.double()
    for row, first in enumerate(firsts):
        if first is not None:
            log_weights_BV[row] = _residual(log_weights_BV[row], first)
    tokens_B = torch.empty_like(positions_B)
    inverted = [row for row, key in enumerate(keys) if key is None]
    noisy = [row for row, key in enumerate(keys) if key is not None]
    if inverted:
        tokens_B[inverted] = invert(log_weights_BV[inverted].exp(), uniforms_B[inverted])
    if noisy:
        keys_of_rows = keys_of([key for key in keys if key is not None], log_weights_BV.device)
        noise = gumbel(keys_of_rows, positions_B[noisy], log_weights_BV.shape[1])
        tokens_B[noisy] = (log_weights_BV[noisy] + noise).argmax(dim=-1)
    return tokens_B


def keys_of(keys: Sequence[int], device: torch.device) -> torch.Tensor:
    """Keys of 64 bits on a device, int64 (B,)."""
    return torch.tensor([signed(key) for key in keys], dtype=torch.long, device=device)


def gumbel(keys_B: torch.Tensor, positions_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gumbel noise, float64 (B, V), of keys and positions, int64; see `redraft.rollout.streams.gumbel`."""
    tokens_V = torch.arange(vocabulary, device=keys_B.device)
    return -(-uniform(keys_B[:, None], positions_B[:, None], tokens_V[None]).log()).log()


def uniform(key: torch.Tensor, position: torch.Tensor, use: torch.Tensor) -> torch.Tensor:
    """Uniform numbers, float64 on (0, 1); shapes and dtypes as of `redraft.rollout.streams.hashed`.

    Args:
        use: the token that has this number, or a negative number for each other purpose.
    """
    # An integer tensor + 0.5 is float32, in which the largest hash would be 1.
    return (hashed(key, position, use).double() + 0.5) * 2.0**-BITS


def _residual(log_probs_V: torch.Tensor, first: Residual) -> torch.Tensor:
    """Log-weights (V,), not normalised, of the residual of p, whose log-probabilities are given.

    A residual without mass is replaced by p. It occurs by rounding where all of p was accepted; a rejection there has a
    probability of the size of the rounding error.
    """
    weights_V = log_probs_V.exp()
    tokens = torch.tensor(first.tokens, device=log_probs_V.device, dtype=torch.long)
    weights_V[tokens] *= torch.tensor(first.left, device=log_probs_V.device, dtype=torch.float64)
    return torch.where(weights_V.sum() > 0, weights_V.log(), log_probs_V)


def invert(weights_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Inverse CDF: the first index, int64 (B,), whose cumulative weight reaches the uniform's share of the sum.

    Weights need not be normalised; an index of weight 0 is never returned.
    """
    # float32 would round small weights away once the sum is near 1.
    cumulative_BV = weights_BV.cumsum(dim=-1, dtype=torch.float64)
    targets_B1 = uniforms_B.to(torch.float64)[:, None] * cumulative_BV[:, -1:]
    # NaN, as from a diverged policy, is found after the last index; the engine reports it with the answer.
    return torch.searchsorted(cumulative_BV, targets_B1)[:, 0].clamp_(max=weights_BV.shape[1] - 1)
