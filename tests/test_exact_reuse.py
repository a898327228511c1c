"""Exact reuse with engines: kept, sampled and stored tokens, their distribution, and unsupported settings."""

import math
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import yaml
from scipy import stats

from redraft.config import Experiments
from redraft.config.capability import Capability
from redraft.config.model import TinyModel
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.lab.audit import samplers
from redraft.lab.audit.context_faults import ContextFault
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.goodness import LEVEL, POWER, g_test, power, samples_against, samples_for
from redraft.lab.audit.samplers import count_responses, sample_last_pass
from redraft.lab.audit.tiny_models import ModelPolicy, drifting
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.block import BlockReuse
from redraft.methods.gumbel import CoupledReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.residual import ResidualReuse
from redraft.methods.reuse import ReuseMethod
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.methods.weighted import WeightedReuse
from redraft.rollout.engine import Gumbel
from redraft.rollout.types import Finish
from redraft.tasks.tokenizer import make_tokenizer
from tests.groups import (
    EOS,
    GROUP,
    LIMIT,
    PROMPTS,
    VOCABULARY,
    ScriptedEngine,
    Setting,
    group_of,
    new_memory,
    roll_out,
)

EXACT = [
    ResidualReuse(top=VOCABULARY),
    ResidualReuse(top=2),
    BlockReuse(top=3),
    WeightedReuse(top=VOCABULARY),
    OneHotReuse(),
    CoupledReuse(),
]
every_method = pytest.mark.parametrize("method", EXACT, ids=lambda m: f"{m.kind}-{m.retention.top}")


def epoch_passes(method, count=2, **setting):
    """Engine and rollouts of each epoch pass over prompt 0, whose policy changes between them."""
    memory, found = new_memory(**method.retention.model_dump()), []
    for visit in range(count):
        engine = ScriptedEngine(0.4 * visit)
        rollouts = roll_out(method, 0, engine, Setting(10 * visit, visit, memory, **setting))
        memory.put(group_of(rollouts, visit))
        found.append((engine, rollouts))
    return found


@every_method
def test_a_pass_keeps_prefixes_of_its_drafts_and_stores_the_current_policys_distributions(method):
    (_, before), (engine, after) = epoch_passes(method, group=64)
    kept = [new.prefix_length for new in after]
    assert 0 < sum(kept) < sum(old.length for old in before)
    assert len(set(kept)) > 2
    for old, new in zip(before, after, strict=True):
        prefix = slice(new.prefix_length)
        assert new.tokens[prefix].tolist() == old.tokens[prefix].tolist()
        assert new.sampled_at[prefix].tolist() == [0] * new.prefix_length
        assert (new.draft_length, new.verified) == (old.length, old.length)
        assert 1 <= new.length <= LIMIT
        assert new.finish is (Finish.EOS if new.tokens[-1] == EOS else Finish.LENGTH)
        np.testing.assert_allclose(new.log_probs, engine.log_probs(PROMPTS[0], new.tokens), atol=1e-6)
        if method.retention.top:
            assert new.top.tokens.shape == new.top.log_probs.shape == (new.length, method.retention.top)
            distributions = np.array([engine.distribution([*PROMPTS[0], *new.tokens[:i]]) for i in range(new.length)])
            stored = np.take_along_axis(distributions, new.top.tokens, 1)
            np.testing.assert_allclose(np.exp(new.top.log_probs), stored, atol=1e-6)
            assert (stored.min(1) >= np.sort(distributions, 1)[:, -method.retention.top] - 1e-12).all()
        else:
            assert new.top is None


@every_method
def test_an_unchanged_policy_keeps_drafts_whole_where_their_distribution_is_known(method):
    memory = new_memory(**method.retention.model_dump())
    first = roll_out(method, 0, ScriptedEngine(), Setting(0, 0, memory))
    memory.put(group_of(first))
    engine = ScriptedEngine()
    again = roll_out(method, 0, engine, Setting(1, 1, memory))
    whole = method.retention.top == VOCABULARY or method.kind == "gumbel"
    if whole:
        assert [r.tokens.tolist() for r in again] == [r.tokens.tolist() for r in first]
        assert not engine.decoded
    else:
        assert engine.decoded


