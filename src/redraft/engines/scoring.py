"""Log-probabilities of drafts, and of other tokens in their places, out of the logits of one prefill pass."""

from collections.abc import Iterator, Sequence

import torch

from redraft.engines.checks import checked
from redraft.engines.rows import Row, Scoring
from redraft.engines.sampling import log_probs_of
from redraft.rollout.engine import Scores

LOGITS_AT_ONCE = 1 << 26
"""More logits than these are normalised row by row, since the vocabulary may be large."""


def scores_of(logits: torch.Tensor, tokens: torch.Tensor, batch: Sequence[Row], temperature: float) -> list[Scores]:
    """Scores of the drafts in a batch.

    Args:
        logits: (rows, width, vocabulary).
        tokens: int64 (rows, width), prompts and drafts, padded on the right.
        batch: sessions that asked for scores.
        temperature: above 0.
    """
    chosen, others = [], []
    for part in _parts(logits):
        law = log_probs_of(logits[part, :-1], temperature)
        chosen.append(law.gather(2, tokens[part, 1:, None])[..., 0])
        others += [_others(of_row, row) for of_row, row in zip(law, batch[part], strict=True)]
    rows = zip(batch, torch.cat(chosen).cpu().numpy(), others, strict=True)
    return [
        Scores(checked(log_probs[_places(row)]), None if other is None else checked(other.cpu().numpy()))
        for row, log_probs, other in rows
    ]


def _parts(logits: torch.Tensor) -> Iterator[slice]:
    """Rows that are normalised at once."""
    size = len(logits) if logits.numel() <= LOGITS_AT_ONCE else 1
    return (slice(first, first + size) for first in range(0, len(logits), size))


def _others(law: torch.Tensor, row: Row) -> torch.Tensor | None:
    """Log-probabilities, float32 (n, k), of the tokens that a session asked for; law is (width - 1, vocabulary)."""
    assert isinstance(row.asked, Scoring)
    if row.asked.at is None:
        return None
    return law[_places(row)].gather(1, torch.tensor(row.asked.at, device=law.device, dtype=torch.long))


def _places(row: Row) -> slice:
    """Places of the draft's tokens among the next tokens of the sequence."""
    return slice(len(row.prompt) - 1, row.length - 1)
