"""Part one of the audit: laws of the rules, enumerated."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.lab.audit.enumeration import Policy, Space, distance, made, over_visits, published, stored_laws
from redraft.lab.audit.weighted import over_visits_weighted
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.residual import PublishedRule, ResidualRule
from redraft.methods.acceptance.rule import Rule
from redraft.methods.acceptance.weighted import WeightedRule

EXACT = 1e-12
"""Largest distance in total variation that rounding explains."""
SPACE = Space(vocabulary=4, longest=4)
DRIFTS = (0.1, 0.3, 0.8)
VISITS = 3
"""Visits of the audit, the first one without drafts."""
WHOLE = SPACE.vocabulary
RULES: dict[str, tuple[Rule, int, bool]] = {
    "published, l = 1": (PublishedRule(1.0), WHOLE, False),
    "published, l = e^0.2": (PublishedRule(math.exp(0.2)), WHOLE, False),
    "published, l = e^0.5": (PublishedRule(math.exp(0.5)), WHOLE, False),
    "residual": (ResidualRule(), WHOLE, False),
    "residual, top 2": (ResidualRule(), 2, False),
    "residual, top 2 of both": (ResidualRule(), 2, True),
    "residual, top 2, l = 1/2": (ResidualRule(0.5), 2, False),
    "block": (BlockRule(), WHOLE, False),
    "block, top 2": (BlockRule(), 2, False),
    "block, top 2 of both": (BlockRule(), 2, True),
    "one-hot": (ResidualRule(), 0, False),
    "weighted, l = e^0.5": (WeightedRule(math.exp(0.5)), WHOLE, False),
    "weighted, top 2, l = e^0.5": (WeightedRule(math.exp(0.5)), 2, False),
    "weighted, top 2 of both, l = e^0.5": (WeightedRule(math.exp(0.5)), 2, True),
}
"""Rules by name, with the number of tokens of the draft's law that are stored, 0 to take the draft to be certain; and
whether only those count that are in the policy's top too, as under vLLM."""


@dataclass(frozen=True)
class Enumerated:
    """Law of a rule's responses.

    Attributes:
        rule: its name.
        drift: standard deviation of what policies add to common logits.
        policies: distance between the policy of the drafts and the current one.
        first: distance of the first visit with drafts from the current policy.
        last: that of the last visit.
        formula: distance of the first visit's law from the rule's closed form, where that is not the policy's law.
        kept: mean kept tokens of a draft in the first visit with drafts.
        draft: mean tokens of a draft.
        weighted: true if these are distances of the weighted law.
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

    @property
    def verdict(self) -> str:
        """What the law is."""
        if max(self.first, self.last) <= EXACT:
            return "exact by weight" if self.weighted else "exact"
        return "not exact, as its formula" if self.formula is not None and self.formula <= EXACT else "WRONG"

    @property
    def passes(self) -> bool:
        """False where a rule that should be exact is not, or one with a formula does not follow it."""
        return self.verdict != "WRONG"


def enumerate_rules() -> list[Enumerated]:
    """Laws of all rules at all drifts."""
    return [
        enumerated(name, rule, top, both, [Policy(SPACE, 0, number, drift) for number in range(1, VISITS + 1)], drift)
        for drift in DRIFTS
        for name, (rule, top, both) in RULES.items()
    ]


def enumerated(name: str, rule: Rule, top: int, both: bool, policies: list[Policy], drift: float) -> Enumerated:
    """Law of one rule."""
    earlier, now = policies[:2]
    drafts = earlier.responses()
    if isinstance(rule, WeightedRule):
        distances = over_visits_weighted(rule, policies, top, both)
    else:
        distances = over_visits(rule, policies, top, both)
    lengths = np.array([len(response) for response in SPACE.responses])
    formula = None
    if isinstance(rule, PublishedRule):
        formula = distance(made(rule, drafts, earlier, now, top, both), published(earlier, now, rule.lenience))
    return Enumerated(
        name, drift, distance(drafts, now.responses()), distances[1], distances[-1], formula,
        kept_of(rule, top, drafts, earlier, now, both), float(drafts @ lengths),
        isinstance(rule, WeightedRule),
    )  # fmt: skip


def kept_of(rule: Rule, top: int, drafts: np.ndarray, drawn_from: Policy, policy: Policy, both: bool = False) -> float:
    """Mean kept tokens of drafts with this law."""
    mean = 0.0
    for draft, weight in zip(policy.space.responses, drafts, strict=True):
        law = rule.law_of_kept(rule.chances(stored_laws(draft, drawn_from, policy, top, both)))
        mean += weight * float(law @ np.arange(len(law)))
    return mean
