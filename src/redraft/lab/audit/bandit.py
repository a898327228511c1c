"""A bandit trained by policy gradient on the same responses that are the next epoch pass's drafts.

Responses are one token, an arm. An epoch pass samples a group of n arms y_1 to y_n with rewards r_i. The update is the
softmax policy gradient with the group's mean reward as baseline (the gradient-bandit algorithm of Sutton and Barto,
section 2.8, averaged over a group). For logits theta:

    g = 1/n sum_i (r_i - mean r) grad log pi(y_i) = 1/n sum_i (r_i - mean r) e(y_i),    theta' = theta + rate g,

since grad log pi(y) = e(y) - pi and the advantages sum to 0. The next pass verifies each y_i as a draft under theta',
which depends on y_i. A rule that is exact for drafts independent of the current policy can therefore be biased here.
All groups of all passes are enumerated. Their distribution is compared with the policy's given theta, because the next
gradient is taken at theta.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redraft.lab.audit.enumeration import (
    Policy,
    Response,
    Space,
    residual_distribution,
    stored_distributions,
    total_variation,
)
from redraft.methods.acceptance.coupling import first_difference
from redraft.methods.acceptance.rule import Rule

LOGIT_DECIMALS = 12
"""Logits are rounded to this, so that states which differ by rounding errors only are merged."""
Logits = tuple[float, ...]


@dataclass(frozen=True, order=True)
class StoredArm:
    """An arm, and the data stored with it for the next pass; ordered, so that a group can be sorted."""

    arm: int
    memory: Any


@dataclass(frozen=True)
class ArmOutcome:
    """One outcome of sampling an arm, its probability, and whether it keeps the draft."""

    probability: float
    sample: StoredArm
    kept: bool = False


class Softmax(Policy):
    """Softmax policy of some logits."""

    def __init__(self, logits: Logits) -> None:
        self.space = Space(len(logits), 1)
        # Without the maximum large logits overflow.
        weights = np.exp(np.array(logits) - max(logits))
        self._distribution = weights / weights.sum()

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution over arms, float64 (arms,)."""
        return self._distribution


@dataclass(frozen=True)
class RuleSampler:
    """Samples arms by a reuse rule; stores with each arm the logits that define its draft distribution.

    Attributes:
        top: most probable arms of the draft's distribution that are stored; 0 for a one-hot distribution.
        renewed: true if a kept arm's logits are replaced by those under which it was verified.
    """

    rule: Rule
    top: int = 0
    renewed: bool = True

    def first(self, logits: Logits) -> Iterator[ArmOutcome]:
        """Outcomes without a draft, from the policy."""
        yield from _sampled(Softmax(logits).distribution(()), logits)

    def again(self, draft: StoredArm, logits: Logits) -> Iterator[ArmOutcome]:
        """Outcomes for a draft: the draft if the rule accepts it, else samples of the residual distribution."""
        policy, tokens = Softmax(logits), (draft.arm,)
        distributions = stored_distributions(tokens, Softmax(draft.memory), policy, self.top)
        rejected, accepted = self.rule.distribution_of_kept(self.rule.acceptance(distributions))
        if accepted > 0:
            yield ArmOutcome(float(accepted), StoredArm(draft.arm, logits if self.renewed else draft.memory), kept=True)
        if rejected > 0:
            first = self.rule.residual(distributions, 0)
            distribution = policy.distribution(())
            if first is not None:
                distribution = residual_distribution(distribution, first)
            yield from _sampled(distribution, logits, float(rejected))


def _sampled(distribution: np.ndarray, logits: Logits, weight: float = 1.0) -> Iterator[ArmOutcome]:
    for arm, probability in enumerate(distribution):
        if probability > 0:
            yield ArmOutcome(weight * float(probability), StoredArm(arm, logits))


class CoupledSampler:
    """Samples of two arms by Gumbel noise that is stored with a sample and reused.

    Arm 0 is sampled if log pi(0) + g_0 exceeds log pi(1) + g_1. The difference of two Gumbel variables is logistic, so
    that is u < pi(0) for a uniform u. Stored with a sample is the interval in which its u is known to lie.
    """

    def first(self, logits: Logits) -> Iterator[ArmOutcome]:
        """Outcomes without a draft, with new noise."""
        yield from self._outcomes(0.0, 1.0, logits)

    def again(self, draft: StoredArm, logits: Logits) -> Iterator[ArmOutcome]:
        """Outcomes with the noise of the draft."""
        low, high = draft.memory
        for outcome in self._outcomes(low, high, logits):
            kept = first_difference(np.array([draft.arm]), np.array([outcome.sample.arm])) == 1
            yield ArmOutcome(outcome.probability, outcome.sample, kept)

    @staticmethod
    def _outcomes(low: float, high: float, logits: Logits) -> Iterator[ArmOutcome]:
        # The policy's threshold for u, within the interval in which u is known to be.
        bound = float(np.clip(Softmax(logits).distribution(())[0], low, high))
        for arm, (start, end) in enumerate([(low, bound), (bound, high)]):
            if end > start:
                yield ArmOutcome((end - start) / (high - low), StoredArm(arm, (start, end)))


ArmSampler = RuleSampler | CoupledSampler