def test_gumbel_noise_has_a_key_per_sample_and_gives_the_same_response_without_a_draft():
    (_, _), (engine, after) = epoch_passes(CoupledReuse())
    keys = {numbers.key for _, _, numbers in engine.decoded}
    assert all(isinstance(numbers, Gumbel) for _, _, numbers in engine.decoded)
    assert len(keys) == len(engine.decoded)
    fresh = roll_out(CoupledReuse(), 0, ScriptedEngine(0.4), Setting(99, 1))
    assert [r.tokens.tolist() for r in fresh] == [r.tokens.tolist() for r in after]


@pytest.mark.parametrize("kind", [ResidualReuse, Speculative, CoupledReuse])
def test_samples_take_turns_without_a_draft(kind):
    method = kind(fresh_every=3)
    drafted = [[bool(r.draft_length) for r in rollouts] for _, rollouts in epoch_passes(method, count=7)]
    for visit, of_samples in enumerate(drafted[1:], 1):
        assert of_samples == [(visit + sample) % 3 != 0 for sample in range(GROUP)]
    for _, rollouts in epoch_passes(method, count=7)[1:]:
        assert all(r.sampled_at.min() >= r.sampled_at.max() - 20 for r in rollouts), "none more than two passes older"


def test_noise_is_renewed_with_the_sample():
    engines = [engine for engine, _ in epoch_passes(CoupledReuse(fresh_every=3), count=4)]
    first, last = ({n.key for _, _, n in engine.decoded} for engine in (engines[0], engines[3]))
    assert not first & last


def test_a_sample_is_never_renewed_by_default():
    later = epoch_passes(ResidualReuse(), count=7)[1:]
    assert all(r.draft_length for _, rollouts in later for r in rollouts)


def test_a_draft_without_its_distribution_is_named():
    memory = new_memory(visits=1)
    memory.put(group_of(roll_out(Vanilla(), 0, ScriptedEngine(), Setting(0, 0))))
    with pytest.raises(ValueError, match="prompt 0, sample 0, has no stored distribution"):
        roll_out(BlockReuse(), 0, ScriptedEngine(), Setting(1, 1, memory))


NARROW, SAMPLES = Space(vocabulary=3, longest=2), 800


@pytest.fixture(scope="module")
def drifted():
    return drifting(NARROW, 3, 0.08, seed=22)


CHOSEN = [
    sampler
    for sampler in samplers.samplers()
    if (sampler.engine == "torch" and (not sampler.planted or sampler.name == "planted: half a residual"))
    or (sampler.name in ("vanilla", "block", "weighted, l = e^0.5") and sampler.engine not in samplers.AGREEING)
    or (sampler.name == "residual" and sampler.engine in samplers.AGREEING)
]
PLANTED = [sampler for sampler in samplers.samplers() if sampler.planted]


@pytest.mark.parametrize("sampler", CHOSEN, ids=lambda s: f"{s.name}-{s.engine}")
def test_engines_sample_from_the_policys_distribution_and_others_are_rejected(sampler, drifted):
    """The published rule and the planted faults have a TV of 0.19 to 0.24 here, so few samples suffice."""
    found = samplers.audit(sampler, drifted, SAMPLES, NARROW)
    assert found.passes, found
    assert found.test.samples == SAMPLES
    assert (found.kept > 0.05) is (sampler.name != "vanilla")


@pytest.mark.parametrize("name", ["residual", "block", "planted: half a residual"])
def test_engines_in_bfloat16_sample_from_the_rounded_policys_distribution(name, drifted):
    sampler = next(s for s in CHOSEN if (s.name, s.engine) == (name, "torch"))
    found = samplers.audit(sampler, [deepcopy(model).bfloat16() for model in drifted], SAMPLES, NARROW)
    assert found.passes, found
    assert found.kept > 0.05


