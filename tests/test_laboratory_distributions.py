"""The bias laboratory's enumerated part: shared uniforms, stored log-probabilities, and a bandit."""

import itertools
import math
from collections import defaultdict
from dataclasses import astuple, replace

import numpy as np
import pytest

from redraft.lab.audit import bias_laboratory
from redraft.lab.audit.bandit import Bandit, CoupledSampler, RuleSampler, Softmax, train_bandit
from redraft.lab.audit.bias_laboratory import NUMBERS_RULES, RULES, VOCABULARY, arm_samplers
from redraft.lab.audit.enumeration import Policy, Space, errors_by_pass, total_variation
from redraft.lab.audit.epoch_passes import PassChain, common_uniforms
from redraft.lab.audit.rules import EXACT, rules_of, stored_top
from redraft.lab.audit.uniforms import CommonUniforms, IndependentUniforms
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.random_cut import RandomCut
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions, FromTheLeft, LongestPrefix
from redraft.methods.speculative import Speculative

SPACE = Space(vocabulary=3, longest=2)
POLICIES = [Policy(SPACE, 0, number, 0.6) for number in range(1, 5)]
RENEWED = {name: audited for name, audited in RULES.items() if audited.renewed}


def errors(passes, policies=POLICIES):
    return [
        total_variation(epoch_pass.distribution, policy.response_distribution())
        for epoch_pass, policy in zip(passes, policies[1:], strict=True)
    ]


def chain(name, policies=POLICIES, **changes):
    audited = RULES[name]
    return replace(PassChain(audited.rule, policies, min(stored_top(audited, SPACE), 3), audited.renewed), **changes)


@pytest.mark.parametrize("name", RULES)
def test_passes_with_independent_uniforms_equal_the_enumeration_and_sum_to_one(name):
    passes = chain(name, renewed=True).passes(IndependentUniforms())
    top = chain(name).top
    assert errors(passes) == pytest.approx(errors_by_pass(RULES[name].rule, POLICIES, top)[1:], abs=1e-14)
    assert [epoch_pass.distribution.sum() for epoch_pass in passes] == pytest.approx([1] * 3)
    lengths = np.array([len(response) for response in SPACE.responses])
    drafts = [POLICIES[0].response_distribution(), *(epoch_pass.distribution for epoch_pass in passes)]
    assert [epoch_pass.draft for epoch_pass in passes] == pytest.approx(
        [distribution @ lengths for distribution in drafts[:-1]]
    )
    if RULES[name].exact:
        assert max(errors(passes)) <= EXACT


@pytest.mark.parametrize("name", ["published, l = 1", "residual", "block", "one-hot"])
def test_common_uniforms_change_nothing_if_passes_do_not_share_them_and_they_do_not_sample(name):
    """The mean over cells is the rule's distribution, where uniforms are integrated out."""
    numbers = common_uniforms(chain(name), sampling=False)
    assert numbers.weights.sum() == pytest.approx(1)
    assert len(numbers.weights) > 20
    fresh, apart = chain(name).passes(IndependentUniforms()), chain(name).passes(numbers)
    assert errors(apart) == pytest.approx(errors(fresh), abs=1e-13)
    assert [epoch_pass.kept for epoch_pass in apart] == pytest.approx([epoch_pass.kept for epoch_pass in fresh])


@pytest.mark.parametrize(
    ("name", "sampling", "shared"),
    [(name, *each) for name in ("published, l = 1", "block") for each in ((False, True), (True, False), (True, True))],
)
def test_distributions_of_common_uniforms_equal_simulated_ones(name, sampling, shared):
    """A simulation with a fixed seed uses the rule's `kept` and inverse-CDF sampling."""
    policies = POLICIES[:3]
    enumerated = chain(name, policies, shared=shared)
    distribution = enumerated.passes(common_uniforms(chain(name, policies), sampling))[-1].distribution
    counts = np.zeros(len(SPACE.responses))
    random = np.random.default_rng(5)
    for _ in range(2000):
        uniforms = 1 - random.random((3, 2)) if not shared else np.repeat(1 - random.random((1, 2)), 3, axis=0)
        counts[SPACE.index[simulated(enumerated, policies, uniforms, random if not sampling else None)]] += 1
    spread = np.sqrt(distribution * (1 - distribution) / 2000)
    assert np.abs(counts / 2000 - distribution).max() < 5 * spread.max()
    if max(distribution) < 1:
        assert (np.abs(counts / 2000 - distribution) <= 5 * spread + 1e-9).all()


