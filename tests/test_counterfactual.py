"""What rules keep of saved drafts, in expectation: against enumeration, against drawing, and in whatever pieces."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redraft.config.reuse import Reuse
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.rules import RULES, mean_kept, stored_top
from redraft.lab.audit.samplers import count_responses, sample_last_pass
from redraft.lab.audit.tiny_models import PROMPT, ModelPolicy, drifting
from redraft.lab.predict import draft_positions
from redraft.lab.predict.draft_positions import _same, read_positions
from redraft.lab.predict.jackknife import by_prompt, estimate, ratio
from redraft.lab.predict.prediction import candidates, chosen, expected_kept
from redraft.lab.predict.saved_rollouts import Draft
from redraft.methods.acceptance.random_cut import RandomCut
from redraft.methods.block import BlockReuse
from redraft.methods.gumbel import CoupledReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.random import RandomReuse
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.rollout.streams import gumbel

SPACE = Space(vocabulary=4, longest=3)
NAMES = {rule.name for rule in candidates(top=2)}
"""Of the rules, those of top distributions with two tokens."""


def test_every_rule_names_its_kind_of_reuse():
    kinds = get_args(Reuse)[0].__args__
    assert {rule.kind for rule in candidates(top=2)} <= {kind.model_fields["kind"].default for kind in kinds}


@pytest.fixture(scope="module")
def models():
    return drifting(SPACE, 2, 0.12)


@pytest.fixture(scope="module")
def policies(models):
    return [ModelPolicy(SPACE, model) for model in models]


@pytest.fixture(scope="module")
def drafts(policies):
    """Every response, with the log-probabilities of the earlier policy."""
    return [draft_of(response, policies[0].distributions(response)) for response in SPACE.responses]


@pytest.fixture(scope="module")
def read(models, drafts):
    return read_positions(drafts, {0: PROMPT}, models[1], models[0], top=2)


@pytest.fixture(scope="module")
def expected(read, policies):
    """Kept tokens by rule, as the mean over all drafts with their probabilities."""
    weights = policies[0].response_distribution()
    return {rule.name: float(weights @ expected_kept(rule, read).tokens) for rule in candidates(top=2)}


def draft_of(response, distributions):
    tokens = np.array(response, dtype=np.int32)
    return Draft(0, tokens, np.log(distributions[np.arange(len(tokens)), tokens]).astype(np.float32))


@pytest.mark.parametrize("name", sorted(NAMES & RULES.keys()))
def test_a_rule_keeps_what_enumeration_says(name, expected, policies):
    top = stored_top(RULES[name], SPACE)
    assert expected[name] == pytest.approx(
        mean_kept(RULES[name].rule, top, policies[0].response_distribution(), *policies), abs=1e-6
    )


def test_all_rules_of_the_audit_are_among_them():
    assert NAMES - RULES.keys() == {"random cut", "Gumbel"}
    others = {name for name in RULES if "of both" in name or name.startswith("weighted")}
    assert RULES.keys() - NAMES == {"residual, top 2, l = 1/2"} | others


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_distributions_are_those_at_the_temperature_of_the_drafts(temperature, models):
    earlier, now = (ModelPolicy(SPACE, model, temperature) for model in models)
    drafts = [draft_of(response, earlier.distributions(response)) for response in SPACE.responses]
    for draft, at in zip(drafts, read_positions(drafts, {0: PROMPT}, *models[::-1], 2, temperature), strict=True):
        p, q = (policy.distributions(tuple(draft.tokens.tolist())) for policy in (now, earlier))
        assert np.exp(at.log_p_T) == pytest.approx(p[np.arange(len(p)), draft.tokens], abs=1e-6)
        assert at.both.drafter == pytest.approx(draft.log_probs, abs=1e-5)
        assert at.both.overlap == pytest.approx(np.minimum(p, q).sum(1), abs=1e-6)


METHODS = {
    "published, l = e^0.2": Speculative(lenience="e^0.2"),
    "random cut": RandomReuse(),
    "residual, top 2": ResidualReuse(top=2),
    "block": BlockReuse(top=4),
    "Gumbel": CoupledReuse(),
    "one-hot": OneHotReuse(),
}
DRAWS = 600


@pytest.mark.parametrize("name", METHODS)
def test_a_rule_keeps_what_its_strategy_keeps_when_it_samples(name, expected, models):
    method = METHODS[name]
    engines = [TorchEngine(model, stops={0}, max_length=6, max_rows=1024) for model in models]
    _, found = count_responses(sample_last_pass(method.strategy(), method.retention, engines, SPACE, DRAWS), SPACE)
    assert found == pytest.approx(expected[name], abs=4 * 1.2 / math.sqrt(DRAWS)), "kept tokens deviate by 1.2 at most"


def test_probabilities_of_whole_drafts_are_those_of_the_distributions(read, policies):
    rules = {rule.name: rule for rule in candidates(top=2)}
    p, q = ([policy.probability(r) for r in SPACE.responses] for policy in (policies[1], policies[0]))
    assert expected_kept(rules["one-hot"], read).whole == pytest.approx(p, rel=1e-4)
    assert (expected_kept(rules["random cut"], read).whole == 0).all()
    whole = expected_kept(rules["block"], read).whole
    assert (whole >= expected_kept(rules["residual"], read).whole - 1e-9).all()
    assert float(np.array(q) @ expected_kept(rules["published, l = e^0.5"], read).whole) > float(np.array(q) @ whole)


def test_overlap_is_one_less_total_variation_and_the_drafters_log_probabilities_are_its_own(read, drafts, policies):
    for response, draft, at in zip(SPACE.responses, drafts, read, strict=True):
        p, q = policies[1].distributions(response), policies[0].distributions(response)
        assert at.both.overlap == pytest.approx(1 - np.abs(p - q).sum(1) / 2, abs=1e-6)
        assert at.both.drafter == pytest.approx(draft.log_probs, abs=1e-5)
        assert at.log_p_T == pytest.approx(np.log(p[np.arange(len(response)), draft.tokens]), abs=1e-5)
        in_top = [token in np.argsort(-distribution)[:2] for token, distribution in zip(response, q, strict=True)]
        assert at.both.in_top.tolist() == in_top


def same(p, q, token):
    log_p, log_q = (torch.tensor(distribution)[None].log() for distribution in (p, q))
    return float(_same(log_p, log_q, torch.tensor([[token]]), torch.tensor(q)[None])[0])


def test_a_token_is_sampled_again_by_its_noise_as_often_as_the_formula_says():
    """Given the token: the formula's term of each token alone, not only their sum."""
    random = np.random.default_rng(1)
    p, q = random.dirichlet(np.ones(4)), random.dirichlet(np.ones(4))
    noise = gumbel(3, np.arange(60_000)[:, None], np.arange(4)[None])
    drawn, again = (np.log(q) + noise).argmax(1), (np.log(p) + noise).argmax(1)
    for token in range(4):
        of_token = again[drawn == token] == token
        chance = same(p, q, token)
        assert of_token.mean() == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / len(of_token)))


