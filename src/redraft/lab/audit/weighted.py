"""Weighted law of responses behind drafts with importance weights, by sums over drafts, cuts and responses."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from redraft.lab.audit.enumeration import Policy, Response, Space, distance, stored_laws
from redraft.methods.acceptance.weighted import WeightedRule

Weighted = Mapping[tuple[Response, tuple[float, ...]], float]
"""Probability of a response with the log-weight of each of its tokens."""
DIGITS = 13
"""Digits of a log-weight, so that ways to the same weights add up."""


def over_visits_weighted(rule: WeightedRule, policies: Sequence[Policy], top: int, both: bool = False) -> list[float]:
    """Distance of each visit's weighted law from that of its policy; the first visit samples its policy."""
    first = policies[0]
    drafts: Weighted = {(r, (0.0,) * len(r)): first.probability(r) for r in first.space.responses}
    distances = [0.0]
    for before, now in pairwise(policies):
        drafts = made_weighted(rule, drafts, before, now, top, both)
        distances.append(distance(weighted_law(drafts, now.space), now.responses()))
    return distances


def made_weighted(
    rule: WeightedRule, drafts: Weighted, drawn_from: Policy, policy: Policy, top: int, both: bool = False
) -> Weighted:
    """Responses that a rule makes of drafts, and their weights.

    Args:
        rule: keeps prefixes.
        drafts: with their weights.
        drawn_from: policy whose law they have by weight.
        policy: the current one.
        top: most probable tokens of the draft's law that are stored.
        both: only those count that are in the policy's top too.
    """
    found: dict[tuple[Response, tuple[float, ...]], float] = defaultdict(float)
    behind_of: dict[Response, list[tuple[Response, float]]] = {}
    for (draft, before), probability in drafts.items():
        laws = stored_laws(draft, drawn_from, policy, top, both)
        for kept, chance in enumerate(rule.distribution_of_kept(rule.acceptance(laws))):
            if probability * chance == 0:
                continue
            weights, prefix = rule.weights(laws, kept, np.array(before)), draft[:kept]
            if prefix not in behind_of:
                behind_of[prefix] = [(r, policy.probability(r, kept)) for r in _behind(prefix, policy.space)]
            for response, continued in behind_of[prefix]:
                behind = [0.0] * (len(response) - kept)
                if behind:
                    behind[0] = weights.after(response[kept])
                key = response, tuple(np.round([*weights.kept, *behind], DIGITS).tolist())
                found[key] += probability * chance * continued
    return found


def _behind(prefix: Response, space: Space) -> list[Response]:
    """Responses that go on from a prefix; itself, if it is one."""
    if prefix in space.index:
        return [prefix]
    return [response for response in space.responses if response[: len(prefix)] == prefix]


def weighted_law(drafts: Weighted, space: Space) -> np.ndarray:
    """Expected weight of each response, float64 (responses,)."""
    law = np.zeros(len(space.responses))
    for (response, log_weights), probability in drafts.items():
        law[space.index[response]] += probability * math.exp(sum(log_weights))
    return law
