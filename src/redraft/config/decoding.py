"""Decoding: generation of tokens by the engine. Every decoding draws from the same distribution; some are faster."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config
from redraft.config.capability import Capability

BLOCK_STARTS = (0, *(2**power for power in range(4, 16)))
"""First positions of the parts of a response by which blocks of speculation are counted; the last part has no end."""


class Plain(Config):
    """Autoregressive decoding: one token of every response in each forward pass."""

    kind: Literal["plain"] = "plain"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    """Capabilities of an engine that it needs."""


class SelfSpeculation(Config):
    """Self-speculative decoding: a quantised copy of the policy proposes tokens, and the policy verifies them exactly.

    Source: EfficientRollout (arXiv 2606.18967); defaults are those of its Appendix E.3.
    """

    kind: Literal["self_speculation"]
    when: Literal["always", "threshold", "roofline"] = "roofline"
    """Passes that speculate: all; those with few enough active responses; or those for which a calibrated roofline
    predicts a speedup (equation 3)."""
    most_active: int | None = Field(default=None, ge=1)
    """Active responses up to which `when: threshold` speculates."""
    margin: float = Field(default=0.05, ge=0)
    """Part by which the predicted speedup must exceed 1 (δ)."""
    ramp: int = Field(default=32, ge=0)
    """Active responses that must have been exceeded once in a rollout before it speculates, unless it always does."""
    draft_lengths: list[int] = Field(default=[5, 7, 9, 11], min_length=1)
    """Numbers of tokens that are proposed at once, rising. A run begins with the first; with one it is fixed."""
    raise_at: float = Field(default=0.94, ge=0, le=1)
    """Share of accepted proposals from which the next number is taken (α_up)."""
    lower_at: float = Field(default=0.85, ge=0, le=1)
    """Share of accepted proposals up to which the number before is taken (α_down)."""
    patience: int = Field(default=2, ge=1)
    """Consecutive rollouts that must ask for it."""
    bits: Literal[4, 8] = 4
    """Bits of a quantised weight."""
    group: int = Field(default=128, ge=1)
    """Weights that share a scale."""
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SELF_SPECULATION})
    """Capabilities of an engine that it needs."""

    @model_validator(mode="after")
    def _consistent(self) -> "SelfSpeculation":
        if (self.when == "threshold") != (self.most_active is not None):
            raise ValueError(f"most_active ({self.most_active}) belongs to when: threshold, which needs it")
        if self.draft_lengths != sorted({*self.draft_lengths}) or self.draft_lengths[0] < 1:
            raise ValueError(f"draft_lengths ({self.draft_lengths}) must rise from 1 or more")
        if self.lower_at >= self.raise_at:
            raise ValueError(f"lower_at ({self.lower_at}) must be below raise_at ({self.raise_at})")
        return self


Decoding = Annotated[Plain | SelfSpeculation, Field(discriminator="kind")]
"""Union of all decodings."""
