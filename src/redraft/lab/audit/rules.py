"""Part one of the audit: enumerated response distributions under the rules of all methods."""

from dataclasses import dataclass

import numpy as np

from redraft.lab.audit.enumeration import (
    Policy,
    Space,
    errors_by_pass,
    reuse_distribution,
    spec_rl_distribution,
    stored_distributions,
    total_variation,
    weighted_errors_by_pass,
)
from redraft.lab.audit.epoch_passes import PassChain
from redraft.lab.audit.uniforms import IndependentUniforms
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.reuse import AuditedRule, Part, ReuseMethod

EXACT = 1e-12
"""Largest total variation that is attributed to rounding."""
SPACE = Space(vocabulary=4, longest=4)
DRIFTS = (0.1, 0.3, 0.8)
EPOCH_PASSES = 3
"""Passes over the prompts, of which the first has no drafts."""


def rules_of(part: Part) -> dict[str, AuditedRule]:
    """Rules of all methods that a part of the audit enumerates, by name."""
    audited = [named for method in ReuseMethod.registered() for named in method.audited().items()]
    return {name: audited_rule for name, audited_rule in audited if part in audited_rule.parts}


RULES = rules_of("rules")


@dataclass(frozen=True)
class Enumeration:
    """Errors of a rule's response distribution, as total variation from the current policy.

    Attributes:
        drift: standard deviation of the noise by which the policies' logits differ.
        policies: total variation between the draft policy and the current one.
        first: error in the first pass with drafts.
        last: error in the last pass.
        formula: distance between the first pass's distribution and the rule's closed form; None without one.
        kept: mean kept tokens of a draft in the first pass with drafts.
        draft: mean tokens of a draft.
        weighted: true if errors are those of the importance-weighted distribution.
        exact: true if the rule claims to be exact.
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
        """Whether the rule is exact, or as inexact as declared."""
        if max(self.first, self.last) <= EXACT:
            return "exact by weight" if self.weighted else "exact"
        # An inexact rule may be wrong too: if it is not as inexact as its formula says.
        if self.exact or (self.formula is not None and self.formula > EXACT):
            return "WRONG"
        return "not exact, as declared" if self.formula is None else "not exact, equals its formula"

    @property
    def passes(self) -> bool:
        """False for a rule that claims to be exact and is not, or deviates from its closed form."""
        return self.verdict != "WRONG"


def enumerate_rules() -> list[Enumeration]:
    """Errors of all rules at all drifts."""
    return [
        enumerate_rule(name, audited, [Policy(SPACE, 0, number, drift) for number in range(1, EPOCH_PASSES + 1)], drift)
        for drift in DRIFTS
        for name, audited in RULES.items()
    ]


def enumerate_rule(name: str, audited: AuditedRule, policies: list[Policy], drift: float) -> Enumeration:
    """Errors of one rule over epoch passes, one for each policy."""
    earlier, now = policies[:2]
    drafts_R = earlier.response_distribution()
    rule, both, top = audited.rule, audited.both, stored_top(audited, SPACE)
    if isinstance(rule, WeightedRule):
        errors = weighted_errors_by_pass(rule, policies, top, both)
    # Tokens keep distributions of several passes, which `errors_by_pass` does not follow.
    elif not audited.renewed:
        passes = PassChain(rule, policies, top, renewed=False).passes(IndependentUniforms())
        distributions = (each.distribution for each in passes)
        exact = (policy.response_distribution() for policy in policies[1:])
        errors = [0.0, *map(total_variation, distributions, exact)]
    else:
        errors = errors_by_pass(rule, policies, top, both)
    formula = None
    # The one rule with a closed form of its distribution.
    if isinstance(rule, SpecRLRule):
        enumerated_R = reuse_distribution(rule, drafts_R, earlier, now, top, both)
        formula = total_variation(enumerated_R, spec_rl_distribution(earlier, now, rule.lenience))
    lengths_R = np.array([len(response) for response in SPACE.responses])
    return Enumeration(
        rule=name,
        drift=drift,
        policies=total_variation(drafts_R, now.response_distribution()),
        # `errors[0]` is of the pass before the first with drafts.
        first=errors[1],
        last=errors[-1],
        formula=formula,
        kept=mean_kept(rule, top, drafts_R, earlier, now, both),
        draft=float(drafts_R @ lengths_R),
        weighted=isinstance(rule, WeightedRule),
        exact=audited.exact,
    )


def stored_top(audited: AuditedRule, space: Space) -> int:
    """Number of tokens that a rule stores at each position; the whole vocabulary if it has no limit."""
    return space.vocabulary if audited.top is None else audited.top


def mean_kept(
    rule: Rule, top: int, drafts: np.ndarray, draft_policy: Policy, policy: Policy, both: bool = False
) -> float:
    """Expected kept tokens of drafts with the distribution `drafts`, float64 (R,)."""
    mean = 0.0
    for draft, weight in zip(policy.space.responses, drafts, strict=True):
        distributions = stored_distributions(draft, draft_policy, policy, top, both)
        kept_distribution = rule.distribution_of_kept(rule.acceptance(distributions))
        mean += weight * float(kept_distribution @ np.arange(len(kept_distribution)))
    return mean