@given(st.integers(0, 1000), st.floats(0.1, 5))
def test_near_policies_agree_within_the_bounds_of_the_coupling(seed, concentration):
    random = np.random.default_rng(seed)
    p, q = (random.dirichlet(np.full(5, concentration)) + 1e-9 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    agree = sum(q[token] * same(p, q, token) for token in range(5))
    away = np.abs(p - q).sum() / 2
    assert (1 - away) / (1 + away) - 1e-9 <= agree <= 1 - away + 1e-9
    assert same(p, p, 0) == pytest.approx(1)


def test_a_token_that_has_become_impossible_is_not_sampled_again():
    assert same(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 0) == 0
    assert same(np.array([0.5, 0.5]), np.array([1e-300, 1.0]), 1) == pytest.approx(0.5)


LENGTHS = ((2, 5), (7, 3), (1, 1), (4, 6))
"""Tokens of prompts and of drafts."""


@pytest.fixture(scope="module")
def uneven():
    """Drafts of several lengths behind prompts of several lengths, and the two models of a vocabulary of 12."""
    models = drifting(Space(12, 1), 2, 0.1, seed=3)
    random = np.random.default_rng(0)
    prompts = {i: random.integers(0, 12, length).tolist() for i, (length, _) in enumerate(LENGTHS)}
    tokens = [random.integers(0, 12, length).astype(np.int32) for _, length in LENGTHS]
    logs = [np.log(random.uniform(0.05, 0.9, len(row))).astype(np.float32) for row in tokens]
    return models, prompts, [Draft(i, row, log) for i, (row, log) in enumerate(zip(tokens, logs, strict=True))]


@pytest.mark.parametrize(
    "limits",
    [
        {"MAX_TOKENS_PER_PASS": 1},
        {"MAX_TOKENS_PER_PASS": 20},
        {"MAX_VALUES_PER_PIECE": 12},
        {"MAX_VALUES_PER_PIECE": 24},
    ],
)
def test_nothing_depends_on_the_pieces_that_distributions_are_read_in(limits, uneven, monkeypatch):
    models, prompts, drafts = uneven
    whole = read_positions(drafts, prompts, *models, top=3)
    for name, value in limits.items():
        monkeypatch.setattr(draft_positions, name, value)
    for one, other in zip(whole, read_positions(drafts, prompts, *models, top=3), strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        for rule in candidates(top=3):
            assert rule.distribution_of_kept(one) == pytest.approx(rule.distribution_of_kept(other), abs=1e-5), (
                rule.name
            )
        assert one.both.overlap == pytest.approx(other.both.overlap, abs=1e-5)


def test_no_pass_makes_more_logits_than_it_may(uneven, monkeypatch):
    models, prompts, drafts = uneven
    monkeypatch.setattr(draft_positions, "MAX_VALUES_PER_PIECE", 12 * 4)
    made = []
    counting = models[0].lm_head.register_forward_hook(lambda _, __, logits: made.append(logits.numel()))
    read_positions(drafts, prompts, models[0])
    counting.remove()
    assert max(made) <= 12 * 4
    in_drafts = sum(length for _, length in LENGTHS)
    assert sum(made) == 12 * (in_drafts + 2 * 2), "of drafts alone; twice two tokens show how the model makes logits"


def test_a_model_whose_logits_are_made_otherwise_raises(uneven):
    models, prompts, drafts = uneven
    models[0].config.final_logit_softcapping = 0.01
    with pytest.raises(UserError, match="how this model makes logits"):
        read_positions(drafts, prompts, models[0])
    del models[0].config.final_logit_softcapping


def test_without_the_drafters_policy_what_needs_no_distribution_is_the_same(uneven):
    models, prompts, drafts = uneven
    known, unknown = read_positions(drafts, prompts, *models, top=3), read_positions(drafts, prompts, models[0], top=3)
    assert all(at.both is None for at in unknown)
    for rule in candidates(top=3):
        if rule.of_both:
            with pytest.raises(ValueError, match="drafter's distribution is not known"):
                expected_kept(rule, unknown)
        else:
            assert expected_kept(rule, unknown).tokens == pytest.approx(expected_kept(rule, known).tokens), rule.name


def test_models_of_different_vocabularies_and_diverged_ones_raise(uneven, models):
    ours, prompts, drafts = uneven
    with pytest.raises(UserError, match="different vocabularies"):
        read_positions(drafts, prompts, ours[0], models[0])
    (broken,) = drifting(Space(12, 1), 1, 0.1)
    with torch.no_grad():
        broken.lm_head.weight[0, 0] = math.nan
    with pytest.raises(UserError, match="NaN"):
        read_positions(drafts, prompts, broken)


def test_a_random_cut_has_the_distribution_of_its_draws():
    grid = (np.arange(6000) + 0.5) / 6000
    found = np.bincount([RandomCut.cut(u, 6) for u in grid], minlength=7) / 6000
    assert found == pytest.approx(RandomCut.of_length(6))


def test_rules_are_chosen_by_their_kind():
    assert [rule.name for rule in chosen(candidates(), ["block"])] == ["block", "block, top 32"]
    rules = candidates()
    assert chosen(rules, []) == rules
    with pytest.raises(UserError, match="no such rule") as error:
        chosen(rules, ["blocks"])
    assert "one_hot" in error.value.allowed


def test_intervals_are_over_prompts_and_not_over_their_rollouts():
    """Rollouts of a prompt that are all alike say no more than one; the interval of a mean is Student's."""
    random = np.random.default_rng(0)
    values = random.normal(size=12)
    once = by_prompt(range(12), {"kept": values, "drafts": np.ones(12)})
    thrice = by_prompt(np.repeat(range(12), 3), {"kept": np.repeat(values, 3), "drafts": np.ones(36)})
    found, other = (estimate(sums, ratio("kept", "drafts")) for sums in (once, thrice))
    assert found.value == pytest.approx(values.mean())
    assert (other.low, other.high) == pytest.approx((found.low, found.high))
    half = 2.2009852 * values.std(ddof=1) / math.sqrt(12)
    assert found.high - found.value == pytest.approx(half) == found.value - found.low
    alone = estimate(by_prompt([3, 3], {"kept": values[:2], "drafts": np.ones(2)}), ratio("kept", "drafts"))
    assert alone.value == pytest.approx(values[:2].mean())
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_intervals_of_ratios_hold_the_truth_as_often_as_they_say():
    """Groups share a level, so that intervals over rollouts would hold it in half of the cases only."""
    random, held = np.random.default_rng(1), 0
    for _ in range(300):
        lengths = random.integers(5, 15, (25, 4)).astype(float)
        shares = np.clip(random.uniform(0.3, 0.7, (25, 1)) + random.normal(0, 0.02, (25, 4)), 0, 1)
        columns = {"kept": (lengths * shares).ravel(), "draft_tokens": lengths.ravel()}
        found = estimate(by_prompt(np.repeat(range(25), 4), columns), ratio("kept", "draft_tokens"))
        held += found.low <= 0.5 <= found.high
    assert 0.91 < held / 300 < 0.985
