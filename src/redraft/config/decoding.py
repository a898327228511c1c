"""Configuration of decoding, the generation of tokens by the engine. All decodings sample from the same
distribution."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat, model_validator

from redraft.config.base import Config, invalid
from redraft.config.capability import Capability

BLOCK_STARTS = (0, *(2**power for power in range(4, 16)))
"""First positions of the ranges of a response in which blocks of speculation are counted; the last range is open."""
LONGEST_DRAFT = 64
"""Largest draft length, tokens."""


class Plain(Config):
    """Autoregressive decoding: one token of every response in each forward pass."""

    kind: Literal["plain"] = "plain"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    """Required capabilities of the engine."""


class Speculation(Config):
    """Speculative decoding: a drafter proposes tokens, and the policy verifies them exactly."""

    when: Literal["always", "threshold", "roofline"] = "always"
    """Forward passes that speculate: all; those with at most `most_active` active responses; or those for which a
    calibrated roofline predicts a speedup (equation 3)."""
    most_active: int | None = Field(default=None, ge=1)
    """Active responses up to which `when: threshold` speculates."""
    ramp: int = Field(default=32, ge=0)
    """Active responses that a rollout must have exceeded once before it speculates. Without an effect on `when:
    always`, where it must be the default."""
    draft_lengths: list[int] = Field(default=[8], min_length=1)
    """Draft lengths in tokens, rising. A run starts with the first; a single one is constant."""
    raise_at: float = Field(default=0.94, ge=0, le=1)
    """Acceptance rate from which the next draft length is used (α_up)."""
    lower_at: float = Field(default=0.85, ge=0, le=1)
    """Acceptance rate up to which the previous draft length is used (α_down)."""
    patience: int = Field(default=2, ge=1)
    """Consecutive rollouts with such a rate before the draft length changes."""
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.DRAFTERS})
    """Required capabilities of the engine."""

    @model_validator(mode="after")
    def _consistent(self) -> "Speculation":
        # Both ways: a value that another toggle ignores would look like a setting.
        if (self.when == "threshold") != (self.most_active is not None):
            raise invalid(
                f"most_active ({self.most_active}) is required for when: threshold and invalid otherwise",
                at=("most_active",),
            )
        # A set, so that equal lengths do not count as rising.
        if self.draft_lengths != sorted({*self.draft_lengths}) or self.draft_lengths[0] < 1:
            raise invalid(f"draft_lengths ({self.draft_lengths}) must rise from 1 or more", at=("draft_lengths",))
        if self.draft_lengths[-1] > LONGEST_DRAFT:
            raise invalid(f"draft_lengths must be at most {LONGEST_DRAFT}", at=("draft_lengths",))
        # At equal thresholds one acceptance would count as high and as low.
        if self.lower_at >= self.raise_at:
            raise invalid(f"lower_at ({self.lower_at}) must be below raise_at ({self.raise_at})", at=("lower_at",))
        if self.when == "always":
            self.without_effect(["ramp"], "with when: always")
        if len(self.draft_lengths) == 1:
            self.without_effect(["raise_at", "lower_at", "patience"], "with a single draft length")
        return self


class SelfSpeculation(Speculation):
    """Self-speculative decoding: a quantised copy of the policy proposes tokens, and the policy verifies them exactly.

    Source: EfficientRollout (arXiv 2606.18967); defaults are those of its Appendix E.3.
    """

    kind: Literal["self_speculation"]
    when: Literal["always", "threshold", "roofline"] = "roofline"
    """Forward passes that speculate: all; those with at most `most_active` active responses; or those for which a
    calibrated roofline predicts a speedup (equation 3)."""
    margin: float = Field(default=0.05, ge=0)
    """Margin by which the predicted speedup must exceed 1 (δ), for `when: roofline`."""
    draft_lengths: list[int] = Field(default=[5, 7, 9, 11], min_length=1)
    """Draft lengths in tokens, rising. A run starts with the first; a single one is constant."""
    bits: Literal[4, 8] = 4
    """Bits of a quantised weight."""
    group: int = Field(default=128, ge=1)
    """Weights that share a scale."""
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SELF_SPECULATION})
    """Required capabilities of the engine."""

    @model_validator(mode="after")
    def _margin_of_a_roofline(self) -> "SelfSpeculation":
        if self.when != "roofline":
            self.without_effect(["margin"], f"with when: {self.when}")
        return self


class Matching(Speculation):
    """Speculative decoding with the tokens that followed the same context before."""

    when: Literal["always", "threshold"] = "always"
    """Forward passes that speculate: all, or those with at most `most_active` active responses. A response without a
    match proposes nothing."""
    longest: int = Field(default=24, ge=1)
    """Longest match, tokens."""
    shortest: int = Field(default=1, ge=1)
    """Shortest match, tokens."""

    @model_validator(mode="after")
    def _ordered(self) -> "Matching":
        if self.shortest > self.longest:
            raise invalid(f"shortest ({self.shortest}) must be at most longest ({self.longest})", at=("shortest",))
        return self


class NGram(Matching):
    """Prompt lookup: a response proposes what followed its last tokens earlier in its own prompt and text.

    Source: vLLM's `ngram` speculation.
    """

    kind: Literal["ngram"]
    longest: int = Field(default=5, ge=1)
    """Longest match, tokens."""
    shortest: int = Field(default=2, ge=1)
    """Shortest match, tokens."""


class Suffix(Matching):
    """Suffix drafting: a response proposes what followed its last tokens most often in other responses to the prompt.

    These are the responses of the prompt's last passes, and those of this rollout that have ended.

    Source: SRT (arXiv 2601.09083), DAS (arXiv 2511.13841), HistoSpec (arXiv 2508.18588); defaults of `longest` and
    `least_share` are those of vLLM's suffix decoding.
    """

    kind: Literal["suffix"]
    window: int = Field(default=1, ge=1)
    """Last passes of a prompt whose responses are searched."""
    least_share: float = Field(default=0.1, ge=0, le=1)
    """Smallest share of the matches that go on with all proposed tokens; a proposal ends before it falls below."""


class LearnedHead(Speculation):
    """Drafting by a small head on the policy's last hidden state, trained beside the policy on its own rollouts.

    Source: EAGLE (arXiv 2401.15077) and multi-token prediction (arXiv 2412.19437), without attention.
    """

    kind: Literal["head"]
    when: Literal["always", "threshold"] = "always"
    """Forward passes that speculate: all, or those with at most `most_active` active responses. The first pass of a
    response has no hidden state and proposes nothing."""
    draft_lengths: list[int] = Field(default=[3], min_length=1)
    """Draft lengths in tokens, rising. A run starts with the first; a single one is constant. The head is trained to
    propose the longest."""
    width: int = Field(default=3, ge=1, le=16)
    """Size of the head's feed-forward layer, as a multiple of the policy's hidden size."""
    learning_rate: FiniteFloat = Field(default=1e-3, gt=0)
    """Learning rate of the head's AdamW, without weight decay."""
    updates: int = Field(default=4, ge=1)
    """Updates of the head on the responses of each step."""


Decoding = Annotated[Plain | SelfSpeculation | NGram | Suffix | LearnedHead, Field(discriminator="kind")]
"""Union of all decodings."""
