"""Part one of the audit: laws of the rules, enumerated."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.audit.enumeration import Policy, Space, distance, made, over_visits, published, stored_laws
from redraft.rollout.acceptance.block import BlockRule
from redraft.rollout.acceptance.residual import PublishedRule, ResidualRule
from redraft.rollout.acceptance.rule import Rule

EXACT = 1e-12
"""Largest distance in total variation that rounding explains."""
SPACE = Space(vocabulary=4, longest=4)
DRIFTS = (0.1, 0.3, 0.8)
VISITS = 3
"""Visits of the audit, the first one without drafts."""
WHOLE = SPACE.vocabulary
RULES: dict[str, tuple[Rule, int]] = {
    "published, l = 1": (PublishedRule(1.0), WHOLE),
    "published, l = e^0.2": (PublishedRule(math.exp(0.2)), WHOLE),
    "published, l = e^0.5": (PublishedRule(math.exp(0.5)), WHOLE),
    "residual": (ResidualRule(), WHOLE),
    "residual, top 2": (ResidualRule(), 2),
    "residual, top 2, l = 1/2": (ResidualRule(0.5), 2),
    "block": (BlockRule(), WHOLE),
    "block, top 2": (BlockRule(), 2),
    "one-hot": (ResidualRule(), 0),
}
"""Rules by name, with the number of tokens of the draft's law that are stored; 0 takes the draft to be certain."""


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
    """

    rule: str
    drift: float
    policies: float
    first: float
    last: float
    formula: float | None
    kept: float
    draft: float

    @property
    def verdict(self) -> str:
        """What the law is."""
        if max(self.first, self.last) <= EXACT:
            return "exact"
        return "not exact, as its formula" if self.formula is not None and self.formula <= EXACT else "WRONG"

    @property
    def passes(self) -> bool:
        """False where a rule that should be exact is not, or one with a formula does not follow it."""
        return self.verdict != "WRONG"


def enumerate_rules() -> list[Enumerated]:
    """Laws of all rules at all drifts."""
    return [
        enumerated(name, rule, top, [Policy(SPACE, 0, number, drift) for number in range(1, VISITS + 1)], drift)
        for drift in DRIFTS
        for name, (rule, top) in RULES.items()
    ]


def enumerated(name: str, rule: Rule, top: int, policies: list[Policy], drift: float) -> Enumerated:
    """Law of one rule."""
    earlier, now = policies[:2]
    drafts = earlier.responses()
    distances = over_visits(rule, policies, top)
    lengths = np.array([len(response) for response in SPACE.responses])
    formula = None
    if isinstance(rule, PublishedRule):
        formula = distance(made(rule, drafts, earlier, now, top), published(earlier, now, rule.lenience))
    return Enumerated(
        name, drift, distance(drafts, now.responses()), distances[1], distances[-1], formula,
        kept_of(rule, top, drafts, earlier, now), float(drafts @ lengths),
    )  # fmt: skip


def kept_of(rule: Rule, top: int, drafts: np.ndarray, drawn_from: Policy, policy: Policy) -> float:
    """Mean kept tokens of drafts with this law."""
    mean = 0.0
    for draft, weight in zip(policy.space.responses, drafts, strict=True):
        law = rule.law_of_kept(rule.chances(stored_laws(draft, drawn_from, policy, top)))
        mean += weight * float(law @ np.arange(len(law)))
    return mean
