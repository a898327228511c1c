"""SPEC-RL's published code (arXiv 2509.23232), where it deviates from the paper."""

from typing import ClassVar, Literal, Self

from pydantic import Field

from redraft.config.base import Lenience, parse_lenience
from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.methods.reuse import AuditedRule, ReuseMethod
from redraft.methods.speculative import published
from redraft.methods.strategy import Strategy

DEVIATIONS = ("fixed_uniforms", "refreshed_log_probs", "trainer_verification")
"""Fields that switch a deviation on."""


class ReleaseVariant(ReuseMethod):
    """Deviations of SPEC-RL's published code from its paper, singly or together; for comparison only."""

    order: ClassVar[int] = 50
    title: ClassVar[str] = "SPEC-RL as released"
    kind: Literal["release"] = "release"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""
    fixed_uniforms: bool = True
    """Acceptance uniforms are the same in every epoch, as from a generator that is seeded at every call."""
    refreshed_log_probs: bool = True
    """Stored log-probabilities of a reused prefix are replaced by the current policy's in every epoch."""
    trainer_verification: bool = True
    """The training engine scores drafts, and the rollout engine prefills the accepted prefix once more."""

    def strategy(self) -> Strategy:
        """Reuse of drafts by the published rule with the chosen deviations."""
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import spec_rl_verifier

        return reuse_drafts(spec_rl_verifier(self.lenience, self.fixed_uniforms, self.refreshed_log_probs))

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)

    @property
    def needs(self) -> frozenset[Capability]:
        """Scores by the training engine, if it verifies."""
        return frozenset({Capability.TRAINER_SCORES} if self.trainer_verification else ())

    @property
    def names(self) -> list[str]:
        """The published rule, released."""
        return [f"{published(self.lenience)}, released"]

    @classmethod
    def examples(cls) -> list[Self]:
        """No deviation, each of them, and all."""
        chosen = [(), *((name,) for name in DEVIATIONS), DEVIATIONS]
        return [cls(**{name: name in each for name in DEVIATIONS}) for each in chosen]

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The rule with log-probabilities of the last policy, also of old tokens."""
        from redraft.methods.acceptance.ratio import SpecRLRule

        return {f"{published(1.0)}, renewed": AuditedRule(SpecRLRule(1.0), exact=False, parts=("numbers",))}
