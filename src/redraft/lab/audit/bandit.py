"""A bandit whose policy is trained on the very responses that are verified next, as in training with reuse.

Responses are one token. A visit makes a group of n of them, y_1 to y_n, with rewards r_i. The update is the softmax
policy gradient with the group's mean as its baseline, written out for logits theta:

    g = 1/n sum_i (r_i - mean r) grad log pi(y_i) = 1/n sum_i (r_i - mean r) e(y_i),    theta' = theta + rate g,

since grad log pi(y) = e(y) - pi and the advantages sum to 0. The next visit verifies each y_i as a draft under theta',
which depends on it: so a rule that is exact for a draft of a known distribution need not be so here. All groups of all
visits are enumerated, and what is drawn is compared with the policy's distribution given theta, at which the next
gradient is taken.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redraft.lab.audit.enumeration import Policy, Response, Space, distance, residual, stored_distributions
from redraft.methods.acceptance.coupling import first_difference
from redraft.methods.acceptance.rule import Rule

DIGITS = 12
"""Decimals by which logits are known; states whose logits differ by less are one."""
Logits = tuple[float, ...]


@dataclass(frozen=True, order=True)
class Sample:
    """A token, and what is stored with it for the next visit, which can be ordered."""

    arm: int
    memory: Any


@dataclass(frozen=True)
class Way:
    """A way in which a sample comes about, its probability, and whether it keeps the draft."""

    weight: float
    sample: Sample
    kept: bool = False


class Softmax(Policy):
    """The policy of some logits."""

    def __init__(self, logits: Logits) -> None:
        self.space = Space(len(logits), 1)
        weights = np.exp(np.array(logits) - max(logits))
        self._distribution = weights / weights.sum()

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of an arm, float64 (arms,)."""
        return self._distribution


@dataclass(frozen=True)
class Verified:
    """Samples by a rule; the logits stand with each by which its distribution is known.

    Attributes:
        top: most probable arms of the draft's distribution that are stored; 0 takes the draft to be certain.
        renewed: true if a kept sample gets the logits by which it was verified.
    """

    rule: Rule
    top: int = 0
    renewed: bool = True

    def first(self, logits: Logits) -> Iterator[Way]:
        """Ways of a sample without a draft, by the policy."""
        yield from _drawn(Softmax(logits).distribution(()), logits)

    def again(self, draft: Sample, logits: Logits) -> Iterator[Way]:
        """Ways of a sample from a draft under the current policy, by the rule and after a rejection by its residual."""
        policy, tokens = Softmax(logits), (draft.arm,)
        distributions = stored_distributions(tokens, Softmax(draft.memory), policy, self.top)
        rejected, accepted = self.rule.distribution_of_kept(self.rule.acceptance(distributions))
        if accepted > 0:
            yield Way(float(accepted), Sample(draft.arm, logits if self.renewed else draft.memory), kept=True)
        if rejected > 0:
            first = self.rule.residual(distributions, 0)
            distribution = policy.distribution(())
            yield from _drawn(distribution if first is None else residual(distribution, first), logits, float(rejected))


def _drawn(distribution: np.ndarray, logits: Logits, weight: float = 1.0) -> Iterator[Way]:
    for arm, chance in enumerate(distribution):
        if chance > 0:
            yield Way(weight * float(chance), Sample(arm, logits))


class Coupled:
    """Samples of two arms by Gumbel noise that stays with a sample.

    Arm 0 is drawn if log pi(0) + g_0 exceeds log pi(1) + g_1. The difference of two Gumbel numbers is logistic, so that
    is u < pi(0) for a uniform u. What stands with a sample is the interval in which its u lies.
    """

    def first(self, logits: Logits) -> Iterator[Way]:
        """Of any noise."""
        yield from self._by(0.0, 1.0, logits)

    def again(self, draft: Sample, logits: Logits) -> Iterator[Way]:
        """Of noise by which the draft was drawn."""
        low, high = draft.memory
        for way in self._by(low, high, logits):
            kept = first_difference(np.array([draft.arm]), np.array([way.sample.arm])) == 1
            yield Way(way.weight, way.sample, kept)

    @staticmethod
    def _by(low: float, high: float, logits: Logits) -> Iterator[Way]:
        bound = float(np.clip(Softmax(logits).distribution(())[0], low, high))
        for arm, (start, end) in enumerate([(low, bound), (bound, high)]):
            if end > start:
                yield Way((end - start) / (high - low), Sample(arm, (start, end)))


Source = Verified | Coupled


