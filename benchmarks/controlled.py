"""SPEC-RL with a fixed acceptance, so that the work of a step is known in advance."""

from redraft.rollout.engine import Session
from redraft.rollout.strategies import Context, Kept, Strategy, reuse
from redraft.rollout.types import Rollout

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Accepted shares of a draft, 0 to 1."""


def accepted(share: float) -> Strategy:
    """SPEC-RL that scores each draft and then keeps the given share of its tokens."""

    async def cut(draft: Rollout, session: Session, context: Context) -> Kept:
        await session.score(draft.tokens)
        prefix = int(share * draft.length)
        return Kept(prefix, draft.log_probs[:prefix], verified=draft.length)

    return reuse(cut)
