"""Quantities, speedups, estimates and claims of uneven runs, worked out by hand."""

import math
from statistics import NormalDist, variance

import numpy as np
import pytest
from scipy.stats import t

from redraft.analysis.claims.verdicts import INCONCLUSIVE, NOT_RUN, RunValues
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measuring
from redraft.analysis.data.quantities import by_seed, noise_by_seed
from redraft.analysis.data.statistics import estimate, paired
from redraft.analysis.data.timing import speedups_by_seed
from redraft.config import Bound, Claim, Compare, Pairs
from redraft.evaluate.metrics import interval
from tests import uneven
from tests.measured import judge
from tests.uneven import PLAIN, REUSE


@pytest.fixture(scope="module")
def runs():
    return uneven.runs()


def of(runs, quantity, cell, at=None):
    return by_seed(runs, quantity, cell, at)


def speedups(runs, quantity):
    return speedups_by_seed(Measuring(runs), quantity, (REUSE, PLAIN), None, "hours")


def test_an_average_accuracy_is_the_mean_of_the_benchmarks_whatever_their_sizes(runs):
    plain = [(100 * (14 + seed) / 30 + 100 * (1509 + 3 * seed) / 3018) / 2 for seed in (0, 1, 2)]
    assert plain[0] == pytest.approx((46.6667 + 50) / 2, abs=1e-4)
    assert of(runs, "accuracy:all", PLAIN) == pytest.approx(dict(enumerate(plain)))
    assert of(runs, "accuracy:few", PLAIN, at=2)[1] == pytest.approx(100 * 13 / 30)
    assert of(runs, "accuracy:out-of-distribution", REUSE)[2] == pytest.approx(100 * (1509 - 32 + 6) / 3018)
    assert of(runs, "accuracy:all", PLAIN, at=0)[0] == pytest.approx((100 / 3 + 50) / 2)


def test_the_noise_of_an_average_is_that_of_a_mean_of_its_benchmarks(runs):
    few, many = 16 / 30, 1515 / 3018
    expected = 100 * math.sqrt(few * (1 - few) / 30 + many * (1 - many) / 3018) / 2
    assert noise_by_seed(runs, "accuracy:all", PLAIN)[2] == pytest.approx(expected)
    assert noise_by_seed(runs, "accuracy:few", PLAIN)[2] == pytest.approx(100 * math.sqrt(few * (1 - few) / 30))


def test_the_policy_s_own_reward_is_not_that_of_what_is_reused(runs):
    assert of(runs, "fresh_reward", REUSE) == pytest.approx({0: 0.2, 2: 0.3})
    assert of(runs, "reward", REUSE) == pytest.approx({0: 0.5, 2: 0.7})


def test_generation_is_rollout_verification_and_assembly(runs):
    # Rollouts of seed 0: 10, 11, 6 and 7 seconds; verification 1 and assembly 0.5 in two steps.
    assert of(runs, "rollout_seconds", REUSE) == {0: 34, 2: 42}
    assert of(runs, "generation_seconds", REUSE) == {0: 37, 2: 45}
    assert of(runs, "generation_seconds", PLAIN) == of(runs, "rollout_seconds", PLAIN) == {0: 46, 1: 50, 2: 54}
    assert of(runs, "step_seconds", REUSE) == {0: 37 + 4 * 6, 2: 45 + 4 * 8}
    assert of(runs, "hours", REUSE)[2] == pytest.approx(77 / 3600)
    assert of(runs, "seconds:assembly", REUSE) == {0: 0.25, 2: 0.25}


def test_a_speedup_is_a_ratio_for_each_seed_that_both_have(runs):
    assert speedups(runs, "speedup:printed") == pytest.approx({0: 46 / 34, 2: 54 / 42})
    assert speedups(runs, "speedup:honest") == pytest.approx({0: 46 / 37, 2: 54 / 45})
    assert speedups(runs, "speedup:step") == pytest.approx({0: 66 / 61, 2: 82 / 77})
    controlled = {0: 66 / (66 - 46 + 37), 2: 82 / (82 - 54 + 45)}
    assert speedups(runs, "speedup:controlled") == pytest.approx(controlled)


