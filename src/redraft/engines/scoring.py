"""Log-probabilities of drafts, and of other tokens in their places, out of the logits of one prefill pass."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from redraft.engines.checks import checked
from redraft.engines.rows import Row, Scoring
from redraft.engines.sampling import gumbel, log_probs_of
from redraft.rollout.engine import Scores
from redraft.rollout.types import TopLaw

NOISE_AT_ONCE = 1 << 22
"""Numbers of Gumbel noise that are made at once."""
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
    chosen, further = [], []
    for part in _parts(logits):
        law = log_probs_of(logits[part, :-1], temperature)
        chosen.append(law.gather(2, tokens[part, 1:, None])[..., 0])
        further += [_further(of_row[_places(row)], row.scoring) for of_row, row in zip(law, batch[part], strict=True)]
    rows = zip(batch, torch.cat(chosen).cpu().numpy(), further, strict=True)
    return [Scores(checked(log_probs[_places(row)]), *asked) for row, log_probs, asked in rows]


def _parts(logits: torch.Tensor) -> Iterator[slice]:
    """Rows that are normalised at once."""
    size = len(logits) if logits.numel() <= LOGITS_AT_ONCE else 1
    return (slice(first, first + size) for first in range(0, len(logits), size))


def _further(law: torch.Tensor, asked: Scoring) -> tuple[np.ndarray | None, TopLaw | None, np.ndarray | None]:
    """What a session asked for beside its draft: other tokens, the top, drawn tokens; law is (draft, vocabulary)."""
    others = top = drawn = None
    if asked.at is not None:
        at = torch.tensor(asked.at, device=law.device, dtype=torch.long)
        others = checked(law.gather(1, at).cpu().numpy())
    if asked.top:
        largest = law.topk(asked.top)
        top = TopLaw(largest.indices.to(torch.int32).cpu().numpy(), largest.values.cpu().numpy())
    if asked.draws is not None:
        drawn = _drawn(law, asked.draws.key)
    return others, top, drawn


def _drawn(law: torch.Tensor, key: int) -> np.ndarray:
    """Tokens, int32 (draft,), that each row of a law draws by the noise of its position."""
    at_once = max(1, NOISE_AT_ONCE // law.shape[1])
    positions = torch.arange(len(law), device=law.device)
    pieces = zip(law.split(at_once), positions.split(at_once), strict=True)
    drawn = [(piece.double() + gumbel([key] * len(p), p, law.shape[1])).argmax(dim=-1) for piece, p in pieces]
    return torch.cat(drawn).to(torch.int32).cpu().numpy()


def _places(row: Row) -> slice:
    """Places of the draft's tokens among the next tokens of the sequence."""
    return slice(len(row.prompt) - 1, row.length - 1)
