"""The enumerated part of the bias laboratory: how far rules are from the policy, and why (docs/exact-reuse.md).

It enumerates a rule's error as the policy drifts, its error if epoch passes share random numbers, and its error if the
policy was trained on the drafts.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from redraft.lab.audit.bandit import ArmSampler, Bandit, CoupledSampler, RuleSampler, train_bandit
from redraft.lab.audit.enumeration import Policy, Space, total_variation
from redraft.lab.audit.epoch_passes import PassChain, common_uniforms
from redraft.lab.audit.rules import rules_of, stored_top
from redraft.lab.audit.uniforms import IndependentUniforms, Uniforms
from redraft.methods.reuse import AuditedRule
from redraft.result_files import write_with_hash

Row = dict[str, Any]
VOCABULARY = 4
SPACE, SHORT_SPACE = Space(VOCABULARY, 3), Space(VOCABULARY, 2)
"""Responses over drift; and with shared uniforms, whose cells multiply with each position."""
DRIFTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2)
"""Standard deviations of the noise that policies add to common logits."""
SHARED_DRIFT = 0.3
EPOCH_PASSES = 5
"""Passes with drafts."""
DIRECTIONS = 3
"""Independent sets of policies; results are means over them."""
RATES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
RATE, GROUP = 1.0, 4
GROUPS, GROUP_PASSES = (2, 4, 8, 16), 2
START = (-1.0, 0.0)
"""Logits of the bandit's first policy, whose first arm has the reward 1."""
RULES, NUMBERS_RULES = rules_of("drift"), rules_of("numbers")
NUMBERS = {
    "fresh": (False, False),
    # Keys of a results file, which keep their names.
    "accepts in all visits": (False, True),
    "accepts and draws": (True, False),
    "accepts and draws in all visits": (True, True),
}
"""Uses of one uniform per position: whether it also samples the token, and whether all passes share it."""


def write_distributions(file: Path) -> None:
    """Write `distributions` as JSON."""
    write_with_hash(file, distributions())


def distributions() -> dict[str, Any]:
    """All rows, with the settings that they depend on."""
    settings = {
        "vocabulary": VOCABULARY,
        "longest": SPACE.longest,
        "longest_shared": SHORT_SPACE.longest,
        "directions": DIRECTIONS,
        "visits": EPOCH_PASSES,
        "drift": SHARED_DRIFT,
        "rate": RATE,
        "group": GROUP,
        "group_visits": GROUP_PASSES,
    }
    return settings | {"drifts": list(by_drift()), "numbers": list(by_numbers()), "bandit": list(by_bandit())}


def _policies(space: Space, direction: int, drift: float) -> list[Policy]:
    return [Policy(space, direction, number, drift) for number in range(1, EPOCH_PASSES + 2)]


def by_drift() -> Iterator[Row]:
    """Total variation of each rule's responses from the current policy, in the first and the last pass with drafts."""
    for drift in DRIFTS:
        for name, audited in RULES.items():
            errors = [_errors(audited, _policies(SPACE, each, drift)) for each in range(DIRECTIONS)]
            policies, first, last, kept = np.mean(errors, axis=0).tolist()
            yield {
                "rule": name,
                "exact": audited.exact,
                "drift": drift,
                "policies": policies,
                "first": first,
                "last": last,
                "kept": kept,
            }


def _errors(audited: AuditedRule, policies: list[Policy]) -> tuple[float, float, float, float]:
    """Distance of the first two policies, errors in the first and last pass, and kept share of a draft in the first."""
    chain = PassChain(audited.rule, policies, stored_top(audited, SPACE), audited.renewed)
    passes = chain.passes(IndependentUniforms())
    first, last = passes[0], passes[-1]
    return (
        total_variation(policies[0].response_distribution(), policies[1].response_distribution()),
        total_variation(first.distribution, policies[1].response_distribution()),
        total_variation(last.distribution, policies[-1].response_distribution()),
        first.kept / first.draft,
    )


def by_numbers() -> Iterator[Row]:
    """Total variation from the current policy and kept share in each pass, by the use of the uniforms."""
    for numbers, (sampling, shared) in NUMBERS.items():
        for name, audited in NUMBERS_RULES.items():
            directions = [
                _errors_by_pass(audited, _policies(SHORT_SPACE, each, SHARED_DRIFT), sampling, shared)
                for each in range(DIRECTIONS)
            ]
            # From 1 on: pass 0 has no drafts.
            for number, (error, kept) in enumerate(np.mean(directions, axis=0).tolist(), 1):
                yield {"numbers": numbers, "rule": name, "visit": number, "distance": error, "kept": kept}


def _errors_by_pass(
    audited: AuditedRule, policies: list[Policy], sampling: bool, shared: bool
) -> list[tuple[float, float]]:
    """Total variation and kept share of each pass."""
    chain = PassChain(audited.rule, policies, stored_top(audited, SPACE), audited.renewed, shared)
    uniforms: Uniforms = common_uniforms(chain, sampling) if sampling or shared else IndependentUniforms()
    return [
        (total_variation(each.distribution, policy.response_distribution()), each.kept / each.draft)
        for each, policy in zip(chain.passes(uniforms), policies[1:], strict=True)
    ]


def by_bandit() -> Iterator[Row]:
    """Bandits trained on their drafts: by pass at each learning rate, and by group size at one learning rate."""
    for rate in RATES:
        yield from _bandit_rows(Bandit(start=START, group=GROUP, rate=rate), EPOCH_PASSES)
    for group in GROUPS:
        # That size is among the rows by learning rate already.
        if group != GROUP:
            yield from _bandit_rows(Bandit(start=START, group=group, rate=RATE), GROUP_PASSES)


def _bandit_rows(bandit: Bandit, passes: int) -> Iterator[Row]:
    for name, sampler in arm_samplers().items():
        for number, statistics in enumerate(train_bandit(sampler, bandit, passes)):
            yield {"rule": name, "rate": bandit.rate, "group": bandit.group, "visit": number} | asdict(statistics)


def arm_samplers() -> dict[str, ArmSampler]:
    """Samplers of the bandit's arms, by name: one for each audited rule, and Gumbel coupling."""
    coupled: dict[str, ArmSampler] = {"Gumbel": CoupledSampler()}
    audited = rules_of("bandit").items()
    return {name: RuleSampler(a.rule, stored_top(a, SPACE), a.renewed) for name, a in audited} | coupled
