"""Certificates: exact samplers pass, planted faults are found and named, and bounds, power and bad input are right.

Samplers are those of `benchmarks.certify`, over small models of numpy.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from benchmarks.certify import DRIFT, END, FAULTS, VOCABULARY, Model, Sampling, only, settings_of, tempered
from redraft.certify import Known, Sampled, Verdict, certify, power
from redraft.certify.certificate import holm
from redraft.certify.positions import Response, positions
from redraft.certify.reuse import ERRORS, factors, ratios
from redraft.certify.statistics import TAILS, count_p_values
from redraft.certify.statistics import Test as Family
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
        assert 0.2 <= sizes["share of responses with drafts of drafts, lenience 1.6"] <= 1
        assert len(sizes) == 4 + len(ERRORS)
        assert "stayed the same: the policy, drafts (3 checks)" in str(found)
    content = json.loads(json.dumps(found.as_dict()))
    assert content["verdict"] == "passes"
    assert {"p_value", "corrected", "failed", "finding", "name", "meaning"} == content["results"][0].keys()


class Peaked:
    """A policy that is nearly certain of two or three tokens after each token, as after training.

    `rare` is the probability of all other tokens together.
    """

    end_tokens = (0,)

    def __init__(self, seed, rare, size=16):
        random, probs = rng(seed), np.full((size, size), rare / size)
        for row in probs:
            likely = random.choice(np.arange(1, size), random.integers(2, 4), replace=False)
            weights = random.uniform(0.3, 1, len(likely))
            row[likely] += (1 - rare) * weights / weights.sum()
        self.probs = probs / probs.sum(axis=1, keepdims=True)
        self.random = rng([seed, 7])

    def log_probs(self, prompts, responses):
        for prompt, response in zip(prompts, responses, strict=True):
            yield Known(np.log(self.probs[[prompt[-1], *response][: len(response)]]))

    def sample(self, prompts, samples, limit):
        return [[Sampled(self.response(prompt[-1], limit)) for _ in range(samples)] for prompt in prompts]

    def response(self, last, limit):
        tokens = []
        while len(tokens) < limit and (not tokens or tokens[-1]):
            last = int(np.searchsorted(self.probs[last].cumsum(), self.random.random(), side="right"))
            tokens.append(min(last, len(self.probs) - 1))
        return tokens


@pytest.mark.parametrize("seed", [1, 2, 10, 15])
def test_an_exact_sampler_of_a_nearly_certain_policy_does_not_fail(seed):
    """The sum of the counts of likely tokens has hardly any variance, and one rare token would be far from it."""
    policy = Peaked(seed, rare=1e-5)
    found = certify(policy.sample, policy, [[token] for token in range(1, 16)], seed=seed)
    assert found.failures == [], str(found)


def test_a_temperature_far_below_the_tested_ones_is_not_said_to_be_found():
    """However many tokens there are: the nearest alternative explains them less well than the policy."""
    tested = SimpleNamespace(information=np.full(10_000_000, 4.0))
    assert 0.005 < power.temperature(tested, 1e-5) < 0.0065
    assert power.temperature(SimpleNamespace(information=np.zeros(3)), 1e-5) is None


NAMED = {
    "rows transposed (shape bug)": "temperature",
    "two prompts swapped": "prompts",
    "residual missing": "nearness to the earlier policy",
    "half of the residual": "nearness to the earlier policy",
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
    "first 32 of 40 responses to end": "end token",
    "one draft for a whole group": "independence of samples of a prompt",
    "the longer one of two drafts": "end token",
    "stale weights from the second call on": "nearness to the earlier policy",
    "log-probabilities to base 2": "reported log-probabilities",
    "log-probabilities late by one token": "reported log-probabilities",
}


@pytest.mark.parametrize("fault", NAMED)
def test_a_planted_fault_is_found_by_the_test_that_is_for_it(model, fault):
    sampler = FAULTS[fault](model, rng())
    others = {"the earlier policy": sampler.drafter or model.drifted(DRIFT)}
    size = {"samples": 48} if fault in ("half of the residual", "bias 0.5 of one token") else {}
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


def faulty_distribution(p, q, residual):
    """Distribution of two tokens of a sampler that accepts drafts with min(1, p/q), by enumeration of all drafts.

    `p(prefix)` and `q(prefix)` are distributions.
    """
    found = np.zeros((3, 3))
    for first in range(3):
        p0, q0 = p(()), q(())
        accepted = min(1, p0[first] / q0[first])
        for second in range(3):
            p1, q1 = p((first,)), q((first,))
            kept = min(1, p1[second] / q1[second])
            draft = q0[first] * q1[second]
            found[first, second] += draft * accepted * kept
            found[first] += draft * accepted * (1 - kept) * residual(p1, q1)
            for other in range(3):
                found[other] += draft * (1 - accepted) * residual(p0, q0)[other] * p((other,))
    return found


@pytest.mark.parametrize(("error", "subtracted"), [("no residual", 0), ("half of the residual", 0.5), (None, 1)])
def test_likelihood_ratios_of_wrong_reuse_are_those_of_enumeration(error, subtracted):
    rows = rng().dirichlet(np.ones(3), (4, 2))
    p, q = (lambda prefix, i=i: rows[prefix[0] if prefix else 3, i] for i in (0, 1))

    def residual(p, q):
        left = np.maximum(p - subtracted * q, 0)
        return left / left.sum()

    right = np.array([[p(())[i] * p((i,))[j] for j in range(3)] for i in range(3)])
    expected = faulty_distribution(p, q, residual)
    if error is None:
        assert expected == pytest.approx(right), "the enumeration of an exact sampler"
        return
    tokens = np.array([(i, j) for i in range(3) for j in range(3)])
    known = np.array([[(p(()), q(())), (p((i,)), q((i,)))] for i, _ in tokens]).reshape(18, 2, 3)
    found = ratios(factors(known[:, 0], known[:, 1], tokens.ravel()), np.tile([0, 1], 9))
    assert found[:, ERRORS.index(error)] * right.ravel() == pytest.approx(expected.ravel())
    # All are likelihood ratios: their mean under the policy is 1.
    assert (found * right.reshape(-1, 1)).sum(axis=0) == pytest.approx(np.ones(len(ERRORS)))


def test_a_sampler_of_the_certificate_s_own_seed_passes(model):
    """With the numbers that tokens were sampled with, the test of quantiles would fail."""
    for seed in (0, 7):
        numbers = np.random.default_rng(seed)

        def sampler(prompts, samples, max_tokens, numbers=numbers):
            return [[respond(prompt, max_tokens, numbers) for _ in range(samples)] for prompt in prompts]

        found = certify(sampler, Table(), [[i] for i in range(1, 16)], seed=seed, resolution=0.2)
        assert found.verdict is Verdict.PASSES, str(found)


class Table:
    """Distribution of the next token by the one before."""

    end_tokens = (0,)
    rows = np.log(np.random.default_rng(3).dirichlet(np.ones(8), 16))

    def log_probs(self, prompts, responses):
        for prompt, response in zip(prompts, responses, strict=True):
            yield Known(self.rows[[prompt[-1], *response][: len(response)]])


def respond(prompt, max_tokens, numbers):
    tokens = [prompt[-1]]
    while len(tokens) <= max_tokens and (len(tokens) == 1 or tokens[-1] != 0):
        tokens.append(int(numbers.choice(8, p=np.exp(Table.rows[tokens[-1]]))))
    return Sampled(tokens[1:])


def test_u_is_uniform_and_likelihood_ratios_have_mean_1(model):
    groups = Sampling(model, rng(3))(PROMPTS, 24, 24)
    responses = [Response(0, i, j, each) for i, group in enumerate(groups) for j, each in enumerate(group)]
    for policy in (model, only_top(model, 8)):
        tested, _ = positions(PROMPTS, responses, policy)
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
    cut = stated["least probable mass that is cut off, as by top-p"]
    assert cut in TAILS, "smaller tails are not tested"

    def without_tail(probs, step):
        """All but the least probable tokens that have at least the mass `cut` together."""
        order = np.argsort(probs, axis=1)
        before = np.take_along_axis(probs, order, 1).cumsum(axis=1) - np.take_along_axis(probs, order, 1)
        kept = np.empty(probs.shape, bool)
        np.put_along_axis(kept, order, before >= cut, 1)
        return kept

    def failures(**fault):
        found = (certificate(Sampling(model, rng(seed), **fault), model, samples=8) for seed in range(5))
        return [[test.name for test in each.failures] for each in found]

    assert sum("temperature" in names for names in failures(warp=tempered(1 - size))) >= 4
    assert sum(map(bool, failures(warp=tempered(1 - size / 4)))) <= 1, "a power that says too little"
    assert sum("truncation" in names for names in failures(warp=only(without_tail))) == 5


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
        ([[Sampled([])] * 2] * 16, "returned no token in call 1"),
        (None, "returned a NoneType"),
        ({"a": 1}, "returned a dict"),
        ([None] * 16, "returned a NoneType"),
        ([[Sampled(None)] * 2] * 16, "tokens that are no list of integers: None"),
        ([[Sampled([[1], [0]])] * 2] * 16, "tokens that are no list of integers"),
        ([[Sampled([2**63])] * 2] * 16, "other token ids than integers from 0"),
        ([[Sampled([1, 0], [None, -1.0])] * 2] * 16, "NaN or above 0"),
        ([[Sampled([1, 0], ["a", "b"])] * 2] * 16, "log-probabilities that are no list of numbers"),
        ([[Sampled([1, 0], [[-1.0], [-1.0]])] * 2] * 16, "log-probabilities that are no list of numbers"),
        ((group for group in [[Sampled([1, 0])] * 2] * 3), "another number of prompts"),
        ((1 / 0 for _ in range(16)), "the sampler raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_sampler_that_breaks_the_protocol_is_one_clear_error(model, returned, message):
    with pytest.raises(UserError, match=message):
        certificate(lambda *_: returned, model, samples=2)


def test_an_exception_of_the_sampler_or_the_policy_is_one_error_with_its_line(model):
    def broken(*_):
        raise TimeoutError("no answer")

    with pytest.raises(UserError, match="the sampler raised TimeoutError: no answer") as error:
        certificate(broken, model)
    assert error.value.file == __file__
    assert isinstance(error.value.__cause__, TimeoutError)

    class Broken:
        end_tokens = model.end_tokens
        log_probs = broken

    with pytest.raises(UserError, match="the policy raised TimeoutError"):
        certificate(Sampling(model, rng()), Broken(), samples=2)


def test_a_generator_of_groups_is_as_good_as_a_list(model):
    exact = Sampling(model, rng())
    found = certificate(lambda *arguments: (iter(group) for group in exact(*arguments)), model)
    assert found.verdict is Verdict.PASSES


def test_log_probabilities_that_are_wrong_in_a_part_fail(model):
    """One prompt, position, sample or call of many changes the mean of all tokens too little."""

    def reported(wrong):
        exact, calls = Sampling(model, rng()), iter(range(9))

        def sampler(*arguments):
            call, groups = next(calls), exact(*arguments)
            return [
                [
                    Sampled(one.tokens, [value - 0.5 * wrong(call, p, s, t) for t, value in enumerate(one.log_probs)])
                    for s, one in enumerate(group)
                ]
                for p, group in enumerate(groups)
            ]

        return certificate(sampler, model, calls=3)

    assert reported(lambda call, p, s, t: False).verdict is Verdict.PASSES
    for where, wrong in (
        ("prompt 3", lambda call, p, s, t: p == 3),
        ("sample 5", lambda call, p, s, t: s == 5),
        ("position 1", lambda call, p, s, t: t == 1),
    ):
        (test,) = reported(wrong).failures
        assert test.name == "reported log-probabilities"
        assert f"of {where} 0.5" in test.finding


def test_a_policy_that_changes_or_is_noisy_is_an_error(model):
    class Changing:
        """Another model from some number of times that responses are scored."""

        end_tokens, name = model.end_tokens, "changing"

        def __init__(self, after):
            self.after, self.times = after, 0

        def log_probs(self, prompts, responses):
            self.times += 1
            return (model if self.times <= self.after else model.drifted(0.3)).log_probs(prompts, responses)

    exact = Sampling(model, rng())
    # Scored in both calls, with all responses, and after them.
    for after, when in ((1, "in call 1"), (2, "in call 2"), (3, "after the last call")):
        with pytest.raises(UserError, match=f"the policy changed {when}"):
            certificate(exact, Changing(after))
        with pytest.raises(UserError, match=f"old changed {when}"):
            certificate(exact, model, others={"old": Changing(after)})
    assert certificate(exact, Changing(9)).verdict is Verdict.PASSES


def test_responses_that_are_copied_between_equal_prompts_fail(model):
    """In another order, as from a cache: no response is compared with the one of its own index alone."""
    exact = Sampling(model, rng())

    def sampler(prompts, samples, max_tokens):
        half = exact(prompts[:8], samples, max_tokens)
        return half + [group[::-1] for group in half] if cached else exact(prompts, samples, max_tokens)

    for cached in (True, False):
        found = certify(sampler, model, PROMPTS[:8] * 2, samples=16, max_tokens=24)
        assert ("equal responses" in [test.name for test in found.failures]) == cached
        assert (found.verdict is Verdict.FAILS) == cached, str(found)


def test_few_responses_to_a_prompt_hide_no_failure(model):
    """A G-test without freedom has no p-value, and NaN is neither the smallest nor the largest one."""
    greedy = Sampling(model, rng(), warp=lambda logits, rows, step: logits * 1e6)
    found = certify(greedy, model, PROMPTS[:4], samples=2, max_tokens=8, calls=1)
    assert found.tokens < 100
    assert "temperature" in [test.name for test in found.failures], str(found)
    with pytest.raises(ArithmeticError, match="the test of a has the p-value nan"):
        holm([Family("a", float("nan"), "", "")], 0.1)


def test_a_vocabulary_of_one_token_says_nothing():
    class One:
        end_tokens = ()

        def log_probs(self, prompts, responses):
            return (Known(np.zeros((len(tokens), 1))) for tokens in responses)

    found = certify(
        lambda prompts, n, length: [[Sampled([0] * length, [0.0] * length)] * n for _ in prompts], One(), [[0]]
    )
    assert (found.verdict, found.failures) == (Verdict.NOTHING, [])
    # The same with an end token, which then ends every response.
    One.end_tokens = (0,)
    assert certify(lambda prompts, n, _: [[Sampled([0])] * n for _ in prompts], One(), [[0]]).verdict is Verdict.NOTHING


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
        (lambda rows: None, "another shape"),
    ],
)
def test_a_policy_that_breaks_the_protocol_is_one_clear_error(model, change, message):
    class Broken:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            return (Known(change(known.log_probs)) for known in model.log_probs(prompts, responses))

    with pytest.raises(UserError, match=message):
        certificate(Sampling(model, rng()), Broken(), samples=2)


@pytest.mark.parametrize(
    ("tokens", "sampled", "message"),
    [
        ([1, 2, 1], None, "lists a token twice"),
        ([1, 2], None, "another shape"),
        ([1, 2, 3], np.full(24, np.nan), "of sampled tokens are no numbers"),
        ([1, 2, 3], [-1.0] * 99, "of sampled tokens are no numbers"),
        (None, None, "the policy returned a ndarray"),
    ],
)
def test_top_k_log_probs_that_are_none_are_one_clear_error(model, tokens, sampled, message):
    class Broken:
        end_tokens = model.end_tokens

        def log_probs(self, prompts, responses):
            for response in responses:
                rows = np.full((len(response), 3), -2.0)
                yield Known(rows, np.array([tokens] * len(rows)), sampled) if tokens else rows

    with pytest.raises(UserError, match=message):
        certificate(Sampling(model, rng()), Broken(), samples=2)


def test_a_policy_that_scores_another_number_of_responses_is_an_error(model):
    class Other:
        end_tokens, change = model.end_tokens, lambda self, rows: rows[:-1]

        def log_probs(self, prompts, responses):
            return model.log_probs(self.change(prompts), self.change(responses))

    with pytest.raises(UserError, match="scored fewer responses"):
        certificate(Sampling(model, rng()), Other(), samples=2)
    Other.change = lambda self, rows: [*rows, rows[0]]
    with pytest.raises(UserError, match="scored more responses"):
        certificate(Sampling(model, rng()), Other(), samples=2)
    Other.log_probs = lambda *_: None
    with pytest.raises(UserError, match="the policy raised TypeError: 'NoneType' object is not iterable"):
        certificate(Sampling(model, rng()), Other(), samples=2)
    exhausted = iter([])
    Other.log_probs = lambda *_: exhausted
    with pytest.raises(UserError, match="scored fewer responses"):
        certificate(Sampling(model, rng()), Other(), samples=2)


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
