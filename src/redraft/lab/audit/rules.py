"""Part one of the audit: distributions of responses by the rules of all methods, enumerated."""

from dataclasses import dataclass

import numpy as np

from redraft.lab.audit.enumeration import Policy, Space, distance, made, over_visits, published, stored_distributions
from redraft.lab.audit.weighted import over_visits_weighted
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.reuse import AuditedRule, Part, ReuseMethod

EXACT = 1e-12
"""Largest distance in total variation that rounding explains."""
SPACE = Space(vocabulary=4, longest=4)
DRIFTS = (0.1, 0.3, 0.8)
VISITS = 3
"""Visits of the audit, the first one without drafts."""


def rules_of(part: Part) -> dict[str, AuditedRule]:
    """Rules that a part enumerates, of all methods, by name."""
    audited = [named for method in ReuseMethod.registered() for named in method.audited().items()]
    return {name: audited_rule for name, audited_rule in audited if part in audited_rule.parts}


RULES = rules_of("rules")


@dataclass(frozen=True)
class Enumerated:
    """Distribution of a rule's responses.

    Attributes:
        drift: standard deviation of what policies add to common logits.
        policies: distance between the policy of the drafts and the current one.
        first: distance of the first visit with drafts from the current policy.
        last: that of the last visit.
        formula: distance of the first visit's distribution from the rule's closed form, where that is not the policy's
            distribution.
        kept: mean kept tokens of a draft in the first visit with drafts.
        draft: mean tokens of a draft.
        weighted: true if these are distances of the weighted distribution.
    """

    rule: str
    drift: float
    policies: float
    first: float
    last: float
    formula: float | None
    kept: float
    draft: float
    weighted: bool
    exact: bool = True

    @property
    def verdict(self) -> str:
        """What the distribution is."""
        if max(self.first, self.last) <= EXACT:
            return "exact by weight" if self.weighted else "exact"
        if self.exact or (self.formula is not None and self.formula > EXACT):
            return "WRONG"
        return "not exact, as declared" if self.formula is None else "not exact, as its formula"

    @property
    def passes(self) -> bool:
        """False where a rule that should be exact is not, or one with a formula does not follow it."""
        return self.verdict != "WRONG"


def enumerate_rules() -> list[Enumerated]:
    """Distributions of all rules at all drifts."""
    return [
        enumerated(name, audited, [Policy(SPACE, 0, number, drift) for number in range(1, VISITS + 1)], drift)
        for drift in DRIFTS
        for name, audited in RULES.items()
    ]


def enumerated(name: str, audited: AuditedRule, policies: list[Policy], drift: float) -> Enumerated:
    """Distribution of one rule."""
    earlier, now = policies[:2]
    drafts = earlier.responses()
    rule, both, top = audited.rule, audited.both, stored(audited, SPACE)
    if isinstance(rule, WeightedRule):
        distances = over_visits_weighted(rule, policies, top, both)
    else:
        distances = over_visits(rule, policies, top, both)
    lengths = np.array([len(response) for response in SPACE.responses])
    formula = None
    if isinstance(rule, SpecRLRule):
        formula = distance(made(rule, drafts, earlier, now, top, both), published(earlier, now, rule.lenience))
    return Enumerated(
        name,
        drift,
        distance(drafts, now.responses()),
        distances[1],
        distances[-1],
        formula,
        kept_of(rule, top, drafts, earlier, now, both),
        float(drafts @ lengths),
        isinstance(rule, WeightedRule),
        audited.exact,
    )


def stored(audited: AuditedRule, space: Space) -> int:
    """Number of tokens that a rule stores of each distribution of a space."""
    return space.vocabulary if audited.top is None else audited.top


def kept_of(rule: Rule, top: int, drafts: np.ndarray, drawn_from: Policy, policy: Policy, both: bool = False) -> float:
    """Mean kept tokens of drafts with this distribution."""
    mean = 0.0
    for draft, weight in zip(policy.space.responses, drafts, strict=True):
        distribution = rule.distribution_of_kept(
            rule.acceptance(stored_distributions(draft, drawn_from, policy, top, both))
        )
        mean += weight * float(distribution @ np.arange(len(distribution)))
    return mean