def simulated(enumerated, policies, uniforms, random):
    """A response of the last pass."""
    response, origin = (), (0, 0)
    for number, policy in enumerate(policies):
        kept, first = 0, None
        if number:
            stored_q = [policies[origin[at]].distribution(response[:at]) for at in range(len(response))]
            now = policy.distributions(response)
            tokens, positions = np.array(response), np.arange(len(response))
            support = np.tile(np.arange(3), (len(tokens), 1))
            q = np.array(stored_q)
            distributions = Distributions(
                tokens, np.log(now)[positions, tokens], np.log(q)[positions, tokens], support, np.log(now), np.log(q)
            )
            kept = enumerated.rule.kept(enumerated.rule.accepts(distributions, uniforms[number][: len(tokens)]))
            first = enumerated.rule.residual(distributions, kept)
        response, origin = (
            response[:kept],
            (*(origin[:kept] if not enumerated.renewed else [number] * kept), number, number),
        )
        while response not in SPACE.index:
            distribution = policy.distribution(response).copy()
            if first is not None:
                distribution[first.tokens] *= first.left
                distribution, first = distribution / distribution.sum(), None
            u = uniforms[number][len(response)] if random is None else random.random()
            response = (*response, int(np.searchsorted(np.cumsum(distribution)[:-1], u)))
    return response


def test_uniforms_that_accept_in_all_passes_leave_only_the_first_pass_exact():
    for name in ("residual", "block", "one-hot"):
        numbers = common_uniforms(chain(name), sampling=False)
        first, *later = errors(chain(name, shared=True).passes(numbers))
        assert first <= EXACT
        assert min(later) > 1e-3
        sampling = common_uniforms(chain(name), sampling=True)
        assert errors(chain(name).passes(sampling))[0] > 1e-3, (
            "a uniform that rejects samples from the upper end of the distribution"
        )


@pytest.mark.parametrize("rule", [FromTheLeft(), LongestPrefix()])
def test_a_common_uniform_accepts_and_samples_by_its_value(rule):
    numbers = CommonUniforms({0: [0.25, 0.5], 1: [0.5]}, sampling=True)
    assert numbers.weights == pytest.approx([1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 4, 1 / 4])
    u = [0.125, 0.125, 0.375, 0.375, 0.75, 0.75], [0.25, 0.75] * 3
    acceptance = np.array([0.25, 0.5])
    expected = [rule.kept(np.array(each) <= acceptance) for each in zip(*u, strict=True)]
    assert numbers.kept(rule, acceptance).argmax(axis=1).tolist() == expected
    assert numbers.tokens(0, np.array([0.25, 0.25, 0.5])).argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2]
    assert numbers.tokens(1, np.array([0.5, 0.5])).argmax(axis=1).tolist() == [0, 1] * 3
    assert CommonUniforms({0: [0.5]}, sampling=False).tokens(0, np.array([0.3, 0.7])).tolist() == [[0.3, 0.7]]


def test_kept_log_probabilities_are_those_of_the_pass_that_sampled_the_token():
    """An independent sum over each token's outcome: kept with min(1, p / q) of that pass, or sampled again."""
    state = {(r, (0, 0)): POLICIES[0].probability(r) for r in SPACE.responses}
    found = chain("published, l = 1").passes(IndependentUniforms())
    for number, policy in enumerate(POLICIES[1:], 1):
        after = dict.fromkeys(itertools.product(SPACE.responses, itertools.product(range(number + 1), repeat=2)), 0.0)
        for (draft, origin), weight in state.items():
            distributions = [
                (policy.distribution(draft[:at]), POLICIES[origin[at]].distribution(draft[:at]))
                for at in range(len(draft))
            ]
            acceptance = [min(1, p[token] / q[token]) for token, (p, q) in zip(draft, distributions, strict=True)]
            for kept in range(len(draft) + 1):
                probability = weight * math.prod(acceptance[:kept]) * (1 - acceptance[kept] if kept < len(draft) else 1)
                for response in SPACE.responses:
                    if response[:kept] == draft[:kept] and (kept < len(draft) or response == draft):
                        new = (*origin[:kept], number, number)[:2]
                        after[response, new] += probability * policy.probability(response, kept)
        state = after
        distribution = [
            sum(weight for (r, _), weight in state.items() if r == response) for response in SPACE.responses
        ]
        assert found[number - 1].distribution == pytest.approx(distribution, abs=1e-14)


def test_kept_log_probabilities_differ_from_renewed_ones_from_the_second_pass_on():
    kept, renewed = (
        errors(chain("published, l = 1", renewed=each).passes(IndependentUniforms())) for each in (False, True)
    )
    assert kept[0] == pytest.approx(renewed[0], abs=1e-14)
    assert abs(kept[1] - renewed[1]) > 1e-3


