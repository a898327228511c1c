"""Weighted distribution of responses behind drafts with importance weights, by sums over drafts, cuts and responses."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from redraft.lab.audit.enumeration import Policy, Response, Space, distance, stored_distributions
from redraft.methods.acceptance.weighted import WeightedRule

Weighted = Mapping[tuple[Response, tuple[float, ...]], float]
"""Probability of a response with the log-weight of each of its tokens."""
DIGITS = 13
"""Digits of a log-weight, so that ways to the same weights add up."""


def over_visits_weighted(rule: WeightedRule, policies: Sequence[Policy], top: int, both: bool = False) -> list[float]:
    """Distance of each visit's weighted distribution from that of its policy; the first visit samples its policy."""
    first = policies[0]
    drafts: Weighted = {(r, (0.0,) * len(r)): first.probability(r) for r in first.space.responses}
    distances = [0.0]
    for before, now in pairwise(policies):
        drafts = made_weighted(rule, drafts, before, now, top, both)
        distances.append(distance(weighted_distribution(drafts, now.space), now.responses()))
    return distances


def made_weighted(
    rule: WeightedRule, drafts: Weighted, drawn_from: Policy, policy: Policy, top: int, both: bool = False
) -> Weighted:
    """Responses that a rule makes of drafts, which have the distribution of `drawn_from` by weight; the rest as of
    `made`."""
    found: dict[tuple[Response, tuple[float, ...]], float] = defaultdict(float)
    behind_of: dict[Response, list[tuple[Response, float]]] = {}
    for (draft, before), probability in drafts.items():
        distributions = stored_distributions(draft, drawn_from, policy, top, both)
        for kept, chance in enumerate(rule.distribution_of_kept(rule.acceptance(distributions))):
            if probability * chance == 0:
                continue
            weights, prefix = rule.weights(distributions, kept, np.array(before)), draft[:kept]
            if prefix not in behind_of:
                whole = prefix in policy.space.index
                on = [prefix] if whole else [r for r in policy.space.responses if r[:kept] == prefix]
                behind_of[prefix] = [(r, policy.probability(r, kept)) for r in on]
            for response, continued in behind_of[prefix]:
                behind = [0.0] * (len(response) - kept)
                if behind:
                    behind[0] = weights.after(response[kept])
                key = response, tuple(np.round([*weights.kept, *behind], DIGITS).tolist())
                found[key] += probability * chance * continued
    return found


def weighted_distribution(drafts: Weighted, space: Space) -> np.ndarray:
    """Expected weight of each response, float64 (responses,)."""
    distribution = np.zeros(len(space.responses))
    for (response, log_weights), probability in drafts.items():
        distribution[space.index[response]] += probability * math.exp(sum(log_weights))
    return distribution
