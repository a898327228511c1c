"""Exact distribution of the responses that a rule makes from drafts, by enumeration over a small response space.

For a rule that keeps K tokens of a draft d and samples the rest from the policy p,

    P(o) = sum over d, k of P(d) P(K = k | d) [o starts with d_<k] r_k(o_k) prod_(i>k) p(o_i | o_<i),

where r_k is the rule's residual distribution at the rejected token, or p if the rule has none. Nothing is sampled. The
sums call the same functions as training (`redraft.methods.acceptance.rule`), so an error there shows up here.

Shapes: R responses of the space, V vocabulary, T tokens of a draft, k stored tokens.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np

from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.rollout.engine import Residual
from redraft.rollout.streams import stream

Response = tuple[int, ...]
WeightedResponses = Mapping[tuple[Response, tuple[float, ...]], float]
"""Probability of each pair of a response and the log-weights of its tokens."""
LOG_WEIGHT_DECIMALS = 13
"""Log-weights are rounded to this, so that equal weights from different drafts share a key."""


@dataclass(frozen=True)
class Space:
    """All responses of at most `longest` tokens; token 0 is the end of sequence. `index` inverts `responses`."""

    vocabulary: int
    longest: int
    responses: list[Response] = field(init=False)
    index: dict[Response, int] = field(init=False)

    def __post_init__(self) -> None:
        # Responses that end early end with token 0; whole ones may end with any token.
        ended = [r for n in range(1, self.longest) for r in product(range(self.vocabulary), repeat=n) if r[-1] == 0]
        whole = [r for r in (*ended, *product(range(self.vocabulary), repeat=self.longest)) if 0 not in r[:-1]]
        # The class is frozen, and these follow from its fields.
        object.__setattr__(self, "responses", whole)
        object.__setattr__(self, "index", {response: index for index, response in enumerate(whole)})


class Policy:
    """A policy over a space, with an independent random next-token distribution after each prefix.

    Policies of one seed are close to each other: they share standard normal logits, to which every policy but number 0
    adds its own normal noise of standard deviation `drift`.
    """

    def __init__(self, space: Space, seed: int = 0, number: int = 0, drift: float = 0.0) -> None:
        self.space, self._seed, self._number, self._drift = space, seed, number, drift
        self._next_token: dict[Response, np.ndarray] = {}
        self._continuations: dict[Response, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def distribution(self, prefix: Response) -> np.ndarray:
        """Next-token distribution after a prefix, float64 (V,)."""
        if prefix not in self._next_token:
            logits = stream(self._seed, "audit/logits", *prefix).normal(size=self.space.vocabulary)
            # Policy 0 is the common centre, without noise of its own.
            if self._number:
                moved = stream(self._seed, "audit/logits/moved", self._number, *prefix)
                logits = logits + self._drift * moved.normal(size=self.space.vocabulary)
            # Without the maximum large logits overflow.
            weights = np.exp(logits - logits.max())
            self._next_token[prefix] = weights / weights.sum()
        return self._next_token[prefix]

    def distributions(self, response: Response) -> np.ndarray:
        """Next-token distributions at each position of a response, float64 (T, V)."""
        return np.array([self.distribution(response[:at]) for at in range(len(response))])

    def probability(self, response: Response, given: int = 0) -> float:
        """Probability of a response, conditional on its first `given` tokens."""
        return math.prod(float(self.distribution(response[:at])[response[at]]) for at in range(given, len(response)))

    def continuations(self, prefix: Response) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All n responses longer than a prefix that start with it.

        Returns:
            Their indices in the space, the tokens right after the prefix, and the probabilities conditional on prefix
            and that token, all (n,).
        """
        if prefix not in self._continuations:
            size = len(prefix)
            longer = [(i, r) for r, i in self.space.index.items() if len(r) > size and r[:size] == prefix]
            self._continuations[prefix] = (
                np.array([index for index, _ in longer], dtype=int),
                np.array([r[size] for _, r in longer], dtype=int),
                np.array([self.probability(r, size + 1) for _, r in longer]),
            )
        return self._continuations[prefix]

    def response_distribution(self) -> np.ndarray:
        """Probability of every response of the space, float64 (R,)."""
        return np.array([self.probability(response) for response in self.space.responses])


