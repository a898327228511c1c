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


Method = Annotated[Vanilla | Speculative, Field(discriminator="kind")]