@dataclass(frozen=True)
class Bandit:
    """What is trained: rewards of the arms, logits of the first policy, samples of a visit (n), rate of the update."""

    rewards: tuple[float, ...] = (1.0, 0.0)
    start: Logits = (0.0, 0.0)
    group: int = 4
    rate: float = 1.0

    def gradient(self, arms: Sequence[int]) -> np.ndarray:
        """The estimate g from a group, float64 (arms,)."""
        rewards = np.array(self.rewards)[list(arms)]
        return np.eye(len(self.rewards))[list(arms)].T @ (rewards - rewards.mean()) / len(arms)

    def updated(self, logits: Logits, arms: Sequence[int]) -> Logits:
        """theta', rounded to `DIGITS`."""
        moved = np.array(logits) + self.rate * self.gradient(arms)
        return tuple(round(float(each), DIGITS) for each in moved)


@dataclass(frozen=True)
class Trained:
    """What a visit's group is, means over everything that may have happened before.

    Attributes:
        given: total variation between the distribution of a sample given the policy and that policy.
        overall: the same between the distribution of a sample and the mean policy.
        reward: of the samples.
        fresh_reward: of the policy.
        gradient: component of g along the best arm.
        fresh_gradient: the same of a fresh group of the same policies.
        variance: of g around its mean given the policy, summed over arms.
        fresh_variance: the same of a fresh group.
        kept: share of drafts that are kept; 0 in the first visit.
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


Group = tuple[Sample, ...]
States = dict[tuple[Logits, Group], float]
"""Probabilities of policies and the groups that they made; samples in order, since all are alike."""


def trained(source: Source, bandit: Bandit, visits: int) -> list[Trained]:
    """Groups of the first visit and of `visits` with drafts."""
    first = _groups([list(source.first(bandit.start))] * bandit.group)
    states: States = {(bandit.start, group): weight for group, weight in first.items()}
    found = [_judged(states, bandit, 0.0)]
    for _ in range(visits):
        states, kept = _next(states, source, bandit)
        found.append(_judged(states, bandit, kept))
    return found


def _next(before: States, source: Source, bandit: Bandit) -> tuple[States, float]:
    """The next visit, and the share of drafts that it keeps."""
    after, kept = defaultdict[tuple[Logits, Group], float](float), 0.0
    for (logits, drafts), weight in before.items():
        moved = bandit.updated(logits, [draft.arm for draft in drafts])
        ways = [list(source.again(draft, moved)) for draft in drafts]
        kept += weight * sum(way.weight for each in ways for way in each if way.kept) / len(drafts)
        for group, chance in _groups(ways).items():
            after[moved, group] += weight * chance
    return dict(after), kept


def _groups(ways: Sequence[Sequence[Way]]) -> dict[Group, float]:
    """Distribution of a group whose samples come about in independent ways."""
    distribution: dict[Group, float] = {(): 1.0}
    for each in ways:
        longer = defaultdict[Group, float](float)
        for group, weight in distribution.items():
            for way in each:
                longer[tuple(sorted((*group, way.sample)))] += weight * way.weight
        distribution = longer
    return distribution


@dataclass(frozen=True)
class _Moments:
    """Of a group: distribution of a sample, mean of g, and its variance summed over arms."""

    distribution: np.ndarray
    mean: np.ndarray
    variance: float

    @classmethod
    def of(cls, groups: Mapping[Group, float], bandit: Bandit) -> "_Moments":
        weights = np.array(list(groups.values())) / sum(groups.values())
        arms = [[sample.arm for sample in group] for group in groups]
        gradients = np.array([bandit.gradient(each) for each in arms])
        mean = weights @ gradients
        shares = np.eye(len(bandit.rewards))[np.array(arms)].mean(axis=1)
        return cls(weights @ shares, mean, float(weights @ (gradients**2).sum(axis=1) - mean @ mean))


def _judged(states: States, bandit: Bandit, kept: float) -> Trained:
    """A visit's groups beside fresh ones of the same policies."""
    by_policy = defaultdict[Logits, dict[Group, float]](dict)
    for (logits, group), weight in states.items():
        by_policy[logits][group] = weight
    weights = np.array([sum(groups.values()) for groups in by_policy.values()])
    made = [_Moments.of(groups, bandit) for groups in by_policy.values()]
    fresh = [
        _Moments.of(_groups([list(_drawn(Softmax(each).distribution(()), each))] * bandit.group), bandit)
        for each in by_policy
    ]
    distributions, policies = (np.array([each.distribution for each in moments]) for moments in (made, fresh))
    rewards, best = np.array(bandit.rewards), int(np.argmax(bandit.rewards))

    def mean(values: Iterable[float]) -> float:
        return float(weights @ np.array(list(values)))

    return Trained(
        given=mean(map(distance, distributions, policies)),
        overall=distance(weights @ distributions, weights @ policies),
        reward=mean(distributions @ rewards),
        fresh_reward=mean(policies @ rewards),
        gradient=mean(each.mean[best] for each in made),
        fresh_gradient=mean(each.mean[best] for each in fresh),
        variance=mean(each.variance for each in made),
        fresh_variance=mean(each.variance for each in fresh),
        kept=kept,
    )
