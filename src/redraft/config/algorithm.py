"""Policy-gradient algorithms. The defaults of each class are SPEC-RL's published settings (its Appendix A.1)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config
from redraft.config.schedule import DynamicSampling, Epochs, Schedule


class PolicyGradient(Config):
    """What all algorithms share: verl's clipped policy loss and, where it has a weight, a KL loss."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip range of the importance ratio."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip range of the importance ratio."""
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Bound of the dual clip for negative advantages."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL loss against the reference policy; without one there is no reference pass."""
    kl_loss_type: Literal["low_var_kl"] = "low_var_kl"
    """The estimator of that KL divergence, by verl's name."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """How the token losses become one number, by verl's name."""

    @property
    def usual_schedule(self) -> Schedule:
        """What a cell that names no schedule takes."""
        return Epochs()


class GRPO(PolicyGradient):
    """Group-relative policy optimisation with a KL loss against the reference policy, as verl defines it."""

    kind: Literal["grpo"] = "grpo"
    kl_loss_coef: float = Field(default=1e-4, ge=0)
    """Weight of the KL loss against the reference policy; without one there is no reference pass."""


class PPO(PolicyGradient):
    """Proximal policy optimisation: a critic learns values, generalised advantage estimation uses them."""

    kind: Literal["ppo"] = "ppo"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of rewards, verl's default."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation, verl's default."""
    critic_learning_rate_ratio: float = Field(default=20.0, gt=0)
    """The critic's learning rate over the actor's: 1e-5 over 5e-7 in the paper."""
    value_clip: float = Field(default=0.5, gt=0)
    """Range to which values are clipped about the old ones, verl's default."""


class Overlong(Config):
    """DAPO's soft punishment of long responses (arXiv 2503.14476, equation 13)."""

    buffer: int = Field(ge=1)
    """Tokens before the limit over which the penalty grows."""
    penalty: float = Field(default=1.0, gt=0)
    """Taken from the reward at the limit."""


class DAPO(PolicyGradient):
    """Clip-higher, token-level loss and, unless a cell names another schedule, dynamic sampling.

    A step of a run is a generation step; the policy is updated when as many informative prompts have been gathered
    as a batch holds. So the rollout budget equals the other algorithms' (SPEC-RL, Appendix A.1).
    """

    kind: Literal["dapo"] = "dapo"
    clip_high: float = Field(default=0.28, gt=0)
    """Upper clip range of the importance ratio."""
    clip_ratio_c: float = Field(default=10.0, gt=1)
    """Bound of the dual clip for negative advantages."""
    loss_agg_mode: Literal["token-mean"] = "token-mean"
    """How the token losses become one number, by verl's name."""
    overlong: Overlong | None = None
    """Shaping of the reward by length; none in SPEC-RL, which shapes no rewards."""

    @property
    def usual_schedule(self) -> Schedule:
        """Dynamic sampling, a part of the algorithm."""
        return DynamicSampling()

    @model_validator(mode="after")
    def _higher(self) -> "DAPO":
        if self.clip_high < self.clip_low:
            raise ValueError(f"clip_high ({self.clip_high}) must not be below clip_low ({self.clip_low})")
        return self


class RLOO(PolicyGradient):
    """REINFORCE with a leave-one-out baseline; not in SPEC-RL's experiments."""

    kind: Literal["rloo"] = "rloo"


Algorithm = Annotated[GRPO | PPO | DAPO | RLOO, Field(discriminator="kind")]
