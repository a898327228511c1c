"""Distributions of responses over many visits, each from the response of the visit before as its draft.

As `redraft.lab.audit.enumeration`, with two things more: random numbers that visits share (`audit.numbers`), and
log-probabilities that stay with a token from the visit in which it was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.lab.audit.enumeration import Policy, Response, Space, residual, stored_distributions
from redraft.lab.audit.numbers import Fresh, Numbers, Shared
from redraft.methods.acceptance.rule import Rule
from redraft.rollout.engine import Residual

Made = tuple[int, ...]
"""For each place of a response, the visit whose log-probabilities stand with its token."""
State = dict[Made, np.ndarray]
"""Distribution of the responses by what stands with them, given each cell of numbers, float64 (cells or 1,
responses)."""


@dataclass(frozen=True, eq=False)
class Visit:
    """Distribution of a visit's responses, float64 (responses,), and mean kept and all tokens of its drafts."""

    distribution: np.ndarray
    kept: float
    draft: float


class Patchwork(Policy):
    """The distributions that are stored with a response whose tokens were made in several visits."""

    def __init__(self, policies: Sequence[Policy], made: Made) -> None:
        self.space, self._policies, self._made = policies[0].space, policies, made

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of the token behind a prefix, float64 (vocabulary,)."""
        return self._policies[self._made[len(prefix)]].distribution(prefix)


class Endings:
    """Distributions of the responses that a policy makes of a prefix by these random numbers."""

    def __init__(self, policy: Policy, numbers: Numbers) -> None:
        self._policy, self._numbers = policy, numbers
        self._known: dict[Response, np.ndarray] = {}

    def behind(self, prefix: Response, first: Residual | None = None) -> np.ndarray:
        """Distribution of the responses after a prefix, float64 (cells or 1, responses); `first` changes that of one
        token."""
        if first is not None:
            return self._through(prefix, residual(self._policy.distribution(prefix), first))
        if prefix not in self._known:
            space = self._policy.space
            if prefix in space.index:
                self._known[prefix] = np.eye(1, len(space.responses), space.index[prefix])
            else:
                self._known[prefix] = self._through(prefix, self._policy.distribution(prefix))
        return self._known[prefix]

    def _through(self, prefix: Response, distribution: np.ndarray) -> np.ndarray:
        """With this distribution of the first token."""
        tokens = self._numbers.drawn(len(prefix), distribution).T
        ways = [tokens[token][:, None] * self.behind((*prefix, token)) for token in range(len(tokens))]
        return np.sum(np.broadcast_arrays(*ways), axis=0)


@dataclass(frozen=True)
class Chain:
    """Visits, one of each policy, in which a rule keeps drafts.

    Attributes:
        top: most probable tokens of the draft's distribution that are stored; 0 takes the draft to be certain.
        renewed: true if the distribution of the visit before stands with a whole draft; false if a token has that of
            the visit
            in which it was drawn, as in the published rule.
        shared: true if all visits have the same numbers, false if each has new ones.
    """

    rule: Rule
    policies: Sequence[Policy]
    top: int = 0
    renewed: bool = True
    shared: bool = False

    @property
    def space(self) -> Space:
        """Of the responses."""
        return self.policies[0].space

    def visits(self, numbers: Numbers) -> list[Visit]:
        """The visits with drafts; the one before them samples its policy by the same numbers."""
        lengths = np.array([len(response) for response in self.space.responses])
        state: State = {(0,) * self.space.longest: Endings(self.policies[0], numbers).behind(())}
        drafts, found = _distribution(state, numbers), []
        for number in range(1, len(self.policies)):
            if not self.shared:
                state = {made: _mean(distribution, numbers)[None] for made, distribution in state.items()}
            state, kept = self._next(state, number, numbers)
            found.append(Visit(_distribution(state, numbers), kept, float(drafts @ lengths)))
            drafts = found[-1].distribution
        return found

    def _next(self, before: State, number: int, numbers: Numbers) -> tuple[State, float]:
        """State of a visit, and its mean kept tokens."""
        policy, after, kept = self.policies[number], State(), 0.0
        endings = Endings(policy, numbers)
        for made, distribution in before.items():
            drawn_from = Patchwork(self.policies, made)
            for place, draft in enumerate(self.space.responses):
                distributions = stored_distributions(draft, drawn_from, policy, self.top)
                for count, chance in enumerate(numbers.kept(self.rule, self.rule.acceptance(distributions)).T):
                    mass = distribution[:, place] * chance
                    if mass.any():
                        ending = endings.behind(draft[:count], self.rule.residual(distributions, count))
                        target = self._made(made[:count], number)
                        after[target] = after.get(target, 0.0) + mass[:, None] * ending
                        kept += count * float(_mean(mass, numbers))
        return after, kept

    def _made(self, kept: Made, number: int) -> Made:
        """What stands with a response of a visit behind kept tokens."""
        stays = () if self.renewed else kept
        return (*stays, *[number] * (self.space.longest - len(stays)))


def _distribution(state: State, numbers: Numbers) -> np.ndarray:
    """Distribution of the responses, float64 (responses,)."""
    return np.sum([_mean(distribution, numbers) for distribution in state.values()], axis=0)


def _mean(distribution: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Over cells, (cells or 1, ...) to (...)."""
    return numbers.weights @ np.broadcast_to(distribution, (len(numbers.weights), *distribution.shape[1:]))


def shared_numbers(chain: Chain, draws: bool) -> Shared:
    """Numbers of a chain, one a place, which accept its drafts and with `draws` draw its tokens too."""
    asked = Fresh()
    chain.visits(asked)
    return Shared(asked.bounds(draws), draws)
