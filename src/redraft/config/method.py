"""Rollout methods. The defaults of each class are the vetted setting of its paper."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config, Lenience, parse_lenience


class Vanilla(Config):
    """Every rollout is sampled from the first token on: the papers' baseline."""

    kind: Literal["vanilla"] = "vanilla"


class Speculative(Config):
    """SPEC-RL: the previous epoch's rollout is verified as a draft and continued (arXiv 2509.23232, equation 3)."""

    kind: Literal["speculative"] = "speculative"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3): 0 reuses nothing, 1 is the plain rule, inf reuses all. e^0.5 is the paper's for GRPO."""


class RandomReuse(Config):
    """SPEC-RL's first variant (its §4.3): drafts are cut at a uniformly random token, without verification."""

    kind: Literal["random"] = "random"


class DelayedReuse(Config):
    """SPEC-RL's second variant (its §4.3): the draft is the rollout of two epochs ago; in the second, of one."""

    kind: Literal["delayed"] = "delayed"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ of equation (3)."""


class ReleaseVariant(Config):
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


Method = Annotated[Vanilla | Speculative | RandomReuse | DelayedReuse | ReleaseVariant, Field(discriminator="kind")]