def test_without_verification_responses_stay_those_of_the_first_policy():
    passes = chain("no verification").passes(IndependentUniforms())
    assert passes[-1].distribution == pytest.approx(POLICIES[0].response_distribution())
    assert passes[-1].kept == pytest.approx(passes[-1].draft)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_random_cut_as_a_rule_keeps_what_training_keeps(length):
    grid = (np.arange(60) + 0.5) / 60
    trained_with = np.bincount([RandomCut.cut(u, length) for u in grid], minlength=length + 1) / 60
    rule = RandomCut()
    distributions = Distributions.one_hot(np.zeros(length, int), np.zeros(length))
    assert rule.distribution_of_kept(rule.acceptance(distributions)) == pytest.approx(trained_with)
    assert rule.residual(distributions, 0) is None


BANDIT = Bandit(start=(-1.0, 0.0), group=3, rate=2.0)


@pytest.mark.parametrize("name", arm_samplers())
def test_a_bandit_that_learns_nothing_leaves_every_rule_exact(name):
    for epoch_pass in train_bandit(arm_samplers()[name], replace(BANDIT, rate=0.0), 2):
        assert max(epoch_pass.given, epoch_pass.overall) <= EXACT
        assert epoch_pass.gradient == pytest.approx(epoch_pass.fresh_gradient)
        assert epoch_pass.variance == pytest.approx(epoch_pass.fresh_variance)


@pytest.mark.parametrize("rate", [0.3, 2.0, 7.0])
@pytest.mark.parametrize("rewards", [(1.0, 0.0), (1.0, 0.5, 0.0)])
def test_one_hot_is_exact_on_drafts_that_trained_the_policy_and_the_others_are_not(rate, rewards):
    bandit = replace(BANDIT, rewards=rewards, start=(-1.0, 0.0, 0.3)[: len(rewards)], rate=rate)
    for rule, top, exact in ((ResidualRule(), 0, True), (ResidualRule(), 3, False), (BlockRule(), 3, False)):
        first, *later = train_bandit(RuleSampler(rule, top), bandit, 2)
        assert first.given <= EXACT
        assert all((epoch_pass.given <= EXACT) == exact for epoch_pass in later)
        assert all((epoch_pass.gradient == pytest.approx(epoch_pass.fresh_gradient)) == exact for epoch_pass in later)
        assert all((epoch_pass.reward == pytest.approx(epoch_pass.fresh_reward)) == exact for epoch_pass in later)


def test_an_update_is_the_gradient_of_the_policy():
    """A fresh group's g has the mean (1 - 1/n) grad sum of pi r, whose differences are taken here."""
    bandit = replace(BANDIT, rewards=(1.0, 0.5, 0.0), start=(0.2, -0.4, 0.1))
    rewards, start, step = np.array(bandit.rewards), np.array(bandit.start), np.array([1e-6, 0, 0])
    above, below = (float(Softmax(tuple(logits)).distribution(()) @ rewards) for logits in (start + step, start - step))
    slope = (above - below) / 2e-6
    (first,) = train_bandit(RuleSampler(SpecRLRule(0.0), 3), bandit, 0)
    assert first.fresh_gradient == pytest.approx((1 - 1 / bandit.group) * slope)
    gradients = {arms: bandit.gradient(arms) for arms in itertools.product(range(3), repeat=3)}
    weights = {arms: Softmax(bandit.start).distribution(())[list(arms)].prod() for arms in gradients}
    center = sum(weights[arms] * gradient for arms, gradient in gradients.items())
    spread = sum(weights[arms] * ((gradient - center) ** 2).sum() for arms, gradient in gradients.items())
    assert first.variance == first.fresh_variance == pytest.approx(spread)
    assert bandit.gradient([0, 0, 2]) == pytest.approx([2 / 9, 0, -2 / 9])
    assert bandit.updated((0.0, 0.0, 0.0), [0, 0, 2]) == pytest.approx((4 / 9, 0, -4 / 9))


@pytest.mark.parametrize("name", ["published, l = 1", "published, l = e^0.5", "residual"])
def test_a_bandit_s_passes_sum_over_all_groups(name):
    """Two passes with drafts of groups of two, by an independent sum; a sample stores its draft distribution."""
    bandit = Bandit(start=(-1.0, 0.0), group=2, rate=1.5)
    start = Softmax(bandit.start).distribution(())
    states = {(bandit.start, arms, (tuple(start),) * 2): start[list(arms)].prod() for arms in PAIRS}
    for found in train_bandit(arm_samplers()[name], bandit, 2)[1:]:
        after = defaultdict(float)
        for (logits, arms, distributions), weight in states.items():
            moved = tuple(np.array(logits) + bandit.rate * bandit.gradient(arms))
            now = Softmax(moved).distribution(())
            for outcome in itertools.product(
                *(outcomes_of(name, *draft, now) for draft in zip(arms, distributions, strict=True))
            ):
                acceptance, sampled, stored = zip(*outcome, strict=True)
                after[tuple(np.round(moved, 9)), sampled, stored] += weight * math.prod(acceptance)
        states = {state: weight for state, weight in after.items() if weight > 0}
        by_policy = defaultdict(lambda: np.zeros(2))
        for (logits, arms, _), weight in states.items():
            by_policy[logits] += weight * np.eye(2)[list(arms)].mean(axis=0)
        given = sum(
            distribution.sum() * total_variation(distribution / distribution.sum(), Softmax(logits).distribution(()))
            for logits, distribution in by_policy.items()
        )
        assert (found.reward, found.given) == pytest.approx(
            (sum(distribution[0] for distribution in by_policy.values()), given), abs=1e-8
        )


