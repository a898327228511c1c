"""Importance weights of SPEC-RL's rule: enumerated over all drafts, kept lengths and responses; and sampled."""

import math
from collections import defaultdict

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

from redraft.config import Epochs, Experiments, Reuse
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.lab.audit import samplers
from redraft.lab.audit.enumeration import (
    Policy,
    Space,
    reuse_distribution,
    stored_distributions,
    total_variation,
    two_state,
    weighted_distribution,
    weighted_errors_by_pass,
    weighted_responses,
)
from redraft.lab.audit.samplers import sample_last_pass
from redraft.lab.audit.tiny_models import ModelPolicy, drifting
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.speed import Speed
from redraft.methods.weighted import WeightedReuse

SPACE = Space(vocabulary=3, longest=3)
LENIENCES = (0.4, 1.0, math.exp(0.5), 20.0)


def policies(drift=0.8, count=3):
    return [Policy(SPACE, 0, number, drift) for number in range(count)]


def first_drafts(policy):
    return {(r, (0.0,) * len(r)): policy.probability(r) for r in SPACE.responses}


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("lenience", LENIENCES)
def test_weighted_distribution_is_the_policys_in_every_pass(lenience, top):
    assert max(weighted_errors_by_pass(WeightedRule(lenience), policies(), top)) < 1e-12


@pytest.mark.parametrize("lenience", LENIENCES)
def test_responses_have_the_published_rule_s_distribution_before_weighting(lenience):
    """Weights do not change which responses are sampled."""
    before, now = policies(count=2)
    plain = defaultdict(float)
    for (response, _), probability in weighted_responses(
        WeightedRule(lenience), first_drafts(before), before, now, 3
    ).items():
        plain[response] += probability
    distribution = reuse_distribution(SpecRLRule(lenience), before.response_distribution(), before, now, 3)
    assert total_variation(np.array([plain[r] for r in SPACE.responses]), distribution) < 1e-12
    assert total_variation(distribution, now.response_distribution()) > 1e-5


def test_weight_of_a_rejected_token_is_transferred_to_the_token_after_it():
    distributions = stored_distributions((1, 2, 0), *policies(count=2), 3)
    weights = WeightedRule(1.0).weights(distributions, 1, np.array([0.1, 0.7, 0.0]))
    assert weights.after(2) == 0.7
    assert len(weights.kept) == 1


def test_a_token_that_cannot_be_kept_has_more_weight_after_a_rejection():
    distributions = stored_distributions((1, 2, 0), *policies(count=2), 1)
    weights = WeightedRule(1.0).weights(distributions, 0, np.zeros(3))
    inside = int(distributions.support[0, 0])
    outside = next(token for token in range(3) if token != inside)
    mass = float(np.exp(min(distributions.log_q_TK[0, 0], distributions.log_p_TK[0, 0])))
    assert weights.after(inside) == 0
    assert weights.after(outside) == pytest.approx(-math.log(1 - mass))


@pytest.mark.parametrize("lenience", [0, math.inf, -1])
def test_leniences_without_weights_raise(lenience):
    with pytest.raises(ValueError, match="finite lenience above 0"):
        WeightedRule(lenience)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_density_by_the_recursion_is_the_distribution_of_the_published_rule(lenience):
    before, now = policies(count=2)
    distribution = reuse_distribution(
        SpecRLRule(lenience), before.response_distribution(), before, now, SPACE.vocabulary
    )
    density = [math.exp(two_state(before, now, lenience, response).sum()) for response in SPACE.responses]
    assert np.abs(distribution - density).max() < 1e-12
    assert (distribution * now.response_distribution() / density).sum() == pytest.approx(1, abs=1e-12)


def test_weights_of_kept_tokens_vary_more_than_those_of_the_whole_density():
    """Both are unbiased; the density sums over kept lengths, a Rao-Blackwell estimate."""
    before, now = policies(count=2)
    lenience = math.exp(0.5)
    drafts = weighted_responses(WeightedRule(lenience), first_drafts(before), before, now, 3)
    own = sum(probability * math.exp(2 * sum(weights)) for (_, weights), probability in drafts.items())
    distribution = reuse_distribution(SpecRLRule(lenience), before.response_distribution(), before, now, 3)
    assert 1 < float((now.response_distribution() ** 2 / distribution).sum()) < own
    assert weighted_distribution(drafts, SPACE).sum() == pytest.approx(1, abs=1e-12)


SAMPLES = 1200


def p_value(distribution, group, log_weights):
    """p-value of the chi-square statistic of mean weights by response, whose expectation is the distribution."""
    space = samplers.SPACE
    found = np.zeros((len(group), len(space.responses)))
    for row, (rollout, weights) in enumerate(zip(group, log_weights, strict=True)):
        found[row, space.index[tuple(map(int, rollout.tokens))]] = math.exp(float(weights.sum()))
    often = distribution * len(group) > 20
    gaps, spread = (found - distribution)[:, often], np.cov(found[:, often], rowvar=False)
    statistic = len(group) * gaps.mean(0) @ np.linalg.solve(spread, gaps.mean(0))
    return float(stats.chi2.sf(statistic, often.sum()))


@pytest.mark.parametrize("top", [samplers.SPACE.vocabulary, 2])
def test_an_engine_samples_weighted_responses_with_the_policys_distribution(top):
    models, method = drifting(samplers.SPACE, 3, 0.12), WeightedReuse(top=top)
    engines = [TorchEngine(model, stops={0}, max_length=16, max_rows=1024) for model in models]
    group, distribution = (
        sample_last_pass(method.strategy(), method.retention, engines, samplers.SPACE, SAMPLES),
        ModelPolicy(samplers.SPACE, models[-1]).response_distribution(),
    )
    weights = [rollout.log_weights for rollout in group]
    assert len({round(float(row.sum()), 6) for row in weights}) > 10
    assert p_value(distribution, group, weights) > 1e-4
    assert p_value(distribution, group, [np.zeros_like(row) for row in weights]) < 1e-6, (
        "without weights the distribution is not the policy's"
    )


def test_a_schedule_that_updates_from_earlier_policies_responses_is_refused():
    """Whether they keep the log-probabilities of the policies that sampled them or get new ones."""
    run = Experiments().run("exact_reuse/weighted", 0, "smoke")
    for stale in ("stored", "recomputed"):
        with pytest.raises(UserError, match="correct responses of the current policy only") as error:
            run.reuse.check(Speed(stale=stale), run.trainer)
        assert (error.value.key, error.value.value) == ("reuse.kind", "weighted")
    run.reuse.check(run.schedule, run.trainer)


@pytest.mark.parametrize("kind", ["speculative", "one_hot", "residual", "gumbel", "weighted"])
def test_turns_without_a_draft_need_a_schedule_that_visits_every_prompt_in_every_pass(kind):
    """Under SPEED a prompt's turns would be skipped as its rewards decide, so its tokens would grow older than said."""
    reuse = TypeAdapter(Reuse).validate_python({"kind": kind, "fresh_every": 4})
    trainer = Experiments().run("exact_reuse/weighted", 0, "smoke").trainer
    reuse.check(Epochs(), trainer)
    with pytest.raises(UserError) as error:
        reuse.check(Speed(), trainer)
    assert (error.value.key, error.value.value) == ("reuse.fresh_every", 4)