@dataclass(frozen=True)
class Bandit:
    """Rewards of the arms, logits of the first policy, samples of a group (n), and learning rate."""

    rewards: tuple[float, ...] = (1.0, 0.0)
    start: Logits = (0.0, 0.0)
    group: int = 4
    rate: float = 1.0

    def gradient(self, arms: Sequence[int]) -> np.ndarray:
        """Gradient estimate g of a group, float64 (arms,)."""
        rewards = np.array(self.rewards)[list(arms)]
        return np.eye(len(self.rewards))[list(arms)].T @ (rewards - rewards.mean()) / len(arms)

    def updated(self, logits: Logits, arms: Sequence[int]) -> Logits:
        """theta', rounded to `LOGIT_DECIMALS`."""
        moved = np.array(logits) + self.rate * self.gradient(arms)
        # Rounded, so that histories which meet in one policy merge; their number is exponential otherwise.
        return tuple(round(float(each), LOGIT_DECIMALS) for each in moved)


@dataclass(frozen=True)
class PassStatistics:
    """Statistics of an epoch pass's group, averaged over all histories.

    Attributes:
        given: total variation between a sample's distribution given the policy and that policy.
        overall: total variation between a sample's distribution and the policy, both averaged over policies.
        reward: expected reward of a sample.
        fresh_reward: expected reward under the policy.
        gradient: mean of g's component along the best arm.
        fresh_gradient: the same for a fresh group of the same policies.
        variance: variance of g given the policy, summed over arms.
        fresh_variance: the same for a fresh group.
        kept: share of drafts that are kept; 0 in the first pass.
    """

    given: float
    overall: float
    reward: float
    fresh_reward: float
    gradient: float
    fresh_gradient: float
    variance: float
    fresh_variance: float
    kept: float


Group = tuple[StoredArm, ...]
States = dict[tuple[Logits, Group], float]
"""Joint distribution of the policy and the group sampled with it; groups are sorted, since samples are exchangeable."""


def train_bandit(sampler: ArmSampler, bandit: Bandit, passes: int) -> list[PassStatistics]:
    """Statistics of the first pass, without drafts, and of `passes` passes with drafts."""
    first = _groups([list(sampler.first(bandit.start))] * bandit.group)
    states: States = {(bandit.start, group): probability for group, probability in first.items()}
    statistics = [_statistics(states, bandit, 0.0)]
    for _ in range(passes):
        states, kept = _next_pass(states, sampler, bandit)
        statistics.append(_statistics(states, bandit, kept))
    return statistics


def _next_pass(before: States, sampler: ArmSampler, bandit: Bandit) -> tuple[States, float]:
    """States after an update and another pass, and the share of drafts that it keeps."""
    after, kept = defaultdict[tuple[Logits, Group], float](float), 0.0
    for (logits, drafts), weight in before.items():
        # the update sees the same responses that are verified next: this is the dependence under study
        moved = bandit.updated(logits, [draft.arm for draft in drafts])
        outcomes = [list(sampler.again(draft, moved)) for draft in drafts]
        kept += weight * sum(each.probability for of_draft in outcomes for each in of_draft if each.kept) / len(drafts)
        for group, probability in _groups(outcomes).items():
            after[moved, group] += weight * probability
    return dict(after), kept


def _groups(outcomes: Sequence[Sequence[ArmOutcome]]) -> dict[Group, float]:
    """Distribution of a group of independent samples, from the outcomes of each."""
    distribution: dict[Group, float] = {(): 1.0}
    for of_sample in outcomes:
        longer = defaultdict[Group, float](float)
        for group, probability in distribution.items():
            for outcome in of_sample:
                # Sorted: samples are exchangeable, so orders of one group are one state. Else states grow by n!.
                longer[tuple(sorted((*group, outcome.sample)))] += probability * outcome.probability
        distribution = longer
    return distribution


@dataclass(frozen=True)
class _Moments:
    """Of the groups sampled under one policy: distribution over arms, mean of g, and variance of g."""

    distribution: np.ndarray
    mean: np.ndarray
    variance: float

    @classmethod
    def of(cls, groups: Mapping[Group, float], bandit: Bandit) -> "_Moments":
        weights = np.array(list(groups.values())) / sum(groups.values())
        arms = [[sample.arm for sample in group] for group in groups]
        gradients = np.array([bandit.gradient(each) for each in arms])
        mean = weights @ gradients
        # samples are exchangeable, so the mean share of an arm in a group is a sample's probability of it
        shares = np.eye(len(bandit.rewards))[np.array(arms)].mean(axis=1)
        return cls(weights @ shares, mean, float(weights @ (gradients**2).sum(axis=1) - mean @ mean))


def _statistics(states: States, bandit: Bandit, kept: float) -> PassStatistics:
    """A pass's groups compared with fresh groups of the same policies."""
    by_policy = defaultdict[Logits, dict[Group, float]](dict)
    for (logits, group), weight in states.items():
        by_policy[logits][group] = weight
    weights = np.array([sum(groups.values()) for groups in by_policy.values()])
    reused = [_Moments.of(groups, bandit) for groups in by_policy.values()]
    fresh = [
        _Moments.of(_groups([list(_sampled(Softmax(each).distribution(()), each))] * bandit.group), bandit)
        for each in by_policy
    ]
    distributions, policies = (np.array([each.distribution for each in moments]) for moments in (reused, fresh))
    rewards, best = np.array(bandit.rewards), int(np.argmax(bandit.rewards))

    def mean(values: Iterable[float]) -> float:
        return float(weights @ np.array(list(values)))

    return PassStatistics(
        given=mean(map(total_variation, distributions, policies)),
        overall=total_variation(weights @ distributions, weights @ policies),
        reward=mean(distributions @ rewards),
        fresh_reward=mean(policies @ rewards),
        gradient=mean(each.mean[best] for each in reused),
        fresh_gradient=mean(each.mean[best] for each in fresh),
        variance=mean(each.variance for each in reused),
        fresh_variance=mean(each.variance for each in fresh),
        kept=kept,
    )
