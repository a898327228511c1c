"""SPEC-RL (arXiv 2509.23232): the rollout of the last visit is a draft, verified by equation (3) and continued."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field

from redraft.config.base import Lenience, format_lenience, parse_lenience
from redraft.methods.reuse import AuditedRule, Candidate, DraftsOfLastVisit, Part
from redraft.methods.strategy import Strategy


class Speculative(DraftsOfLastVisit):
    """SPEC-RL: the rollout of the last visit is verified as a draft and continued (arXiv 2509.23232, equation 3)."""

    order: ClassVar[int] = 10
    title: ClassVar[str] = "SPEC-RL"
    kind: Literal["speculative"] = "speculative"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3): 0 reuses nothing, 1 is the plain rule, inf reuses all. The paper has e^0.5 for GRPO."""

    def strategy(self) -> Strategy:
        """Reuse of drafts by the published rule."""
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import spec_rl_verifier

        return reuse_drafts(spec_rl_verifier(self.lenience), fresh_every=self.fresh_every)

    @property
    def names(self) -> list[str]:
        """With the lenience."""
        return [published(self.lenience)]

    @classmethod
    def examples(cls) -> list[Self]:
        """From no reuse to full reuse."""
        return [cls(lenience=parse_lenience(lenience)) for lenience in (0, 1, "e^0.5", "inf")]

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """Leniences of the paper, and full reuse; tokens keep their log-probabilities."""
        from redraft.methods.acceptance.ratio import SpecRLRule

        def rule(lenience: float, *parts: Part) -> AuditedRule:
            return AuditedRule(SpecRLRule(lenience), renewed=False, exact=False, parts=parts)

        return {
            published(1.0): rule(1.0, "rules", "drift", "numbers", "bandit"),
            published(math.exp(0.2)): rule(math.exp(0.2), "rules", "drift"),
            published(math.exp(0.5)): rule(math.exp(0.5), "rules", "drift", "bandit"),
            "no verification": rule(math.inf, "drift", "bandit"),
        }

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """The plain rule, and the paper's lenience."""
        return {published(setting.lenience): setting for setting in (cls(lenience=1), cls())}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """The rule with each lenience."""
        from redraft.methods.acceptance.positions import kept_by
        from redraft.methods.acceptance.ratio import SpecRLRule

        rules = {published(lenience): SpecRLRule(lenience) for lenience in leniences}
        return [Candidate(name, "speculative", False, False, kept_by(rule)) for name, rule in rules.items()]


def published(lenience: float) -> str:
    """Name of the published rule in tables."""
    return f"published, l = {format_lenience(lenience)}"
