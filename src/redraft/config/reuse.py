"""Reuse: what a group takes over from earlier rollouts. The defaults of each class are its paper's vetted setting."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config, Lenience, parse_lenience
from redraft.config.capability import Capability


class Retention(Config):
    """What of earlier rollouts is kept for each prompt; both trainers keep exactly that, also nothing."""

    visits: int = Field(default=0, ge=0)
    """Latest visits of the prompt whose rollouts are kept, as drafts."""
    correct: int = Field(default=0, ge=0)
    """Latest correct responses that are kept, of whatever visit."""
    top: int = Field(default=0, ge=0)
    """Most probable tokens of the sampling law that are kept with each token of a draft."""


class RolloutMethod(Config):
    """What every kind of reuse declares of itself."""

    @property
    def retention(self) -> Retention:
        """What the method finds in memory."""
        return Retention()

    @property
    def needs(self) -> frozenset[Capability]:
        """What the method asks of engine and trainer beyond sampling and scoring drafts."""
        return frozenset()


class Vanilla(RolloutMethod):
    """Every rollout is sampled from the first token on: the papers' baseline."""

    kind: Literal["vanilla"] = "vanilla"


class Speculative(RolloutMethod):
    """SPEC-RL: the previous epoch's rollout is verified as a draft and continued (arXiv 2509.23232, equation 3)."""

    kind: Literal["speculative"] = "speculative"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3): 0 reuses nothing, 1 is the plain rule, inf reuses all. e^0.5 is the paper's for GRPO."""

    @property
    def retention(self) -> Retention:
        """The drafts of the last visit."""
        return Retention(visits=1)


class RandomReuse(RolloutMethod):
    """SPEC-RL's first variant (its §4.3): drafts are cut at a uniformly random token, without verification."""

    kind: Literal["random"] = "random"

    @property
    def retention(self) -> Retention:
        """The drafts of the last visit."""
        return Retention(visits=1)


class DelayedReuse(RolloutMethod):
    """SPEC-RL's second variant (its §4.3): the draft is the rollout of two visits ago; in the second visit, of one."""

    kind: Literal["delayed"] = "delayed"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""

    @property
    def retention(self) -> Retention:
        """The drafts of the last two visits."""
        return Retention(visits=2)


class ReleaseVariant(RolloutMethod):
    """What SPEC-RL's published code does otherwise than its paper, each by itself or all together; for comparison."""

    kind: Literal["release"] = "release"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""
    fixed_uniforms: bool = True
    """Acceptance uniforms are the same at every epoch, as from a generator seeded anew at every call."""
    refreshed_log_probs: bool = True
    """The stored log-probabilities of a reused prefix become the current policy's at every epoch."""
    trainer_verification: bool = True
    """Drafts are scored by the training engine; the rollout engine prefills what is kept a second time."""

    @property
    def retention(self) -> Retention:
        """The drafts of the last visit."""
        return Retention(visits=1)

    @property
    def needs(self) -> frozenset[Capability]:
        """Scores by the training engine, if these verify."""
        return frozenset({Capability.TRAINER_SCORES} if self.trainer_verification else ())


Reuse = Annotated[Vanilla | Speculative | RandomReuse | DelayedReuse | ReleaseVariant, Field(discriminator="kind")]
