"""Distributions of chosen positions out of their hidden states, with a small part of the logits in memory at a time."""

from collections.abc import Callable, Iterator

import torch

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Logits of a chunk: at a vocabulary of 152k of 110 positions, or 441, for one reading of the head's weights."""
NORMALISED_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Logits that are normalised at once: on a processor few enough to stay in its cache, on a GPU few enough for noise."""

LogitsOf = Callable[[torch.Tensor], torch.Tensor]
"""A model's head: logits (m, vocabulary) of hidden states (m, size)."""


def distributions(
    head: LogitsOf, vocabulary: int, hidden: torch.Tensor, temperature: float = 1.0
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Log-probabilities of all tokens, some positions at a time.

    Args:
        hidden: (n, size).
        temperature: above 0.

    Yields:
        the positions, and float32 (positions, vocabulary); once also where n is 0.
    """
    device = hidden.device.type
    for chunk in chunks(len(hidden), LOGITS_AT_ONCE[device], vocabulary):
        first = chunk.start
        # The gradient of a slice is zeros as large as the chunk, for each piece anew; that of `split` is made once.
        for piece in head(hidden[chunk]).split(positions_of(NORMALISED_AT_ONCE[device], vocabulary)):
            part = piece.float()
            distribution = (part if temperature == 1 else part / temperature).log_softmax(-1)
            yield slice(first, first + len(distribution)), distribution
            first += len(distribution)


def chunks(count: int, logits: int, vocabulary: int) -> Iterator[slice]:
    """Positions, of `count`, that have so many logits together; at least one, and one chunk at least."""
    at_once = positions_of(logits, vocabulary)
    return (slice(first, first + at_once) for first in range(0, max(count, 1), at_once))


def positions_of(logits: int, vocabulary: int) -> int:
    """Number of positions that have so many logits together; at least one."""
    return max(1, logits // vocabulary)


def given_log_probs(
    head: LogitsOf, vocabulary: int, hidden: torch.Tensor, tokens: torch.Tensor, top: int = 0, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of one token and of the most probable ones at each position.

    Args, besides those of `distributions`:
        tokens: int64 (n,), the token that is asked for at each.
        top: number of most probable tokens.

    Returns:
        Tokens, int64, and their log-probabilities, float32, both (n, 1 + top): the given one, then the most probable
        ones in order.
    """
    ids, log_probs = [], []
    for places, distribution in distributions(head, vocabulary, hidden, temperature):
        asked, largest = tokens[places, None], distribution.topk(top)
        ids.append(torch.cat([asked, largest.indices], 1))
        log_probs.append(torch.cat([distribution.gather(1, asked), largest.values], 1))
    return torch.cat(ids), torch.cat(log_probs)
