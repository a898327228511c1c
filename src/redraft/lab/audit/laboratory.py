"""The bias laboratory's enumerated part: how far rules are from the policy, and why (docs/exact-reuse.md).

Three questions, each answered by sums with no drawing: what a rule does over drift, what it does if visits share their
random numbers, and what it does if the policy was trained on the drafts.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from redraft.files import write_json
from redraft.lab.audit.bandit import Bandit, Coupled, Source, Verified, trained
from redraft.lab.audit.enumeration import Policy, Space, distance
from redraft.lab.audit.numbers import Fresh, Numbers
from redraft.lab.audit.rules import rules_of, stored
from redraft.lab.audit.visits import Chain, shared_numbers
from redraft.methods.reuse import AuditedRule

Row = dict[str, Any]
WHOLE = 4
SPACE, SHORT = Space(WHOLE, 3), Space(WHOLE, 2)
"""Responses over drift, and where random numbers are shared."""
DRIFTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2)
"""Standard deviations of what the policies add to common logits."""
SHARED_DRIFT = 0.3
VISITS = 5
"""With drafts."""
DIRECTIONS = 3
"""Sets of policies, over which numbers are means."""
RATES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
RATE, GROUP = 1.0, 4
GROUPS, GROUP_VISITS = (2, 4, 8, 16), 2
START = (-1.0, 0.0)
"""Logits of the bandit's first policy, whose first arm has the reward 1."""
RULES, BY_NUMBERS = rules_of("drift"), rules_of("numbers")
NUMBERS = {
    "fresh": (False, False),
    "accepts in all visits": (False, True),
    "accepts and draws": (True, False),
    "accepts and draws in all visits": (True, True),
}
"""What one number a place does: whether it also draws, and whether it is the same in all visits."""


def write_distributions(file: Path) -> None:
    """Write `distributions` as JSON."""
    write_json(file, distributions())


def distributions() -> dict[str, Any]:
    """All rows, with the settings that they rest on."""
    settings = {
        "vocabulary": WHOLE,
        "longest": SPACE.longest,
        "longest_shared": SHORT.longest,
        "directions": DIRECTIONS,
        "visits": VISITS,
        "drift": SHARED_DRIFT,
        "rate": RATE,
        "group": GROUP,
        "group_visits": GROUP_VISITS,
    }
    return settings | {"drifts": list(over_drift()), "numbers": list(by_numbers()), "bandit": list(bandits())}


def _policies(space: Space, direction: int, drift: float) -> list[Policy]:
    return [Policy(space, direction, number, drift) for number in range(1, VISITS + 2)]


def over_drift() -> Iterator[Row]:
    """Distance of each rule's responses from the current policy, after the first and the last visit with drafts."""
    for drift in DRIFTS:
        for name, studied in RULES.items():
            found = [_course(studied, _policies(SPACE, each, drift)) for each in range(DIRECTIONS)]
            policies, first, last, kept = np.mean(found, axis=0).tolist()
            yield {
                "rule": name,
                "exact": studied.exact,
                "drift": drift,
                "policies": policies,
                "first": first,
                "last": last,
                "kept": kept,
            }


def _course(studied: AuditedRule, policies: list[Policy]) -> tuple[float, float, float, float]:
    """Distances of policies, first and last visit, and the share of a draft that the first one keeps."""
    visits = Chain(studied.rule, policies, stored(studied, SPACE), studied.renewed).visits(Fresh())
    first, last = visits[0], visits[-1]
    return (
        distance(policies[0].responses(), policies[1].responses()),
        distance(first.distribution, policies[1].responses()),
        distance(last.distribution, policies[-1].responses()),
        first.kept / first.draft,
    )


def by_numbers() -> Iterator[Row]:
    """Distance from the current policy and kept share in each visit, by what the random numbers share."""
    for numbers, (draws, shared) in NUMBERS.items():
        for name, studied in BY_NUMBERS.items():
            courses = [
                _visits(studied, _policies(SHORT, each, SHARED_DRIFT), draws, shared) for each in range(DIRECTIONS)
            ]
            for number, (away, kept) in enumerate(np.mean(courses, axis=0).tolist(), 1):
                yield {"numbers": numbers, "rule": name, "visit": number, "distance": away, "kept": kept}


def _visits(studied: AuditedRule, policies: list[Policy], draws: bool, shared: bool) -> list[tuple[float, float]]:
    """Distance and kept share of each visit."""
    chain = Chain(studied.rule, policies, stored(studied, SPACE), studied.renewed, shared)
    used: Numbers = shared_numbers(chain, draws) if draws or shared else Fresh()
    return [
        (distance(visit.distribution, policy.responses()), visit.kept / visit.draft)
        for visit, policy in zip(chain.visits(used), policies[1:], strict=True)
    ]


def bandits() -> Iterator[Row]:
    """Groups of bandits that are trained on their drafts: by visit at each rate, and by size of the group at one."""
    for rate in RATES:
        yield from _bandits(Bandit(start=START, group=GROUP, rate=rate), VISITS)
    for group in GROUPS:
        if group != GROUP:
            yield from _bandits(Bandit(start=START, group=group, rate=RATE), GROUP_VISITS)


def _bandits(bandit: Bandit, visits: int) -> Iterator[Row]:
    for name, source in sources().items():
        for number, found in enumerate(trained(source, bandit, visits)):
            yield {"rule": name, "rate": bandit.rate, "group": bandit.group, "visit": number} | asdict(found)


def sources() -> dict[str, Source]:
    """The ways in which the bandit's samples come about, by name."""
    found: dict[str, Source] = {"Gumbel": Coupled()}
    return {name: Verified(a.rule, stored(a, SPACE), a.renewed) for name, a in rules_of("bandit").items()} | found
