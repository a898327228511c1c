"""Sampling by inversion: one uniform a token decides it, whatever else is in the batch."""

import torch


def log_probs_of(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities, float32, of logits (..., vocabulary) at a temperature."""
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def sample(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Args:
        logits: (rows, vocabulary).
        uniforms: (rows,) on (0, 1].
        temperature: at least 0, which takes the most probable token.
        top_p: only the most probable tokens that together reach this mass can be drawn; 1 keeps all.

    Returns:
        tokens, int64 (rows,), and their log-probabilities, float32 (rows,), under the temperature, before top-p; at
        temperature 0 those of the policy.
    """
    log_probs = log_probs_of(logits, temperature or 1.0)
    if temperature == 0:
        tokens = log_probs.argmax(dim=-1)
    elif top_p >= 1:
        tokens = _invert(log_probs.exp(), uniforms)
    else:
        ordered, index = log_probs.exp().sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        rank = _invert(ordered.masked_fill(before >= top_p, 0.0), uniforms)
        tokens = index.gather(1, rank[:, None])[:, 0]
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulative weight reaches the uniform's share of the whole; never one of weight 0."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms.to(torch.float64)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets)[:, 0].clamp_(max=weights.shape[1] - 1)