@pytest.fixture(scope="module")
def last_policies():
    """The policies of the audit's last two passes, and their models."""
    models = samplers.policies()[-2:]
    return [ModelPolicy(samplers.SPACE, model) for model in models], models


@pytest.mark.parametrize("sampler", PLANTED, ids=lambda s: s.name)
def test_a_planted_fault_has_the_distribution_that_is_enumerated_and_the_audit_detects_it(sampler, last_policies):
    """Few samples show that the enumeration is right; its distance from the policy says that the audit's detect it."""
    policies, models = last_policies
    found = samplers.audit(sampler, models, 300)
    test = g_test(found.counts, sampler.planted.distribution(*policies))
    assert test.p_value > 1e-3, test
    assert found.distance == pytest.approx(sampler.planted.distance(*policies))
    assert found.distance > 0.03
    assert found.detected_from <= samplers.SAMPLES
    if found.detected_from <= 300:
        assert found.test.rejected


def test_models_that_hardly_depend_on_context_hide_a_token_that_is_fed_twice():
    """The models of the audit before it had planted faults of context, in which the next token depends little on
    earlier ones."""
    sampler = next(s for s in PLANTED if "fed twice, residual" in s.name)
    weak = [ModelPolicy(samplers.SPACE, model) for model in drifting(samplers.SPACE, 3, 0.12)[-2:]]
    exact = weak[-1].response_distribution()
    assert samples_against(sampler.planted.distribution(*weak), exact) > 4 * samplers.SAMPLES
    strong = [ModelPolicy(samplers.SPACE, model) for model in samplers.policies()[-2:]]
    seen = [strong[-1].after((first, second)) for first, second in product(range(1, 4), repeat=2)]
    assert max(np.abs(one - other).sum() / 2 for one in seen for other in seen) > 0.3


def test_an_engine_without_a_fault_is_the_right_sampler_of_a_planted_one(last_policies):
    """The same wrapper without a change: the enumeration has no distance, and the test does not reject it."""
    _, models = last_policies
    for name, rule in (("residual", ResidualRule()), ("weighted, l = e^0.5", WeightedRule(math.exp(0.5)))):
        fault = ContextFault("nothing", lambda draft, kept, prefix: prefix)
        sampler = samplers.context_fault(name, samplers.Planted(rule, fault))
        found = samplers.audit(sampler, models, 100)
        assert found.distance < 1e-9
        assert not found.test.rejected


AT_TEMPERATURES = {
    "torch": ("vanilla", "residual", "block", "Gumbel", "planted: half a residual"),
    "torch, self-speculating": ("vanilla", "residual"),
    **dict.fromkeys(samplers.AGREEING, ()),
}
TEMPERED = [
    pytest.param(sampler, temperature, samples, id=f"{sampler.name}-{sampler.engine}-{temperature}")
    for temperature, samples in ((0.6, SAMPLES), (1.5, 2 * SAMPLES))
    for sampler in samplers.samplers()
    if sampler.name in AT_TEMPERATURES[sampler.engine] and (temperature < 1 or sampler.name == "residual")
]
"""All of them at the low temperature. The high one needs twice as many samples and tests only the residual rule."""


@pytest.mark.parametrize(("sampler", "temperature", "samples"), TEMPERED)
def test_engines_sample_from_the_distribution_at_a_temperature(sampler, temperature, samples, drifted):
    """The distribution at temperature 1 is 0.09 away from that at 1.5, so twice as many samples are needed."""
    found = samplers.audit(sampler, drifted, samples, NARROW, temperature)
    assert found.passes, found
    assert (found.kept > 0.05) is (sampler.name != "vanilla")


def test_the_distribution_at_temperature_1_is_rejected_as_that_of_another(drifted):
    sampler = next(s for s in samplers.samplers() if s.name == "vanilla")
    sampled = count_responses(
        sample_last_pass(sampler.strategy, sampler.retention, [plain(drifted[-1])], NARROW, 2 * SAMPLES), NARROW
    )[0]
    for temperature, wrong in ((1.0, False), (0.6, True), (1.5, True)):
        assert g_test(sampled, ModelPolicy(NARROW, drifted[-1], temperature).response_distribution()).rejected is wrong


