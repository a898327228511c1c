"""Distributions of responses that rules make of drafts, by sums over drafts, numbers of kept tokens and responses.

Nothing is sampled. A rule enters by the functions that it is trained with too (`redraft.methods.acceptance.rule`), so
that an error in one of them is an error in the distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np

from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.rollout.engine import Residual
from redraft.rollout.streams import stream

Response = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """All responses of at most `longest` tokens, each once, with their positions; token 0 ends one."""

    vocabulary: int
    longest: int
    responses: list[Response] = field(init=False)
    index: dict[Response, int] = field(init=False)

    def __post_init__(self) -> None:
        ended = [r for n in range(1, self.longest) for r in product(range(self.vocabulary), repeat=n) if r[-1] == 0]
        whole = [r for r in (*ended, *product(range(self.vocabulary), repeat=self.longest)) if 0 not in r[:-1]]
        object.__setattr__(self, "responses", whole)
        object.__setattr__(self, "index", {response: place for place, response in enumerate(whole)})


class Policy:
    """A policy over a space: a random distribution of the next token after each prefix.

    Policies of one seed are near each other: their logits are those of `number` 0 and, for other numbers, normal noise
    of the standard deviation `drift`.
    """

    def __init__(self, space: Space, seed: int = 0, number: int = 0, drift: float = 0.0) -> None:
        self.space, self._seed, self._number, self._drift = space, seed, number, drift
        self._known: dict[Response, np.ndarray] = {}
        self._behind: dict[Response, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of the token behind a prefix, float64 (vocabulary,)."""
        if prefix not in self._known:
            logits = stream(self._seed, "audit/logits", *prefix).normal(size=self.space.vocabulary)
            if self._number:
                moved = stream(self._seed, "audit/logits/moved", self._number, *prefix)
                logits = logits + self._drift * moved.normal(size=self.space.vocabulary)
            weights = np.exp(logits - logits.max())
            self._known[prefix] = weights / weights.sum()
        return self._known[prefix]

    def distributions(self, response: Response) -> np.ndarray:
        """Distributions of each token of a response, float64 (length, vocabulary)."""
        return np.array([self.distribution(response[:place]) for place in range(len(response))])

    def probability(self, response: Response, behind: int = 0) -> float:
        """Probability of a response behind its first tokens."""
        return math.prod(float(self.distribution(response[:at])[response[at]]) for at in range(behind, len(response)))

    def behind(self, prefix: Response) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Responses that go on from a prefix: their places, next tokens, and probabilities behind these, all (n,)."""
        if prefix not in self._behind:
            size = len(prefix)
            on = [(p, r) for r, p in self.space.index.items() if len(r) > size and r[:size] == prefix]
            self._behind[prefix] = (
                np.array([place for place, _ in on], dtype=int),
                np.array([r[size] for _, r in on], dtype=int),
                np.array([self.probability(r, size + 1) for _, r in on]),
            )
        return self._behind[prefix]

    def responses(self) -> np.ndarray:
        """Distribution of all responses, float64 (responses,)."""
        return np.array([self.probability(response) for response in self.space.responses])


def made(
    rule: Rule, drafts: np.ndarray, drawn_from: Policy, policy: Policy, top: int = 0, both: bool = False
) -> np.ndarray:
    """Distribution of the responses that a rule makes of drafts, float64 (responses,).

    Args:
        drafts: distribution of the drafts, float64 (responses,).
        drawn_from: policy that the rule takes the drafts to be drawn from.
        top: most probable tokens of the draft's distribution that are stored; 0 takes the draft to be certain.
        both: of the stored tokens, only those count that are among as many most probable ones of the policy.
    """
    space, distribution = policy.space, np.zeros(len(policy.space.responses))
    for draft, weight in zip(space.responses, drafts, strict=True):
        distributions = stored_distributions(draft, drawn_from, policy, top, both)
        for kept, chance in enumerate(rule.distribution_of_kept(rule.acceptance(distributions))):
            if weight * chance > 0:
                distribution += weight * chance * _going_on(draft[:kept], policy, rule.residual(distributions, kept))
    return distribution


def stored_distributions(
    draft: Response, drawn_from: Policy, policy: Policy, top: int, both: bool = False
) -> Distributions:
    """Distributions of a draft, of which so many tokens are stored at each place; arguments as of `made`."""
    tokens, places = np.array(draft), np.arange(len(draft))
    p, q = np.log(policy.distributions(draft)), np.log(drawn_from.distributions(draft))
    if not top:
        return Distributions.one_hot(tokens, p[places, tokens])
    support = np.argsort(-q, axis=1, kind="stable")[:, :top]
    at = (places[:, None], support)
    if both:
        p = np.where(np.argsort(np.argsort(-p, axis=1, kind="stable"), axis=1) < top, p, -np.inf)
    return Distributions(tokens, p[places, tokens], q[places, tokens], support, p[at], q[at])


def _going_on(prefix: Response, policy: Policy, first: Residual | None) -> np.ndarray:
    """Distribution of responses behind a prefix, float64 (responses,)."""
    space, found = policy.space, np.zeros(len(policy.space.responses))
    if prefix in space.index:
        found[space.index[prefix]] = 1.0
        return found
    distribution = policy.distribution(prefix) if first is None else residual(policy.distribution(prefix), first)
    places, tokens, behind = policy.behind(prefix)
    found[places] = distribution[tokens] * behind
    return found


def residual(distribution: np.ndarray, first: Residual) -> np.ndarray:
    """What is left of p, normalised, float64 (vocabulary,)."""
    rest = distribution.copy()
    rest[first.tokens] *= first.left
    return rest / rest.sum()


def distance(distribution: np.ndarray, other: np.ndarray) -> float:
    """Total variation."""
    return float(np.abs(distribution - other).sum() / 2)


def over_visits(rule: Rule, policies: Sequence[Policy], top: int = 0, both: bool = False) -> list[float]:
    """Distance of each visit's responses from the distribution of its policy; each goes on from those of the visit
    before.

    The first visit samples its policy. What is stored with a response is the distribution of the policy that made it.
    """
    distribution, distances = policies[0].responses(), [0.0]
    for before, now in pairwise(policies):
        distribution = made(rule, distribution, before, now, top, both)
        distances.append(distance(distribution, now.responses()))
    return distances


def published(drawn_from: Policy, policy: Policy, lenience: float) -> np.ndarray:
    """Distribution of the published rule's responses in closed form, float64 (responses,).

    With m = min(q, l p) and b = sum m at each place, P(o) = sum over k of prod_(i<k) m_i (1 - b_k) prod_(i>=k) p_i, and
    prod m_i for the draft that is kept whole.
    """
    found = []
    for response in policy.space.responses:
        tokens, places = np.array(response), np.arange(len(response))
        p, q = policy.distributions(response), drawn_from.distributions(response)
        kept = np.minimum(q, lenience * p)
        own, mass = kept[places, tokens], kept.sum(axis=1)
        before = np.cumprod(np.append(1.0, own))
        after = np.append(np.cumprod(p[places, tokens][::-1])[::-1], 1.0)
        found.append(float(before[:-1] @ ((1.0 - mass) * after[:-1]) + before[-1]))
    return np.array(found)


def two_state(drawn_from: Policy, policy: Policy, lenience: float, response: Response) -> np.ndarray:
    """Log-density of a response of the published rule token by token, float64 (length,), behind a draft from a policy.

    A draft is alive or cut. With m = min(q, l p) and b = sum m, A_k = A_(k-1) m_k and F_k = (F_(k-1) + A_(k-1) (1 -
    b_k)) p_k; A + F at the last token is the density of the response, and their ratio from token to token that of
    each. It needs the draft's distribution at all places of the response, also where the draft was cut.
    """
    tokens, places = np.array(response), np.arange(len(response))
    p, q = policy.distributions(response), drawn_from.distributions(response)
    kept = np.minimum(q, lenience * p)
    alive, cut, sums = 1.0, 0.0, [1.0]
    for own, mass, probability in zip(kept[places, tokens], kept.sum(axis=1), p[places, tokens], strict=True):
        alive, cut = alive * own, (cut + alive * (1.0 - mass)) * probability
        sums.append(alive + cut)
    return np.diff(np.log(sums))
