"""Configuration of policy-gradient algorithms. Defaults are SPEC-RL's settings (arXiv 2509.23232, Appendix A.1).

The losses are verl's (`redraft.train.losses`).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config, invalid
from redraft.config.schedule import Schedule
from redraft.errors import UserError
from redraft.methods.dynamic import DynamicSampling
from redraft.methods.epochs import Epochs


class PolicyGradient(Config):
    """verl's clipped policy loss, with a KL loss if that has a weight."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip range of the importance ratio."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip range of the importance ratio."""
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Bound of the dual clip for negative advantages."""
    kl_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL loss against the reference policy; at 0 there is no reference pass."""
    kl_loss_type: Literal["low_var_kl"] = "low_var_kl"
    """Estimator of that KL divergence, by verl's name."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """Reduction of token losses to one number, by verl's name."""

    @property
    def usual_schedule(self) -> Schedule:
        """Schedule of cells that do not name one."""
        return Epochs()


class GRPO(PolicyGradient):
    """Group-relative policy optimisation (GRPO) with a KL loss against the reference policy, as in verl."""

    kind: Literal["grpo"] = "grpo"
    kl_loss_coef: float = Field(default=1e-4, ge=0)
    """Weight of the KL loss against the reference policy; at 0 there is no reference pass."""
    std: Literal["unbiased", "population"] = "unbiased"
    """Standard deviation that advantages are divided by: with Bessel's correction, as in verl, or without."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation; verl's default."""


class PPO(PolicyGradient):
    """Proximal policy optimisation (PPO) with a critic and generalised advantage estimation."""

    kind: Literal["ppo"] = "ppo"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount factor of rewards; verl's default."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """λ of generalised advantage estimation; verl's default."""
    critic_learning_rate_ratio: float = Field(default=20.0, gt=0)
    """Ratio of the critic's learning rate to the actor's; 1e-5 to 5e-7 in SPEC-RL."""
    value_clip: float = Field(default=0.5, gt=0)
    """Clip range of values around the old ones; verl's default."""


class Overlong(Config):
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13)."""

    buffer: int | float = Field(gt=0)
    """Tokens before the length limit over which the penalty grows; a value below 1 is a share of that limit."""

    def tokens(self, limit: int) -> float:
        """Length of the buffer in tokens at a length limit."""
        # Shares are below 1, since no buffer is shorter than a token.
        return self.buffer if self.buffer >= 1 else self.buffer * limit

    penalty: float = Field(default=1.0, gt=0)
    """Penalty at the length limit, subtracted from the reward."""

    def check(self, limit: int) -> None:
        """Raise a UserError for a buffer longer than the length limit, which would punish responses of any length."""
        if self.buffer > limit:
            raise UserError(
                "the overlong buffer is longer than a response may be",
                key="algorithm.overlong.buffer",
                value=self.buffer,
                allowed=f"at most {limit} (trainer.max_response_tokens), or a share below 1",
            )


class DAPO(PolicyGradient):
    """DAPO (arXiv 2503.14476): clip-higher, token-level loss and, unless a cell names a schedule, dynamic sampling.

    A step of a run is a generation step. The policy is updated once a full batch of informative prompts is gathered.
    The rollout budget therefore equals that of the other algorithms (SPEC-RL, Appendix A.1).
    """

    kind: Literal["dapo"] = "dapo"
    clip_high: float = Field(default=0.28, gt=0)
    """Upper clip range of the importance ratio."""
    clip_ratio_c: float = Field(default=10.0, gt=1)
    """Bound of the dual clip for negative advantages."""
    loss_agg_mode: Literal["token-mean"] = "token-mean"
    """Reduction of token losses to one number, by verl's name."""
    overlong: Overlong | None = None
    """Shaping of the reward by length; none in SPEC-RL."""

    @property
    def usual_schedule(self) -> Schedule:
        """Dynamic sampling, a part of the algorithm."""
        return DynamicSampling()

    @model_validator(mode="after")
    def _higher(self) -> "DAPO":
        # Clip-higher is what distinguishes DAPO; the fields exchanged would be a run of another algorithm.
        if self.clip_high < self.clip_low:
            raise invalid(
                f"clip_high ({self.clip_high}) must not be below clip_low ({self.clip_low})", at=("clip_high",)
            )
        return self


class RLOO(PolicyGradient):
    """REINFORCE with a leave-one-out baseline (SPEED-RL, arXiv 2506.09016, equation 8). SPEC-RL does not run it."""

    kind: Literal["rloo"] = "rloo"


class REINFORCE(PolicyGradient):
    """REINFORCE with the group's mean reward as baseline (SPEED-RL, arXiv 2506.09016, equations 4 and 5)."""

    kind: Literal["reinforce"] = "reinforce"


Algorithm = Annotated[GRPO | PPO | DAPO | RLOO | REINFORCE, Field(discriminator="kind")]
