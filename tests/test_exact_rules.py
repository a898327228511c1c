"""Exact rules: distributions of responses by enumeration, how much is kept, and what must not be accepted."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.lab.audit.enumeration import (
    Policy,
    Space,
    errors_by_pass,
    reuse_distribution,
    spec_rl_distribution,
    stored_distributions,
    total_variation,
)
from redraft.lab.audit.rules import EXACT, RULES, SPACE, enumerate_rules, mean_kept
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.coupling import first_difference
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions, FromTheLeft, LongestPrefix
from redraft.rollout.streams import gumbel

SMALL = Space(vocabulary=3, longest=3)
EXACT_RULES = {"residual": ResidualRule(), "half": ResidualRule(0.5), "block": BlockRule()}


@pytest.fixture(scope="module")
def audited():
    return enumerate_rules()


def test_a_space_has_every_response_once_and_none_continues_after_its_end():
    assert sorted(SMALL.responses) == sorted(
        r
        for n in range(1, 4)
        for r in itertools.product(range(3), repeat=n)
        if 0 not in r[:-1] and (r[-1] == 0 or n == 3)
    )
    assert Policy(SMALL, 3, 1, 0.5).response_distribution().sum() == pytest.approx(1)


def test_the_published_rule_keeps_the_log_probabilities_of_the_pass_that_sampled_a_token(audited):
    """As in training; with renewed ones its error after two passes would be 0.031, 0.086 and 0.20."""
    last = {row.drift: row.last for row in audited if row.rule == "published, l = 1"}
    assert last == {
        0.1: pytest.approx(0.0283, abs=5e-4),
        0.3: pytest.approx(0.081, abs=1e-3),
        0.8: pytest.approx(0.19, abs=5e-3),
    }


def test_rules_that_claim_it_are_exact_over_passes_and_the_published_one_follows_its_formula(audited):
    assert {row.rule for row in audited} == set(RULES)
    shipped = {name: name.split(",")[0] for name in RULES}
    assert all(RULES[name].exact for name, of in shipped.items() if of in ("residual", "block", "one-hot", "weighted"))
    for row in audited:
        by_weight = "exact by weight" if row.rule.startswith("weighted") else "exact"
        assert row.passes
        if RULES[row.rule].exact:
            assert row.verdict == by_weight, row
            assert max(row.first, row.last) <= EXACT
        if row.rule.startswith("published"):
            assert row.verdict == "not exact, equals its formula", row
            assert row.formula <= EXACT
            assert row.first > row.policies / 3, "of the size of the drift"


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    drift=st.floats(0.01, 4),
    top=st.integers(0, 3),
    rule=st.sampled_from(sorted(EXACT_RULES)),
    both=st.booleans(),
)
def test_any_policies_and_any_number_of_stored_tokens_leave_the_distribution_exact(seed, drift, top, rule, both):
    policies = [Policy(SMALL, seed, number, drift) for number in (1, 2, 3)]
    assert max(errors_by_pass(EXACT_RULES[rule], policies, top, both)) <= EXACT


def test_a_token_in_only_one_top_k_is_rejected_and_sampled_after_a_rejection():
    """q stores tokens 0 and 1; the policy's top has 1 and 2. Token 0 is never accepted, so all of its mass is left."""
    q, p = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    own = lambda token: -np.inf if token == 0 else math.log(p[token])  # noqa: E731
    distributions = [
        Distributions(
            np.array([token]),
            np.array([own(token)]),
            np.log(q[[token]]),
            np.array([[0, 1]]),
            np.array([[-np.inf, math.log(0.3)]]),
            np.log(q[None, :2]),
        )
        for token in range(3)
    ]
    for rule in (ResidualRule(), BlockRule()):
        assert [float(rule.acceptance(of_token)[0]) for of_token in distributions] == pytest.approx([0, 1, 0])
        assert rule.residual(distributions[0], 0).left == pytest.approx([1, 0])


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), drift=st.floats(0.01, 4), top=st.integers(0, 3))
def test_block_verification_keeps_as_much_as_the_residual_rule_at_least(seed, drift, top):
    earlier, now = (Policy(SMALL, seed, number, drift) for number in (1, 2))
    residual, block = (
        mean_kept(rule, top, earlier.response_distribution(), earlier, now) for rule in (ResidualRule(), BlockRule())
    )
    assert block >= residual - 1e-12
    if top == 1:
        assert residual < mean_kept(ResidualRule(), 3, earlier.response_distribution(), earlier, now)


def test_block_verification_keeps_more_where_a_later_token_makes_up_for_an_earlier_one():
    distributions = Distributions(
        np.array([0, 0]),
        np.log([0.25, 0.5]),
        np.log([0.5, 0.25]),
        np.tile([0, 1], (2, 1)),
        np.log([[0.25, 0.75], [0.5, 0.5]]),
        np.log([[0.5, 0.5], [0.25, 0.75]]),
    )
    assert ResidualRule().acceptance(distributions) == pytest.approx([0.5, 1.0])
    assert BlockRule().acceptance(distributions)[-1] == pytest.approx(1.0), "(1/4 * 1/2) / (1/2 * 1/4)"