def stored_distributions(
    draft: Response, draft_policy: Policy, policy: Policy, top: int, both: bool = False
) -> Distributions:
    """Distributions at a draft's positions, as a rule gets them in training.

    Args:
        draft_policy: q, the policy that the rule takes the draft to be sampled from.
        policy: p, the current policy.
        top: k, the most probable tokens of q that are stored; 0 for a one-hot q at the draft's token.
        both: keep only stored tokens that are also among the k most probable ones of p (as under vLLM).
    """
    tokens_T, positions_T = np.array(draft), np.arange(len(draft))
    p_TV, q_TV = np.log(policy.distributions(draft)), np.log(draft_policy.distributions(draft))
    if not top:
        return Distributions.one_hot(tokens_T, p_TV[positions_T, tokens_T])
    # a stable sort breaks ties by token id, so that S depends on the prefix alone
    support_Tk = np.argsort(-q_TV, axis=1, kind="stable")[:, :top]
    at = (positions_T[:, None], support_Tk)
    if both:
        # -inf takes a token out of S: rules then neither accept it nor subtract its mass
        rank_TV = np.argsort(np.argsort(-p_TV, axis=1, kind="stable"), axis=1)
        p_TV = np.where(rank_TV < top, p_TV, -np.inf)
    return Distributions(
        tokens_T, p_TV[positions_T, tokens_T], q_TV[positions_T, tokens_T], support_Tk, p_TV[at], q_TV[at]
    )


def residual_distribution(distribution: np.ndarray, first: Residual) -> np.ndarray:
    """The policy's distribution less the accepted mass, normalised, float64 (V,)."""
    rest = distribution.copy()
    rest[first.tokens] *= first.left
    return rest / rest.sum()


def total_variation(distribution: np.ndarray, other: np.ndarray) -> float:
    """Half the L1 distance of two distributions."""
    return float(np.abs(distribution - other).sum() / 2)


ContinuedBy = Callable[[Response, int], Policy]
"""Policy that continues a draft after its number of kept tokens."""


def reuse_distribution(
    rule: Rule,
    drafts: np.ndarray,
    draft_policy: Policy,
    policy: Policy,
    top: int = 0,
    both: bool = False,
    continued_by: ContinuedBy | None = None,
) -> np.ndarray:
    """Distribution of the responses that a rule makes from drafts, float64 (R,).

    Args:
        drafts: float64 (R,), the true distribution of the drafts, which may differ from that of `draft_policy`.
        continued_by: an engine that samples from another distribution than the policy's, which it reports when it
            scores drafts; None for a right engine. Other arguments: see `stored_distributions`.
    """
    space, distribution_R = policy.space, np.zeros(len(policy.space.responses))
    for draft, weight in zip(space.responses, drafts, strict=True):
        distributions = stored_distributions(draft, draft_policy, policy, top, both)
        for kept, probability in enumerate(rule.distribution_of_kept(rule.acceptance(distributions))):
            # The residual after a case of probability 0 has no mass to normalise.
            if weight * probability > 0:
                sampler = continued_by(draft, kept) if continued_by else policy
                continued_R = _continued(draft[:kept], sampler, rule.residual(distributions, kept))
                distribution_R += weight * probability * continued_R
    return distribution_R


def _continued(prefix: Response, policy: Policy, first: Residual | None) -> np.ndarray:
    """Distribution of responses given a kept prefix, float64 (R,); the first new token follows the residual, if any."""
    space, distribution_R = policy.space, np.zeros(len(policy.space.responses))
    if prefix in space.index:
        distribution_R[space.index[prefix]] = 1.0
        return distribution_R
    first_V = policy.distribution(prefix)
    if first is not None:
        first_V = residual_distribution(first_V, first)
    indices, tokens, rest = policy.continuations(prefix)
    distribution_R[indices] = first_V[tokens] * rest
    return distribution_R


def errors_by_pass(rule: Rule, policies: Sequence[Policy], top: int = 0, both: bool = False) -> list[float]:
    """Total variation between each epoch pass's responses and its policy; one pass for each policy.

    The first pass samples its policy. Each later one uses the responses of the pass before as drafts, and takes them to
    be sampled from that pass's policy.
    """
    distribution_R, errors = policies[0].response_distribution(), [0.0]
    for before, now in pairwise(policies):
        distribution_R = reuse_distribution(rule, distribution_R, before, now, top, both)
        errors.append(total_variation(distribution_R, now.response_distribution()))
    return errors


def weighted_errors_by_pass(
    rule: WeightedRule, policies: Sequence[Policy], top: int, both: bool = False
) -> list[float]:
    """As `errors_by_pass`, of the importance-weighted distribution."""
    drafts, errors = unweighted(policies[0]), [0.0]
    for before, now in pairwise(policies):
        drafts = weighted_responses(rule, drafts, before, now, top, both)
        errors.append(total_variation(weighted_distribution(drafts, now.space), now.response_distribution()))
    return errors


def unweighted(policy: Policy) -> WeightedResponses:
    """Responses of a policy, with weights of 1."""
    return {(r, (0.0,) * len(r)): policy.probability(r) for r in policy.space.responses}


