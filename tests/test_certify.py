"""Certificates: exact samplers pass, planted faults are found and named, and bounds, power and bad input are right.

Samplers are those of `benchmarks.certify`, over small models of numpy.
"""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks.certify import DRIFT, END, FAULTS, VOCABULARY, Model, Sampling, settings_of, tempered
from redraft.certify import Known, Sampled, Verdict, certify
from redraft.certify.certificate import holm
from redraft.certify.positions import Response, positions
from redraft.certify.statistics import Test as Family
from redraft.certify.statistics import count_p_values
from redraft.errors import UserError

PROMPTS = [np.random.default_rng(i).integers(1, VOCABULARY, 4 + i % 9).tolist() for i in range(16)]


def certificate(sampler, model, **settings):
    return certify(sampler, model, PROMPTS, **{"samples": 16, "max_tokens": 24} | settings)


@pytest.fixture(scope="module")
def model():
    return Model(0)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_exact_samplers_pass_and_say_what_they_would_have_found(model):
    for sampler in (Sampling(model, rng()), Sampling(model, rng(), drafter=model.drifted(DRIFT))):
        found = certificate(sampler, model, others={"drafts": model.drifted(DRIFT)})
        assert found.verdict is Verdict.PASSES, str(found)
        assert found.failures == []
        assert "level 0.0001" in str(found)
        sizes = {each.error: each.size for each in found.power}
        assert 0.02 < sizes["relative error of the temperature"] < 0.1
        assert len(sizes) == 4
        assert all(size is not None for size in sizes.values())
    content = json.loads(json.dumps(found.as_dict()))
    assert content["verdict"] == "passes"
    assert {"p_value", "corrected", "failed", "finding", "name", "meaning"} == content["results"][0].keys()


NAMED = {
    "rows transposed (shape bug)": "temperature",
    "two prompts swapped": "prompts",
    "residual missing": "nearness to the earlier policy",
    "cut off by one": "nearness to the earlier policy",
    "lenience e^0.5": "nearness to the earlier policy",
    "draft's end token lost": "end token",
    "stale weights": "nearness to the earlier policy",
    "top-p 0.95 left on": "truncation",
    "top-k 20 of 32 left on": "truncation",
    "min-p 0.05 left on": "truncation",
    "temperature 0.8 applied twice": "temperature",
    "temperature 0.8 ignored": "temperature",
    "repetition penalty 1.1": "repetition",
    "end token suppressed at first": "end token",
    "log-probabilities of another policy": "reported log-probabilities",
    "log-probabilities after temperature 0.8": "reported log-probabilities",
    "random numbers shared by the rows": "independence of prompts of a batch",
    "same random numbers in every step": "independence of successive tokens",
    "one response of a group copied": "equal responses",
    "prompt truncated at the left": "reported log-probabilities",
    "greedy first token": "positions",
    "bias 0.5 of one token": "single tokens",
}


@pytest.mark.parametrize("fault", NAMED)
def test_a_planted_fault_is_found_by_the_test_that_is_for_it(model, fault):
    sampler = FAULTS[fault](model, rng())
    others = {"the earlier policy": sampler.drafter or model.drifted(DRIFT)}
    size = {"samples": 48} if fault in ("residual missing", "bias 0.5 of one token") else {}
    found = certificate(sampler, model, others=others, **size, **settings_of(fault))
    assert found.verdict is Verdict.FAILS
    assert NAMED[fault] in [test.name for test in found.failures], str(found)


def test_the_same_seed_in_every_call_is_named(model):
    def sampler(*arguments):
        return Sampling(model, rng(5))(*arguments)

    found = certificate(sampler, model)
    assert "independence of calls" in [test.name for test in found.failures]


def test_a_failure_names_position_token_and_size(model):
    biased = FAULTS["bias 0.5 of one token"](model, rng())
    found = certificate(biased, model, samples=48, decode=lambda token: f"<{token}>")
    (test,) = [test for test in found.failures if test.name == "single tokens"]
    assert "token 5 ('<5>')" in test.finding
    found = certificate(FAULTS["greedy first token"](model, rng()), model)
    (test,) = [test for test in found.failures if test.name == "positions"]
    assert test.finding.startswith("position 0:")
    found = certificate(Sampling(model, rng(), warp=tempered(0.8)), model)
    (test,) = [test for test in found.failures if test.name == "temperature"]
    assert test.finding.startswith("closest to 0.83 times the temperature")


def only_top(model, k, sampled=True):
    """The same policy, which knows the k most probable tokens alone, as a server does."""

    class Top:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            for known, tokens in zip(model.log_probs(prompts, responses), responses, strict=True):
                top = np.argsort(-known.log_probs, axis=1)[:, :k]
                own = known.log_probs[np.arange(len(tokens)), tokens]
                yield Known(np.take_along_axis(known.log_probs, top, axis=1), top, own if sampled else None)

    return Top()