def plain(model):
    return TorchEngine(model, stops={0}, max_length=8, max_rows=1024)


def test_the_g_test_has_the_power_that_is_stated():
    distribution = np.full(20, 0.05)
    samples = samples_for(20, 0.1)
    assert power(samples, 20, 0.1) >= POWER > power(samples // 2, 20, 0.1)
    random, other = np.random.default_rng(0), np.tile([0.06, 0.04], 10)
    assert np.abs(distribution - other).sum() / 2 == pytest.approx(0.1)
    found = [g_test(random.multinomial(samples, other), distribution).rejected for _ in range(100)]
    assert sum(found) >= 96
    p_values = [g_test(random.multinomial(samples, distribution), distribution).p_value for _ in range(300)]
    assert min(p_values) > LEVEL
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09


def test_g_test_and_power_have_one_degree_of_freedom_less_than_classes():
    """With three classes: two degrees of freedom, where the chi-squared survival function is exp(-x / 2)."""
    counts, expected = np.array([60, 25, 15]), np.array([50, 30, 20])
    statistic = 2 * float((counts * np.log(counts / expected)).sum())
    test = g_test(counts, expected / 100)
    assert (test.classes, test.statistic) == (3, pytest.approx(statistic))
    assert test.p_value == pytest.approx(np.exp(-statistic / 2))
    noncentrality = 4 * 300 * 0.2**2
    assert power(300, 3, 0.2) == pytest.approx(stats.ncx2.sf(-2 * np.log(LEVEL), 2, noncentrality))


def test_a_response_of_probability_0_is_rejected_if_sampled_once():
    assert g_test(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0])).rejected
    assert not g_test(np.array([500, 500, 0]), np.array([0.5, 0.5, 0.0])).rejected


def test_the_configuration_knows_the_tiny_models_vocabulary():
    for characters in ("arithmetic", "ascii"):
        assert TinyModel(characters=characters).vocabulary == len(make_tokenizer(characters))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kind": "residual", "lenience": "e^0.5"}, "no residual exists"),
        ({"kind": "residual", "lenience": 0}, "above 0"),
        ({"kind": "block", "top": 45}, "more tokens of each distribution would be kept than the model knows"),
        ({"kind": "block", "top": 0}, "at least 1"),
        ({"kind": "block", "lenience": 2}, "lenience"),
        ({"kind": "one_hot", "top": 3}, "top"),
    ],
)
def test_settings_without_an_exact_distribution_are_rejected_when_they_are_read(setting, message, folder):
    with pytest.raises(UserError) as error:
        a_cell(folder, setting)
    assert message in str(error.value)


def a_cell(folder, reuse, preset="tiny"):
    """The run of GRPO with a method of reuse."""
    grid = {"name": "g", "base": "spec_rl/grpo-vanilla", "axes": {"reuse": {"exact": {"reuse": reuse}}}}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"title": "t", "source": "s", "grids": [grid]}))
    return Experiments(folder, file).run("mine/exact", 0, preset)


@every_method
def test_unsupported_exact_rules_under_vllm_raise_with_the_reason_and_alternatives(method, folder):
    reuse = method.model_dump(mode="json", exclude_defaults=True) | {"kind": method.kind}
    a_cell(folder, reuse).check_supported()
    run = a_cell(folder, reuse, "verl-tiny")
    if method.kind != "gumbel":
        assert run.unsupported == ""
        run.check_supported()
        return
    assert run.unsupported == f"engine.kind verl does not support {Capability.GUMBEL}"
    with pytest.raises(UserError, match="engine.kind verl does not support") as error:
        run.check_supported()
    able = set(error.value.allowed.split(", "))
    assert able >= {"adaptive", "block", "delayed", "one_hot", "random", "residual", "speculative", "staged", "vanilla"}
    defaults = {kind: method.model_construct() for kind, method in ReuseMethod.members.items()}
    assert able == {kind for kind, method in defaults.items() if method.needs <= run.engine.capabilities}
