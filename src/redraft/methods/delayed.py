"""SPEC-RL's Delayed Reuse (arXiv 2509.23232, §4.3)."""

from typing import ClassVar, Literal, Self

from pydantic import Field

from redraft.config.base import Lenience, parse_lenience
from redraft.config.retention import Retention
from redraft.methods.reuse import ReuseMethod
from redraft.methods.strategy import Strategy


class DelayedReuse(ReuseMethod):
    """SPEC-RL's Delayed Reuse (§4.3): the draft is the rollout of two visits ago, in the second visit that of one."""

    order: ClassVar[int] = 40
    title: ClassVar[str] = "delayed reuse"
    kind: Literal["delayed"] = "delayed"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""

    def strategy(self) -> Strategy:
        """Reuse of older drafts by the published rule."""
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import spec_rl_verifier

        return reuse_drafts(spec_rl_verifier(self.lenience), visits_ago=2)

    @property
    def retention(self) -> Retention:
        """Drafts of the last two visits."""
        return Retention(visits=2)

    @classmethod
    def examples(cls) -> list[Self]:
        """The paper's lenience, and full reuse."""
        return [cls(), cls(lenience=parse_lenience("inf"))]