def test_top_k_log_probs_are_enough(model):
    assert certificate(Sampling(model, rng()), only_top(model, 8), resolution=0.2).verdict is Verdict.PASSES
    assert certificate(Sampling(model, rng()), only_top(model, 8, False), resolution=0.2).verdict is Verdict.PASSES
    for fault in ("temperature 0.8 applied twice", "end token suppressed at first"):
        assert certificate(FAULTS[fault](model, rng()), only_top(model, 8)).verdict is Verdict.FAILS, fault
    with pytest.raises(UserError, match="do not determine the distribution at another temperature"):
        certificate(Sampling(model, rng()), only_top(model, 8), temperature=0.7)


@pytest.mark.parametrize("total", [0.993, 1.007])
def test_totals_that_are_1_but_for_rounding_fail_no_exact_sampler(model, total):
    """Not normalised, a factor of each token would add up to a likelihood ratio of e^30."""

    class Rounded:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            return (Known(known.log_probs + np.log(total)) for known in model.log_probs(prompts, responses))

    found, exact = (certificate(Sampling(model, rng()), policy) for policy in (Rounded(), model))
    assert found.verdict is Verdict.PASSES, str(found)
    p_values = [{each.test.name: each.test.p_value for each in one.results} for one in (found, exact)]
    assert p_values[0] == pytest.approx(p_values[1])


def test_another_temperature_is_tested_as_such(model):
    cold = Sampling(model, rng(), warp=tempered(0.7))
    assert certificate(cold, model, temperature=0.7, reported_temperature=1.0).verdict is Verdict.PASSES
    assert certificate(Sampling(model, rng()), model, temperature=0.7, tolerance=9).verdict is Verdict.FAILS


def test_too_few_or_certain_tokens_say_nothing(model):
    found = certify(Sampling(model, rng()), model, PROMPTS[:2], samples=2, max_tokens=4, calls=1)
    assert found.verdict is Verdict.NOTHING
    assert "use more prompts" in found.reason

    class Certain:
        end_tokens = (0,)

        def log_probs(self, prompts, responses):
            for tokens in responses:
                yield Known(np.where(np.arange(3) == np.array(tokens)[:, None], 0, -np.inf))

    sampler = lambda prompts, samples, max_tokens: [[Sampled([1, 0])] * samples for _ in prompts]  # noqa: E731
    found = certify(sampler, Certain(), PROMPTS)
    assert found.verdict is Verdict.NOTHING
    assert "of no size" in found.reason


def test_a_response_that_does_not_stop_where_the_policy_does_fails(model):
    exact = Sampling(model, rng())

    def changed(change):
        def sampler(*arguments):
            return [[Sampled(change(list(each.tokens))) for each in group] for group in exact(*arguments)]

        found = certificate(sampler, model)
        assert found.failures[0].name == "ends of responses"
        return found.failures[0].finding

    assert "without an end token" in changed(lambda tokens: [token for token in tokens if token != END])
    assert "goes on after an end token" in changed(lambda tokens: [*tokens[:20], *[3, 3] * (tokens[-1] == END)])


def test_an_impossible_token_is_named(model):
    class Masked:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            for known in model.log_probs(prompts, responses):
                rows = known.log_probs.copy()
                rows[:, 7] = -np.inf
                yield Known(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))

    found = certificate(Sampling(model, rng()), Masked())
    assert "token 7 at position" in {test.name: test.finding for test in found.failures}["impossible tokens"]


def test_bounds_of_counts_hold_and_are_not_far_from_exact():
    n, p = 1000, np.array([0.002, 0.1, 0.5, 0.97])
    observed = np.arange(n + 1)
    for probability in p:
        bound = count_p_values(observed, n * probability, n * probability * (1 - probability), n)
        lower, upper = stats.binom.cdf(observed, n, probability), stats.binom.sf(observed - 1, n, probability)
        exact = np.minimum(lower, upper)
        assert (bound >= np.minimum(1, exact)).all()
        relevant = (exact < 1e-4) & (exact > 1e-12)
        assert (np.log(bound[relevant]) < 0.55 * np.log(exact[relevant])).all()
    assert count_p_values(0, 20.0, 20.0, 10**6) == pytest.approx(4 * np.exp(-20))


def test_u_is_uniform_and_likelihood_ratios_have_mean_1(model):
    groups = Sampling(model, rng(3))(PROMPTS, 24, 24)
    responses = [Response(0, i, j, each) for i, group in enumerate(groups) for j, each in enumerate(group)]
    for policy in (model, only_top(model, 8)):
        tested = positions(PROMPTS, responses, policy)
        assert stats.kstest(tested.u, "uniform").pvalue > 1e-3
        ratios = np.exp(tested.ratio)
        assert (abs(ratios.mean(axis=0) - 1) < 5 * ratios.std(axis=0) / np.sqrt(len(tested))).all()
        probs = tested.top_probs.sum(axis=1)
        assert (np.diff(tested.top_probs, axis=1) <= 0).all()
        assert probs.max() <= 1 + 1e-9