def weighted_responses(
    rule: WeightedRule,
    drafts: WeightedResponses,
    draft_policy: Policy,
    policy: Policy,
    top: int,
    both: bool = False,
    continued_by: ContinuedBy | None = None,
) -> WeightedResponses:
    """Responses that a rule makes from weighted drafts; other arguments: see `reuse_distribution`."""
    responses: dict[tuple[Response, tuple[float, ...]], float] = defaultdict(float)
    continuations: dict[tuple[Response, Response], list[tuple[Response, float]]] = {}
    for (draft, before), draft_probability in drafts.items():
        distributions = stored_distributions(draft, draft_policy, policy, top, both)
        for kept, probability in enumerate(rule.distribution_of_kept(rule.acceptance(distributions))):
            if draft_probability * probability == 0:
                continue
            weights, prefix = rule.weights(distributions, kept, np.array(before)), draft[:kept]
            # Only a fault's continuation depends on the rejected rest of the draft.
            case = (prefix, draft) if continued_by else (prefix, ())
            if case not in continuations:
                sampler = continued_by(draft, kept) if continued_by else policy
                whole = prefix in policy.space.index
                matching = [prefix] if whole else [r for r in policy.space.responses if r[:kept] == prefix]
                continuations[case] = [(r, sampler.probability(r, kept)) for r in matching]
            for response, continued in continuations[case]:
                new = [0.0] * (len(response) - kept)
                if new:
                    # The weight of the first new token corrects the rejection; all later ones are the policy's own.
                    new[0] = weights.after(response[kept])
                key = response, tuple(np.round([*weights.kept, *new], LOG_WEIGHT_DECIMALS).tolist())
                responses[key] += draft_probability * probability * continued
    return responses


def weighted_distribution(responses: WeightedResponses, space: Space) -> np.ndarray:
    """Expected weight E[w 1(o)] of each response, float64 (R,); equals the policy's distribution if weights are
    right."""
    distribution_R = np.zeros(len(space.responses))
    for (response, log_weights), probability in responses.items():
        distribution_R[space.index[response]] += probability * math.exp(sum(log_weights))
    return distribution_R


WEIGHT_BOUNDS = (-0.1, 0.1)
"""Log-weights of responses that separate low, even and high weights."""


def weight_classes(indices: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Number, from 0 to 3 R - 1, of each response's class: the response and whether its weight is low, even or high.

    Args:
        indices: integer (N,), of the responses in the space.
        log_weights: float64 (N,), of whole responses.
    """
    return 3 * indices + np.digitize(log_weights, WEIGHT_BOUNDS)


def class_distribution(responses: WeightedResponses, space: Space) -> np.ndarray:
    """Distribution over the classes of weighted responses, float64 (3 R,)."""
    indices = np.array([space.index[response] for response, _ in responses])
    log_weights = np.array([sum(weights) for _, weights in responses])
    classes = weight_classes(indices, log_weights)
    return np.bincount(classes, np.array(list(responses.values())), minlength=3 * len(space.responses))


def spec_rl_distribution(draft_policy: Policy, policy: Policy, lenience: float) -> np.ndarray:
    """Closed form of the distribution under SPEC-RL's published rule, float64 (R,).

    With m_i = min(q_i, l p_i) for the response's token and b_i the sum of m over the vocabulary at position i,

        P(o) = sum over k of prod_(i<k) m_i (1 - b_k) prod_(i>=k) p_i + prod over all i of m_i.
    """
    probabilities = []
    for response in policy.space.responses:
        tokens_T, positions_T = np.array(response), np.arange(len(response))
        p_TV, q_TV = policy.distributions(response), draft_policy.distributions(response)
        m_TV = np.minimum(q_TV, lenience * p_TV)
        m_T, b_T = m_TV[positions_T, tokens_T], m_TV.sum(axis=1)
        before = np.cumprod(np.append(1.0, m_T))
        after = np.append(np.cumprod(p_TV[positions_T, tokens_T][::-1])[::-1], 1.0)
        probabilities.append(float(before[:-1] @ ((1.0 - b_T) * after[:-1]) + before[-1]))
    return np.array(probabilities)


def two_state(draft_policy: Policy, policy: Policy, lenience: float, response: Response) -> np.ndarray:
    """Log-density of a response under SPEC-RL's rule, split by token, float64 (T,).

    A draft is either still alive (all tokens so far kept) or cut. With m and b as in `spec_rl_distribution`, the masses
    of the two states are A_k = A_(k-1) m_k and F_k = (F_(k-1) + A_(k-1) (1 - b_k)) p_k. A + F at the last token is the
    density of the response. The recursion needs q at every position of the response, also after the cut.
    """
    tokens_T, positions_T = np.array(response), np.arange(len(response))
    p_TV, q_TV = policy.distributions(response), draft_policy.distributions(response)
    m_TV = np.minimum(q_TV, lenience * p_TV)
    alive, cut, densities = 1.0, 0.0, [1.0]
    columns = m_TV[positions_T, tokens_T], m_TV.sum(axis=1), p_TV[positions_T, tokens_T]
    for own, mass, probability in zip(*columns, strict=True):
        alive, cut = alive * own, (cut + alive * (1.0 - mass)) * probability
        densities.append(alive + cut)
    # Ratios of successive densities of prefixes are conditional densities of tokens.
    return np.diff(np.log(densities))