def test_a_missing_seed_is_missing_and_never_zero(runs):
    ratios = paired(of(runs, "tokens_decoded", REUSE), of(runs, "tokens_decoded", PLAIN), "ratio")
    assert ratios == pytest.approx({0: 2600 / 4000, 2: 3040 / 4800})
    assert estimate(ratios).seeds == (0, 2)
    assert estimate(ratios).mean == pytest.approx((2600 / 4000 + 3040 / 4800) / 2)
    pairs = Pairs(
        quantity="tokens_decoded",
        pairs=[(REUSE, PLAIN), (PLAIN, REUSE)],
        relative="difference",
        statistic="mean",
        expected="above",
        threshold=0,
    )
    values = RunValues(Measuring(runs))
    assert values.values("tokens_decoded", REUSE).keys() == {0, 2}
    (verdict,) = judge([Claim(id="c", quotation="q", section="1", test=pairs)], runs, paper_scale=True)
    assert "mean over this and 1 similar pair" in verdict["evidence"]
    assert verdict["verdict"] == INCONCLUSIVE, "the two pairs cancel in both seeds"


def test_an_interval_is_the_same_every_time_and_student_s_is_by_the_sample_variance():
    many = dict(enumerate([0.1, 1.7, 2.9, 4.3, 7.1, 11.3, 13.7, 19.9, 23.3]))
    assert len({estimate(many).bootstrap for _ in range(5)}) == 1
    values = {0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0}
    half = t.ppf(0.975, 3) * math.sqrt(variance(values.values()) / 4)
    assert (estimate(values).interval.low, estimate(values).interval.high) == pytest.approx((3.75 - half, 3.75 + half))


def test_an_accuracy_s_interval_is_by_the_sample_variance_between_problems():
    correct, samples, z = np.array([0, 2, 2, 4, 1, 2, 3, 2]), 4, NormalDist().inv_cdf(0.975)
    shares = [k / samples for k in correct.tolist()]
    mean = sum(shares) / 8
    size = mean * (1 - mean) / (variance(shares) / 8) * (z / t.ppf(0.975, 7)) ** 2
    assert 8 < size < 32, "neither as few as problems nor as many as samples"
    centre = (mean + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(mean * (1 - mean) / size + z**2 / (4 * size**2))
    assert interval(correct, samples) == pytest.approx((centre - half, centre + half))


@pytest.mark.parametrize("quantity", ["hours", "rollout_seconds", "seconds:total"])
def test_no_claim_about_time_is_decided_where_equal_work_took_unequal_time(runs, quantity):
    """In the first epoch both cells of a seed decode the same; in one of them it takes half as long again."""
    steps = runs.steps.copy()
    slow = (steps["cell"] == REUSE) & (steps["epoch"] == 0)
    steps.loc[slow, "seconds.rollout"] *= 1.5
    test = Compare(quantity=quantity, cell=REUSE, baseline=PLAIN, relative="ratio", expected="below", threshold=1.0)
    claim = Claim(id="c", quotation="q", section="1", test=test)
    (uneven_time,) = judge([claim], Runs(runs.runs, steps, runs.scores), paper_scale=True)
    assert "equal work differed in time by a factor of up to 1.50" in uneven_time["evidence"]
    (even_time,) = judge([claim], runs, paper_scale=True)
    assert "equal work" not in even_time["evidence"]


def test_a_value_on_a_threshold_is_on_neither_side(runs):
    """Tokens that are exactly 500 in every seed are neither above nor below 500."""
    steps = runs.steps.assign(tokens_decoded=125)
    same = Runs(runs.runs, steps, runs.scores)
    verdicts = {
        expected: judge(
            [
                Claim(
                    id="c",
                    quotation="q",
                    section="1",
                    test=Bound(quantity="tokens_decoded", cell=PLAIN, expected=expected, threshold=500),
                )
            ],
            same,
            paper_scale=True,
        )[0]["verdict"]
        for expected in ("above", "below")
    }
    assert verdicts == {"above": INCONCLUSIVE, "below": INCONCLUSIVE}


def test_a_cell_without_runs_is_not_run(runs):
    absent = Runs(runs.runs, runs.steps[runs.steps["cell"] == PLAIN], runs.scores)
    test = Compare(quantity="tokens_decoded", cell=REUSE, baseline=PLAIN, expected="below", threshold=0)
    (verdict,) = judge([Claim(id="c", quotation="q", section="1", test=test)], absent, paper_scale=True)
    assert verdict["verdict"] == NOT_RUN


def test_the_made_up_runs_are_as_uneven_as_they_say(runs):
    assert runs.steps.groupby("cell")["seed"].nunique().to_dict() == {PLAIN: 3, REUSE: 2}
    assert runs.scores.groupby("benchmark")["total"].first().to_dict() == {"few": 30, "many": 3018}
