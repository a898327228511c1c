"""Log-probabilities of drafts, and of other tokens in their places, out of the hidden states of one pass."""

from collections.abc import Sequence

import numpy as np
import torch

from redraft.engines.checks import checked
from redraft.engines.torch.head import Head
from redraft.engines.torch.rows import Row, Scoring
from redraft.engines.torch.sampling import gumbel, keys_of
from redraft.rollout.engine import Scores
from redraft.rollout.types import TopLaw


def scores_of(head: Head, hidden: torch.Tensor, batch: Sequence[Row], starts: Sequence[int]) -> list[Scores]:
    """Scores of the drafts or chunks in a batch; only their own positions pass through the head.

    Args:
        head: of the model.
        hidden: (rows, width, size), of prompts and drafts, padded on the right.
        batch: sessions that asked for scores.
        starts: position of each row's first hidden state; at most that before its chunk.
    """
    places = [_before_each(row, start) for row, start in zip(batch, starts, strict=True)]
    states = torch.cat([of_row[place] for of_row, place in zip(hidden, places, strict=True)])
    asked = _Asked([row.scoring for row in batch], hidden.device)
    found = [asked.read(law, places) for places, law in head.laws(states)]
    return asked.answers([torch.cat(column).cpu().numpy() for column in zip(*found, strict=True)])


def _before_each(row: Row, start: int) -> slice:
    """Places of the tokens before those that a session scores, among its tokens from `start` on."""
    return slice(len(row.prompt) + row.scoring.places.start - 1 - start, row.length - 1 - start)


class _Asked:
    """What sessions ask for at the positions of their chunks, one chunk behind the other.

    Each position gets what any of the sessions asks for, and each session only what it asked for.
    """

    def __init__(self, sessions: Sequence[Scoring], device: torch.device) -> None:
        self._sessions, self._lengths = sessions, [len(session.chunk) for session in sessions]
        self._tokens = torch.tensor(np.concatenate([s.chunk for s in sessions]), dtype=torch.long, device=device)
        self._top = max(session.top for session in sessions)
        self._at = torch.zeros((len(self._tokens), max(map(_width, sessions))), dtype=torch.long, device=device)
        for session, part in zip(sessions, self._at.split(self._lengths), strict=True):
            if session.at is not None:
                part[:, : _width(session)] = torch.tensor(session.at)
        keys = [session.draws.key if session.draws else 0 for session in sessions]
        each = [key for key, length in zip(keys, self._lengths, strict=True) for _ in range(length)]
        self._keys = keys_of(each, device)
        self._draws = any(session.draws for session in sessions)
        self._positions = torch.cat([torch.arange(s.places.start, s.places.stop, device=device) for s in sessions])

    def read(self, law: torch.Tensor, places: slice) -> list[torch.Tensor]:
        """Columns of answers at some of the positions, of their log-probabilities (m, vocabulary)."""
        chosen, others = (law.gather(1, tokens[places]) for tokens in (self._tokens[:, None], self._at))
        largest, drawn = law.topk(self._top), self._tokens[places]
        if self._draws:
            noise = gumbel(self._keys[places], self._positions[places], law.shape[1])
            drawn = (law.double() + noise).argmax(-1)
        return [chosen[:, 0], others, largest.indices.to(torch.int32), largest.values, drawn.to(torch.int32)]

    def answers(self, columns: Sequence[np.ndarray]) -> list[Scores]:
        """Each session's part of the columns."""
        ends = np.cumsum(self._lengths)[:-1]
        parts = zip(*(np.split(column, ends) for column in columns), strict=True)
        return [_scores(session, *part) for session, part in zip(self._sessions, parts, strict=True)]


def _scores(
    asked: Scoring, log_probs: np.ndarray, others: np.ndarray, top: np.ndarray, tops: np.ndarray, drawn: np.ndarray
) -> Scores:
    """What one session asked for, of what all did."""
    return Scores(
        checked(log_probs),
        None if asked.at is None else checked(others[:, : _width(asked)]),
        TopLaw(top[:, : asked.top], tops[:, : asked.top]) if asked.top else None,
        None if asked.draws is None else drawn,
    )


def _width(asked: Scoring) -> int:
    """Number of other tokens that a session asks for at each position."""
    return 0 if asked.at is None else asked.at.shape[1]