def test_holm_corrects_for_the_number_of_tests():
    tests = [Family(name, p, "", "") for name, p in (("a", 0.04), ("b", 0.001), ("c", 0.012))]
    results = holm(tests, 0.03)
    assert [(each.test.name, each.corrected, each.failed) for each in results] == [
        ("b", pytest.approx(0.003), True),
        ("c", pytest.approx(0.024), True),
        ("a", pytest.approx(0.04), False),
    ]


def test_the_stated_power_is_reached(model):
    """At the smallest size that the certificate of an exact sampler states, an error is found."""
    stated = {each.error: each.size for each in certificate(Sampling(model, rng()), model, samples=8).power}
    size = stated["relative error of the temperature"]
    cut = 1.3 * stated["cut off mass (1 - top-p)"]

    def truncated(random, prompts, samples):
        return (1 - cut) * random.random((prompts, samples))

    def failures(**fault):
        found = (certificate(Sampling(model, rng(seed), **fault), model, samples=8) for seed in range(5))
        return [[test.name for test in each.failures] for each in found]

    assert sum("temperature" in names for names in failures(warp=tempered(1 - size))) >= 4
    assert sum(map(bool, failures(warp=tempered(1 - size / 4)))) <= 1, "a power that says too little"
    assert sum("truncation" in names for names in failures(uniforms=truncated, by_probability=True)) >= 4


def test_power_grows_with_the_number_of_tokens(model):
    few = certificate(Sampling(model, rng()), model, samples=4)
    many = certificate(Sampling(model, rng()), model, samples=16)
    for a, b in zip(few.power, many.power, strict=True):
        assert b.size < 0.7 * a.size


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "another number of prompts"),
        ([[]] * 16, "another number of samples of prompt 0"),
        ([[[1, 2]] * 2] * 16, "is a list and no `Sampled"),
        ([[Sampled([1] * 30)] * 2] * 16, "has 30 tokens, more than max_tokens = 24"),
        ([[Sampled([1.5])] * 2] * 16, "other token ids than integers from 0: .1.5"),
        ([[Sampled([-1])] * 2] * 16, "other token ids than integers from 0: .-1"),
        ([[Sampled([1, 0], [-1.0])] * 2] * 16, "has 1 log-probabilities of 2 tokens"),
        ([[Sampled([1, 0], [-1.0, float("nan")])] * 2] * 16, "NaN or above 0"),
        ([[Sampled([1, 0], [-1.0, 0.5])] * 2] * 16, "NaN or above 0"),
        ([[Sampled([1, 0], [-1.0, -0.5]), Sampled([1, 0])]] * 16, "of some responses only"),
        ([[Sampled([])] * 2] * 16, "returned no token"),
    ],
)
def test_a_sampler_that_breaks_the_protocol_is_one_clear_error(model, returned, message):
    with pytest.raises(UserError, match=message):
        certificate(lambda *_: returned, model, samples=2)


def test_a_token_of_another_vocabulary_is_one_clear_error():
    class Uniform:
        end_tokens = (0,)

        def log_probs(self, prompts, responses):
            return (Known(np.full((len(tokens), 4), -np.log(4))) for tokens in responses)

    with pytest.raises(UserError, match="not in the policy's vocabulary") as error:
        certify(lambda *_: [[Sampled([5, 0])]], Uniform(), [[1, 2]], samples=1)
    assert (error.value.value, error.value.allowed) == (5, "0 to 3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows + 0.1, "do not sum to 1"),
        (lambda rows: rows * np.nan, "do not sum to 1"),
        (lambda rows: rows[:-1], "another shape"),
        (lambda rows: rows[0], "another shape"),
    ],
)
def test_a_policy_that_breaks_the_protocol_is_one_clear_error(model, change, message):
    class Broken:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            return (Known(change(known.log_probs)) for known in model.log_probs(prompts, responses))

    with pytest.raises(UserError, match=message):
        certificate(Sampling(model, rng()), Broken(), samples=2)


def test_a_policy_that_scores_too_few_responses_is_an_error(model):
    class Short:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            return model.log_probs(prompts[:-1], responses[:-1])

    with pytest.raises(UserError, match="scored fewer responses"):
        certificate(Sampling(model, rng()), Short(), samples=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"level": 1.0}, "level"),
        ({"calls": 0}, "calls"),
        ({"tolerance": float("nan")}, "tolerance"),
    ],
)
def test_impossible_settings_are_named_before_anything_is_sampled(model, settings, message):
    with pytest.raises(UserError, match=message):
        certificate(None, model, **settings)
    with pytest.raises(UserError, match="no prompt"):
        certify(None, model, [[1], []])
