"""Reuse: parts of earlier rollouts that a group takes over. The defaults of each class are its paper's settings."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config, Lenience, parse_lenience
from redraft.config.capability import Capability


class Retention(Config):
    """Retention of earlier rollouts for each prompt. Both trainers keep exactly this much, and by default nothing."""

    visits: int = Field(default=0, ge=0)
    """Number of latest visits of the prompt whose rollouts are kept as drafts."""
    correct: int = Field(default=0, ge=0)
    """Number of latest correct responses that are kept, from any visit."""
    top: int = Field(default=0, ge=0)
    """Number of most probable tokens of the sampling law that are kept with each draft token."""


class RolloutMethod(Config):
    """Declarations that every kind of reuse makes."""

    @property
    def retention(self) -> Retention:
        """Earlier rollouts that the method reads."""
        return Retention()

    @property
    def needs(self) -> frozenset[Capability]:
        """Capabilities of engine and trainer that the method needs."""
        return frozenset()


class Vanilla(RolloutMethod):
    """No reuse: every rollout is sampled from its first token. The papers' baseline."""

    kind: Literal["vanilla"] = "vanilla"


class Speculative(RolloutMethod):
    """SPEC-RL: the rollout of the last visit is verified as a draft and continued (arXiv 2509.23232, equation 3)."""

    kind: Literal["speculative"] = "speculative"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3): 0 reuses nothing, 1 is the plain rule, inf reuses all. The paper has e^0.5 for GRPO."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)


class RandomReuse(RolloutMethod):
    """SPEC-RL's Random Reuse (§4.3): drafts are cut at a uniformly random token, without verification."""

    kind: Literal["random"] = "random"

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)


class DelayedReuse(RolloutMethod):
    """SPEC-RL's Delayed Reuse (§4.3): the draft is the rollout of two visits ago, in the second visit that of one."""

    kind: Literal["delayed"] = "delayed"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last two visits."""
        return Retention(visits=2)


class ReleaseVariant(RolloutMethod):
    """Deviations of SPEC-RL's published code from its paper, singly or together; for comparison only."""

    kind: Literal["release"] = "release"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""
    fixed_uniforms: bool = True
    """Acceptance uniforms are the same in every epoch, as from a generator that is seeded at every call."""
    refreshed_log_probs: bool = True
    """Stored log-probabilities of a reused prefix are replaced by the current policy's in every epoch."""
    trainer_verification: bool = True
    """The training engine scores drafts, and the rollout engine prefills the accepted prefix once more."""

    @property
    def retention(self) -> Retention:
        """Drafts of the last visit."""
        return Retention(visits=1)

    @property
    def needs(self) -> frozenset[Capability]:
        """Scores by the training engine, if it verifies."""
        return frozenset({Capability.TRAINER_SCORES} if self.trainer_verification else ())


Reuse = Annotated[Vanilla | Speculative | RandomReuse | DelayedReuse | ReleaseVariant, Field(discriminator="kind")]
