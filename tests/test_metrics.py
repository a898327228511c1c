"""Accuracy's interval, pass@k and majority, against enumeration, simulation and their definitions."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.evaluate.metrics import interval, ks, majority, pass_at

counted = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.lists(st.integers(0, n), min_size=1, max_size=6).map(np.array), st.just(n))
)


@pytest.mark.parametrize(("samples", "k"), [(n, k) for n in (1, 3, 6) for k in range(1, n + 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples, k):
    for right in range(samples + 1):
        drawn = list(combinations([True] * right + [False] * (samples - right), k))
        assert pass_at(np.array([right]), samples, k) == pytest.approx(sum(map(any, drawn)) / len(drawn))


def test_pass_at_k_is_a_mean_over_problems_and_holds_for_many_samples():
    both = (pass_at(np.array([1]), 8, 4) + pass_at(np.array([5]), 8, 4)) / 2
    assert pass_at(np.array([1, 5]), 8, 4) == pytest.approx(both)
    assert pass_at(np.array([1]), 4096, 2048) == pytest.approx(0.5)
    assert pass_at(np.array([2000]), 4096, 2048) == pytest.approx(1)


@given(counted)
def test_pass_at_k_grows_with_k_from_accuracy_to_whether_any_sample_is_right(case):
    correct, samples = case
    values = [pass_at(correct, samples, k) for k in range(1, samples + 1)]
    assert values[0] == pytest.approx(correct.mean() / samples)
    assert values[-1] == pytest.approx((correct > 0).mean())
    assert all(0 <= a <= b + 1e-12 for a, b in pairwise(values))
    assert values[-1] <= 1


@pytest.mark.parametrize("k", [0, -1, 5])
def test_pass_at_k_of_more_than_there_are_is_rejected(k):
    with pytest.raises(ValueError, match="number of samples"):
        pass_at(np.array([1, 2]), 4, k)


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_ks_are_powers_of_two_and_all(samples, expected):
    assert ks(samples) == expected


@pytest.mark.parametrize(
    ("answers", "right", "share"),
    [
        (["4", "4", "5"], "TTF", 1),
        (["4", "5", "5"], "TFF", 0),
        (["4", "5"], "TF", 1 / 2),
        (["4", "5", "6"], "TFF", 1 / 3),
        (["4", "5", "5", "4.0"], "TFFT", 1 / 2),  # right answers are one, however written
        (["4", "5", "10/2"], "TFF", 1 / 3),  # wrong ones are one only if written alike
        (["4", "", "", ""], "TFFF", 1),  # who has no answer does not vote
        (["", ""], "FF", 0),
        (["5", "6"], "FF", 0),
        (["4"], "T", 1),
    ],
)
def test_majority(answers, right, share):
    correct = np.array([[r == "T" for r in right]])
    assert majority(correct, np.array([answers])) == pytest.approx(share)
    two = majority(np.vstack([correct, np.ones_like(correct)]), np.array([answers, ["4"] * len(answers)]))
    assert two == pytest.approx((share + 1) / 2)


@given(st.lists(st.sampled_from(["right", "a", "b", ""]), min_size=1, max_size=7), st.randoms())
def test_majority_does_not_depend_on_order_and_never_falls_when_a_wrong_vote_becomes_right(votes, random):
    def of(votes):
        return majority(np.array([[v == "right" for v in votes]]), np.array([votes]))

    shuffled = list(votes)
    random.shuffle(shuffled)
    assert of(shuffled) == of(votes)
    for i in range(len(votes)):
        assert of([*votes[:i], "right", *votes[i + 1 :]]) >= of(votes)


def wilson(right, total):
    from scipy.stats import binomtest

    found = binomtest(right, total).proportion_ci(0.95, method="wilson")
    return pytest.approx((found.low, found.high), abs=1e-9)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_one_sample_a_problem_gives_wilson_s_interval(correct):
    assert interval(np.array(correct), 1) == wilson(sum(correct), len(correct))


@pytest.mark.parametrize(("problems", "samples"), [(1, 1), (30, 32), (1, 8), (40, 4)])
def test_where_all_are_right_or_wrong_problems_count_and_not_samples(problems, samples):
    assert interval(np.zeros(problems, int), samples) == wilson(0, problems)
    assert interval(np.full(problems, samples), samples) == wilson(problems, problems)


def test_samples_that_repeat_a_problem_s_first_tell_nothing_new():
    first = np.array([1, 0, 0, 1, 1, 0, 1, 0, 0, 0])
    assert interval(first * 16, 16) == wilson(4, 10)


def test_samples_of_equally_hard_problems_all_count():
    assert interval(np.full(30, 8), 32) == wilson(240, 960)


@given(counted)
def test_an_interval_lies_within_0_and_1_around_the_accuracy_and_is_not_narrower_than_of_independent_samples(case):
    correct, samples = case
    low, high = interval(correct, samples)
    mean = correct.mean() / samples
    assert 0 <= low <= mean <= high <= 1
    assert low < high
    mirrored = interval(samples - correct, samples)
    assert mirrored == pytest.approx((1 - high, 1 - low))
    independent = interval(np.repeat([1, 0], [correct.sum(), len(correct) * samples - correct.sum()]), 1)
    assert high - low >= independent[1] - independent[0] - 1e-9


def coverage(problems, samples, a, b, runs=2000):
    """Share of simulations in which the interval covers the mean of the difficulties' distribution."""
    random = np.random.default_rng(0)
    counts = random.binomial(samples, random.beta(a, b, (runs, problems)))
    intervals = np.array([interval(count, samples) for count in counts])
    return float(((intervals[:, 0] <= a / (a + b)) & (a / (a + b) <= intervals[:, 1])).mean())


@pytest.mark.parametrize(
    ("problems", "samples", "a", "b", "least"),
    [
        (30, 32, 0.3, 0.3, 0.93),  # most problems are always or never solved
        (30, 32, 2, 2, 0.93),
        (30, 32, 50, 50, 0.93),  # nearly independent samples
        (30, 32, 0.2, 3, 0.90),  # 6 % right, in a few problems: the hardest for any interval
        (272, 4, 0.5, 2, 0.93),
        (500, 1, 0.3, 0.3, 0.93),
        (500, 1, 0.5, 2, 0.93),
    ],
)
def test_the_interval_covers_the_true_accuracy(problems, samples, a, b, least):
    assert least <= coverage(problems, samples, a, b) <= 0.98


def test_an_interval_that_takes_samples_for_independent_would_not_cover():
    random = np.random.default_rng(0)
    counts = random.binomial(32, random.beta(0.3, 0.3, (500, 30)))
    independent = [interval(np.repeat([1, 0], [c.sum(), 960 - c.sum()]), 1) for c in counts]
    assert np.mean([low <= 0.5 <= high for low, high in independent]) < 0.5


def test_every_case_of_a_small_benchmark_has_finite_measures():
    for counts in product(range(4), repeat=3):
        values = [*interval(np.array(counts), 3), *(pass_at(np.array(counts), 3, k) for k in (1, 2, 3))]
        assert np.isfinite(values).all()
