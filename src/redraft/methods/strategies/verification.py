"""Verification of a draft chunk by chunk: nothing behind the chunk that holds the cut is computed."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np

from redraft.methods.strategies.tools import Tools
from redraft.rollout.engine import Gumbel, Scores, Session
from redraft.rollout.types import TopLaw


class Judge(Protocol):
    """A function that says how much of a chunk is kept. All before the chunk has been kept."""

    def __call__(self, scores: Scores, places: slice) -> int:
        """Leading tokens that are kept of the draft's tokens at `places`, which have these scores."""
        ...


async def verify(
    draft: np.ndarray, session: Session, tools: Tools, judge: Judge, *, whole: bool = False,
    at: np.ndarray | None = None, top: int = 0, draws: Gumbel | None = None,
) -> tuple[int, Scores]:  # fmt: skip
    """Score and judge a draft up to the chunk in which a token is rejected.

    Args:
        draft: int32 (n,), at least one token.
        session: of its prompt.
        tools: whose meter takes the judge's time.
        judge: looks at each chunk once, in order.
        whole: judge the whole draft at once, as a rule needs that does not stop early.
        at: of `Session.score`, as are the next two.

    Returns:
        number of leading tokens that are kept, and the scores of all that were scored.
    """
    kept, parts, known = 0, [], 0
    while kept == known < len(draft):
        scores = await session.score(draft, at, top, draws, None if whole else known)
        places = slice(known, known + len(scores.log_probs))
        with tools.meter.assembling():
            kept += judge(scores, places)
        parts.append(scores)
        known = places.stop
    return kept, _joined(parts)


def _joined(parts: Sequence[Scores]) -> Scores:
    """Scores of chunks as those of one."""
    if len(parts) == 1:
        return parts[0]
    tops = [part.top for part in parts if part.top]
    columns = (
        [getattr(part, name) for part in parts if getattr(part, name) is not None]
        for name in ("log_probs", "others", "drawn")
    )
    log_probs, others, drawn = (np.concatenate(column) if column else None for column in columns)
    top = TopLaw(*(np.concatenate([getattr(t, f.name) for t in tops]) for f in fields(TopLaw))) if tops else None
    assert log_probs is not None
    return Scores(log_probs, others, top, drawn)
