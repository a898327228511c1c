"""SPEC-RL with a fixed acceptance, so that the work of a step is known in advance."""

from collections.abc import Sequence

import numpy as np

from redraft.config.retention import Retention
from redraft.methods.drafts.response import Verification, reuse_drafts
from redraft.methods.strategy import Strategy
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.engine import Engine, Session
from redraft.rollout.memory import Memory
from redraft.rollout.types import Rollout, Task

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Accepted shares of a draft, 0 to 1."""


def accepted(share: float) -> Strategy:
    """SPEC-RL that scores each draft and then keeps the given share of its tokens."""

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        await session.score(draft.tokens)
        prefix = int(share * draft.length)
        return Verification(prefix, draft.log_probs[:prefix], verified=draft.length)

    return reuse_drafts(verifier)


def one_visit() -> Memory:
    """An empty memory of the last visit's drafts."""
    return Memory(Retention(visits=1))


def tools_of(engine: Engine, memory: Memory, prompts: Sequence[Sequence[int]], limit: int, step: int) -> RolloutContext:
    """Context of one step whose responses earn nothing."""

    async def reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
        return np.zeros(len(rollouts), np.float32)

    return RolloutContext(engine, reward, memory, Meter(), Streams(0, step), prompts, limit)
