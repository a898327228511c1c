"""No reuse: the papers' baseline."""

import asyncio
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from redraft.methods.reuse import AuditedRule, ReuseMethod
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    from redraft.rollout.context import RolloutContext
    from redraft.rollout.types import Group, Task


class Vanilla(ReuseMethod):
    """No reuse: every rollout is sampled from its first token. The papers' baseline."""

    order: ClassVar[int] = 0
    exact: ClassVar[bool] = True
    scores: ClassVar[bool] = False
    label: ClassVar[str] = "no reuse"
    kind: Literal["vanilla"] = "vanilla"

    def strategy(self) -> Strategy:
        """Sample every rollout from its first token on."""
        return vanilla

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The rule that keeps nothing."""
        from redraft.methods.acceptance.ratio import SpecRLRule

        return {"no reuse": AuditedRule(SpecRLRule(0.0), parts=("bandit",))}

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """The policy's own samples."""
        return {"vanilla": cls()}


async def vanilla(task: "Task", context: "RolloutContext") -> "Group":
    """Sample every rollout from its first token on."""
    from redraft.methods.drafts.response import complete, graded, indices, no_draft

    samples = (complete(no_draft(task.prompt, sample), task, context) for sample in indices(task))
    return await graded(task, await asyncio.gather(*samples), context)