PAIRS = list(itertools.product((0, 1), repeat=2))


def outcomes_of(name, arm, distribution, now):
    """Probability, arm and stored distribution of each outcome for a draft of two arms, by the rules' formulas."""
    lenience = math.exp(0.5) if "0.5" in name else 1.0
    kept = min(1.0, lenience * now[arm] / distribution[arm])
    yield kept, arm, distribution if name.startswith("published") else tuple(now)
    for other, probability in enumerate(now if name.startswith("published") else np.eye(2)[1 - arm]):
        yield (1 - kept) * probability, other, tuple(now)


def test_noise_keeps_a_sample_of_two_arms_as_the_residual_rule_does_while_the_better_arm_gains():
    """A uniform below pi(0) stays below it as pi(0) grows; the arm that loses is left by 1 - p / q."""
    for noise, rule in zip(
        *(train_bandit(arm_samplers()[name], BANDIT, 3) for name in ("Gumbel", "residual")), strict=True
    ):
        assert astuple(noise) == pytest.approx(astuple(rule))


def test_a_coupled_sample_s_noise_stays():
    """u below 0.2 samples arm 0 under both policies, u above 0.6 arm 1."""
    sampler, at = CoupledSampler(), {p: (math.log(p), math.log(1 - p)) for p in (0.2, 0.6)}
    first = {outcome.sample.arm: outcome for outcome in sampler.first(at[0.6])}
    assert first[0].probability == pytest.approx(0.6)
    outcomes = list(sampler.again(first[0].sample, at[0.2]))
    assert [(outcome.sample.arm, outcome.kept) for outcome in outcomes] == [(0, True), (1, False)]
    assert [outcome.probability for outcome in outcomes] == pytest.approx([1 / 3, 2 / 3])
    assert [outcome.probability for outcome in sampler.again(first[1].sample, at[0.2])] == [1.0]


def test_the_laboratory_has_the_rules_that_its_page_names():
    published = ["published, l = 1", "published, l = e^0.5"]
    exact = ["residual", "block", "one-hot"]
    assert {*published, "no verification", "random cut", *exact, "residual, top 2"} <= set(RULES)
    assert {published[0], "published, l = 1, renewed", *exact} <= set(NUMBERS_RULES)
    assert {"no reuse", *published, "no verification", *exact, "Gumbel"} <= set(arm_samplers())


def test_all_rows_are_there_and_are_shares(monkeypatch):
    monkeypatch.setattr(bias_laboratory, "SPACE", Space(VOCABULARY, 2))
    for name, value in {
        "DRIFTS": (0.1, 0.8),
        "EPOCH_PASSES": 2,
        "DIRECTIONS": 1,
        "RATES": (0.0, 1.0),
        "GROUPS": (2, 4),
    }.items():
        monkeypatch.setattr(bias_laboratory, name, value)
    found = bias_laboratory.distributions()
    assert {row["rule"] for row in found["drifts"]} == set(RULES)
    assert len(found["drifts"]) == 2 * len(RULES)
    assert len(found["numbers"]) == 4 * len(NUMBERS_RULES) * 2
    assert len(found["bandit"]) == len(arm_samplers()) * (2 * 3 + 3)
    for row in (*found["drifts"], *found["numbers"], *found["bandit"]):
        numbers = [
            v
            for k, v in row.items()
            if isinstance(v, float) and k not in ("rate", "drift", "gradient", "fresh_gradient")
        ]
        assert all(-1e-12 <= value <= 1 + 1e-12 for value in numbers), row
    for row in found["drifts"]:
        assert (max(row["first"], row["last"]) <= EXACT) == row["exact"]
    assert found["visits"] == 2


@pytest.mark.parametrize(
    ("part", "published"),
    [
        ("rules", ["published, l = 1", "published, l = e^0.2", "published, l = e^0.5"]),
        ("drift", ["published, l = 1", "published, l = e^0.2", "published, l = e^0.5", "no verification"]),
        ("numbers", ["published, l = 1"]),
        ("bandit", ["published, l = 1", "published, l = e^0.5", "no verification"]),
    ],
)
def test_each_part_has_the_published_rules_that_its_page_compares(part, published):
    own = Speculative.audited()
    assert [name for name in rules_of(part) if name in own] == published
