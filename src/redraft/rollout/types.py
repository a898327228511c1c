"""Rollouts, and the graded groups that a step makes of them."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

CORRECT = 0.5
"""A response is correct if its reward is above this, half of what a grader gives at most."""


class Finish(StrEnum):
    """Why a response ended."""

    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, eq=False)
class TopLogProbs:
    """The most probable tokens of the sampling distribution at each position, the most probable one first.

    Attributes:
        tokens: int32, (length, k).
        log_probs: float32, (length, k).
    """

    tokens: np.ndarray
    log_probs: np.ndarray

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Log-probabilities, float32 (length, m), of integer tokens (length, m); -inf for those that are not here."""
        # (length, m, k); a token is at one of the k indices at most, so the maximum is its value or -inf.
        same = tokens[:, :, None] == self.tokens[:, None]
        return np.where(same, self.log_probs[:, None], np.float32(-np.inf)).max(axis=-1)

    def leading(self, count: int) -> "TopLogProbs":
        """Those of the first `count` positions."""
        return TopLogProbs(self.tokens[:count], self.log_probs[:count])


@dataclass(frozen=True, eq=False)
class Rollout:
    """One response to a prompt, with its history.

    Attributes:
        prompt: index of the prompt in the training data.
        sample: index within the prompt's group.
        tokens: int32, (length,), the end-of-sequence token included where there is one.
        log_probs: float32, (length,), of each token under the policy that sampled it; under the policy that kept it
            last, where reuse is exact.
        sampled_at: int32, (length,), the step at which each token was sampled.
        finish: why it ended.
        prefix_length: tokens taken over from the draft.
        draft_length: tokens of the draft, 0 if there was none.
        verified: draft tokens scored under the current policy.
        top: top of the distribution whose log-probabilities these are, where the method retains it.
        log_weights: float32, (length,), log of each token's importance weight, where the method has any: the current
            policy's probability of the token over the probability with which it was generated.
    """

    prompt: int
    sample: int
    tokens: np.ndarray
    log_probs: np.ndarray
    sampled_at: np.ndarray
    finish: Finish
    prefix_length: int = 0
    draft_length: int = 0
    verified: int = 0
    top: TopLogProbs | None = None
    log_weights: np.ndarray | None = None

    @property
    def length(self) -> int:
        """Tokens of the response."""
        return len(self.tokens)

    @property
    def behaviour(self) -> np.ndarray:
        """Log-probability with which each token was generated, weights included, float32 (length,)."""
        # The weight is p / density.
        return self.log_probs if self.log_weights is None else self.log_probs - self.log_weights

    @property
    def decoded(self) -> int:
        """Tokens sampled for this rollout."""
        return self.length - self.prefix_length

    def leading(self, count: int) -> "Rollout":
        """Its first `count` tokens at most, which is what a limit of `count` tokens would have sampled."""
        if self.length <= count:
            return self
        columns = {name: getattr(self, name)[:count] for name in ("tokens", "log_probs", "sampled_at")}
        weights = None if self.log_weights is None else self.log_weights[:count]
        top = self.top and self.top.leading(count)
        prefix = min(self.prefix_length, count)
        return replace(self, **columns, finish=Finish.LENGTH, prefix_length=prefix, top=top, log_weights=weights)

    @property
    def fully_reused(self) -> bool:
        """True if the whole draft was kept."""
        return self.draft_length > 0 and self.prefix_length == self.draft_length


class Use(StrEnum):
    """Part of a sample in the update."""

    TRAINED = "trained on"
    STOPPED = "gradient stopped"
    """Its reward enters the group's baseline, and nothing else."""
    REPLACED = "replaced"
    """No part: a response of an earlier step replaces it. Its cost still counts."""


class OldLogProbs(StrEnum):
    """Source of a sample's old log-probabilities, the denominator of the importance ratio."""

    RECOMPUTED = "recomputed"
    """The policy before the update."""
    STORED = "stored"
    """The policy that sampled each token."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A rollout with its reward, before any shaping, and its part in the update.

    If it is `carried`, an earlier step paid for the rollout; it counts in no later step's cost.
    """

    rollout: Rollout
    reward: float
    use: Use = Use.TRAINED
    old_log_probs: OldLogProbs = OldLogProbs.RECOMPUTED
    carried: bool = False

    @property
    def correct(self) -> bool:
        """True if the response is correct."""
        return self.reward > CORRECT


@dataclass(frozen=True, eq=False)
class Group:
    """The graded samples of one prompt; groups of a step may differ in size.

    Attributes:
        prompt: index of the prompt in the training data.
        visit: how many times the schedule rolled out the prompt before.
        samples: at least one.
    """

    prompt: int
    visit: int
    samples: tuple[Sample, ...]

    @property
    def rollouts(self) -> list[Rollout]:
        """Responses in the order of the samples."""
        return [sample.rollout for sample in self.samples]

    @property
    def rewards(self) -> np.ndarray:
        """Rewards before any shaping, float32 (samples,)."""
        return np.array([sample.reward for sample in self.samples], dtype=np.float32)

    @property
    def updated(self) -> "Group":
        """The group as the update takes it: without samples that were replaced."""
        kept = tuple(sample for sample in self.samples if sample.use is not Use.REPLACED)
        return self if len(kept) == len(self.samples) else replace(self, samples=kept)

    @property
    def replayed(self) -> Sample | None:
        """The sample of an earlier step that replaces another, if there is one."""
        replaces = any(sample.use is Use.REPLACED for sample in self.samples)
        return next(sample for sample in reversed(self.samples) if sample.carried) if replaces else None

    @property
    def informative(self) -> bool:
        """True if rewards differ; else every advantage within the group is zero."""
        rewards = self.updated.rewards
        return bool(rewards.max() > rewards.min())


@dataclass(frozen=True, eq=False)
class Task:
    """A prompt to be rolled out.

    Attributes:
        prompt: index of the prompt in the training data.
        visit: how many times the schedule rolled it out before.
        samples: rollouts to make, beside those that are carried.
        carried: samples of an earlier step that the group goes on from.
        lenience: overrides the method's own, where a controller sets it.
    """

    prompt: int
    visit: int
    samples: int
    carried: tuple[Sample, ...] = ()
    lenience: float | None = None
