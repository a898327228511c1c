"""SPEC-RL's Random Reuse (arXiv 2509.23232, §4.3)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from redraft.config.retention import Retention
from redraft.methods.reuse import AuditedRule, Candidate, ReuseMethod
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    from redraft.methods.drafts.response import Verification
    from redraft.rollout.context import RolloutContext
    from redraft.rollout.engine import Session
    from redraft.rollout.types import Rollout, Task


class RandomReuse(ReuseMethod):
    """SPEC-RL's Random Reuse (§4.3): drafts are cut at a uniformly random token, without verification."""

    order: ClassVar[int] = 30
    scores: ClassVar[bool] = False
    label: ClassVar[str] = "random cut"
    title: ClassVar[str] = "random reuse"
    kind: Literal["random"] = "random"

    def strategy(self) -> Strategy:
        """Reuse of drafts up to a random token."""
        from redraft.methods.drafts.response import reuse_drafts

        return reuse_drafts(at_random)

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """Its distribution over drift."""
        from redraft.methods.acceptance.random_cut import RandomCut

        return {"random cut": AuditedRule(RandomCut(), exact=False, parts=("drift",))}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """Half of each draft."""
        from redraft.methods.acceptance.random_cut import RandomCut

        kept = RandomCut.of_length
        return [Candidate("random cut", "random", False, False, lambda at: kept(len(at.tokens)), scores=False)]


async def at_random(draft: "Rollout", session: "Session", task: "Task", context: "RolloutContext") -> "Verification":
    """Keep a draft up to a random token; nothing is scored."""
    from redraft.methods.acceptance.random_cut import RandomCut
    from redraft.methods.drafts.response import Verification

    (u,) = context.streams.uniforms("acceptance", draft.prompt, draft.sample, 1)
    prefix = RandomCut.cut(u, draft.length)
    return Verification(prefix, draft.log_probs[:prefix])