@pytest.mark.parametrize("lenience", [0.0, 1.0, math.exp(0.5), 100.0, math.inf])
def test_the_rule_that_is_enumerated_keeps_what_its_formula_says(lenience):
    earlier, now = (Policy(SMALL, 5, number, 0.8) for number in (1, 2))
    random = np.random.default_rng(0)
    for draft in SMALL.responses:
        drafts, u = stored_distributions(draft, earlier, now, 3), 1 - random.random(len(draft))
        rule = SpecRLRule(lenience)
        ratio = [lenience * math.exp(p - q) for p, q in zip(drafts.log_p_T, drafts.log_q_T, strict=True)]
        rejected = [i for i in range(len(draft)) if u[i] > ratio[i]]
        assert rule.kept(rule.accepts(drafts, u)) == (rejected or [len(draft)])[0]
        assert rule.acceptance(drafts) == pytest.approx(np.minimum(ratio, 1))
        assert rule.residual(drafts, 0) is None


def test_a_published_rule_of_large_lenience_returns_drafts_unchanged():
    earlier, now = (Policy(SPACE, 0, number, 0.8) for number in (1, 2))
    distribution = reuse_distribution(SpecRLRule(1e6), earlier.response_distribution(), earlier, now, 4)
    assert total_variation(distribution, earlier.response_distribution()) <= EXACT
    assert total_variation(spec_rl_distribution(earlier, now, 1e6), earlier.response_distribution()) <= EXACT


@pytest.mark.parametrize("kind", [FromTheLeft(), LongestPrefix()], ids=["from the left", "longest prefix"])
def test_the_distribution_of_kept_tokens_is_that_of_the_uniforms_that_decide(kind):
    """Probabilities in quarters on a grid of quarters are counts."""
    for quarters in itertools.product(range(5), repeat=3):
        acceptance = np.array(quarters) / 4
        grid = (np.array(u) / 4 for u in itertools.product((1, 2, 3, 4), repeat=3))
        counts = np.bincount([kind.kept(u <= acceptance) for u in grid], minlength=4) / 64
        assert counts == pytest.approx(kind.distribution_of_kept(acceptance), abs=1e-15)


def test_a_longest_prefix_may_contain_rejected_tokens_and_a_first_rejection_ends_the_other():
    acceptance, u = np.array([0.5, 0.5, 0.5]), np.array([0.9, 0.1, 0.9])
    assert LongestPrefix().kept(u <= acceptance) == 2
    assert FromTheLeft().kept(u <= acceptance) == 0


def test_resampling_old_tokens_is_not_exact_and_resampling_by_turns_is():
    """One token, three passes. Resampling tokens kept once is biased; resampling in every second pass is not."""
    q, p, r = (np.array(distribution) for distribution in ([0.6, 0.3, 0.1], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]))

    def verified(joint, before, now):
        """Distributions of kept and of resampled tokens, from the joint distribution of the drafts."""
        kept = joint * np.minimum(1, now / before)
        rest = np.maximum(now - before, 0)
        return kept, (joint.sum() - kept.sum()) * rest / rest.sum()

    kept, sampled = verified(q, q, p)
    assert kept + sampled == pytest.approx(p)
    again, new = verified(sampled, p, r)
    by_age = again + new + kept.sum() * r
    assert np.abs(by_age - r).sum() / 2 > 0.01
    by_turns = (sum(verified(p, p, r)) + r) / 2
    assert by_turns == pytest.approx(r)


def test_coupled_policies_sample_the_same_token_with_the_probability_of_the_formula():
    random = np.random.default_rng(1)
    for _ in range(3):
        p, q = random.dirichlet(np.ones(4)), random.dirichlet(np.ones(4))
        matched = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(4))
        away = np.abs(p - q).sum() / 2
        noise = gumbel(3, np.arange(40_000)[:, None], np.arange(4)[None])
        same = (np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1)
        assert (1 - away) / (1 + away) <= matched <= 1 - away
        assert same.mean() == pytest.approx(matched, abs=5 * math.sqrt(matched * (1 - matched) / len(same)))


def test_a_draft_is_kept_up_to_the_first_token_that_differs():
    assert first_difference(np.array([3, 1, 2]), np.array([3, 1, 2])) == 3
    assert first_difference(np.array([3, 1, 2]), np.array([3, 0, 2])) == 1
    with pytest.raises(ValueError, match="shapes do not fit"):
        first_difference(np.array([3, 1, 2]), np.array([3, 1]))


@pytest.mark.parametrize("lenience", [0, -1, 1.0001, math.inf, math.nan])
def test_no_residual_exists_for_other_leniences(lenience):
    with pytest.raises(ValueError, match="0 < lenience <= 1"):
        ResidualRule(lenience)


def test_distributions_that_do_not_fit_or_are_nan_raise():
    tokens, one, table = np.array([1, 2]), np.log([0.5, 0.5]), np.log([[0.5, 0.5]] * 2)
    support = np.array([[0, 1], [2, 0]])
    assert Distributions(tokens, one, one, support, table, table).stored.tolist() == [True, True]
    for broken in (
        (tokens, one[:1], one, support, table, table),
        (tokens, one, one, support[:1], table, table),
        (tokens, one, one, support, table[:, :1], table),
        (tokens, one, one, support[:1], table[:1], table[:1]),
    ):
        with pytest.raises(ValueError, match="shapes do not fit"):
            Distributions(*broken)
    with pytest.raises(ValueError, match="NaN: log_q_TK"):
        Distributions(tokens, one, one, support, table, np.full_like(table, np.nan))


@pytest.mark.parametrize("uniforms", [[0.0, 0.5], [0.5, 1.5], [0.5]])
def test_uniforms_outside_their_interval_or_too_few_raise(uniforms):
    with pytest.raises(ValueError, match="one uniform on"):
        ResidualRule().accepts(Distributions.one_hot(np.array([1, 2]), np.log([0.5, 0.5])), np.array(uniforms))
