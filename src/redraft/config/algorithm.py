"""Policy-gradient algorithms. The defaults of each class are SPEC-RL's published settings (its Appendix A.1)."""

from typing import Literal

from pydantic import Field

from redraft.config.base import Config


class GRPO(Config):
    """Group-relative policy optimisation with a KL loss against the reference policy, as verl defines it."""

    kind: Literal["grpo"] = "grpo"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip range of the importance ratio."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip range of the importance ratio."""
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Bound of the dual clip for negative advantages."""
    kl_loss_coef: float = Field(default=1e-4, ge=0)
    """Weight of the KL loss against the reference policy."""
    kl_loss_type: Literal["low_var_kl"] = "low_var_kl"
    """The estimator of that KL divergence, by verl's name."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """How the token losses become one number, by verl's name."""


Algorithm = GRPO
