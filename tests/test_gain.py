"""The share of a baseline's gain that a method keeps: Fieller's interval, tables and claims."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from redraft.analysis.claims.verdicts import judge
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.sequential import nominal_level
from redraft.analysis.data.statistics import KEPT, LEVEL, Blocks, GainKept, mean_ratio
from redraft.analysis.pages.headline import _point
from redraft.config import CellTable, Claim, Headline

OWN, BASE = {0: 40.0, 1: 44.0, 2: 37.0, 3: 42.0}, {0: 50.0, 1: 52.0, 2: 47.0, 3: 49.0}
numbers = st.lists(st.floats(-50, 50).map(lambda x: round(x, 2)), min_size=3, max_size=8)


def test_the_share_is_the_ratio_of_the_mean_gains():
    share, interval, gain = mean_ratio(OWN, BASE)
    assert share == pytest.approx(163 / 198)
    assert gain == pytest.approx(49.5)
    assert share in interval


@given(numbers, st.lists(st.floats(1, 9), min_size=8, max_size=8))
def test_the_ends_are_the_shares_that_a_t_test_just_tells_from_the_data(own, noise):
    base = dict(enumerate(20 + x for x in noise[: len(own)]))
    own = dict(enumerate(own))
    assume(np.std(list(own.values())) > 0.1)
    _, interval, _ = mean_ratio(own, base)
    for end in (interval.low, interval.high):
        rest = [own[i] - end * base[i] for i in own]
        assert stats.ttest_1samp(rest, 0).pvalue == pytest.approx(LEVEL, abs=1e-4)


def test_a_gain_that_may_be_chance_has_no_interval():
    share, interval, gain = mean_ratio(OWN, {0: 3.0, 1: -2.0, 2: 1.0, 3: 0.5})
    assert math.isfinite(share)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert (
        "an unknown share of the 0.6 points that the baseline gained"
        in GainKept(share, *vars(interval).values(), gain).text
    )
    none, interval, gain = mean_ratio(OWN, dict.fromkeys(OWN, 0.0))
    assert math.isnan(none)
    assert math.isnan(interval.low)
    assert gain == 0.0


def test_seeds_without_both_values_do_not_count():
    own, base = {0: 1.0, 1: math.nan, 2: 3.0, 3: 4.0, 4: 2.5}, {0: 10.0, 1: 20.0, 2: math.nan, 3: 50.0, 4: 22.0}
    kept = [0, 3, 4]
    assert mean_ratio(own, base) == mean_ratio({s: own[s] for s in kept}, {s: base[s] for s in kept})
    assert math.isnan(mean_ratio({0: 1.0}, {1: 2.0})[0])


def test_one_block_has_no_interval_and_blocks_are_the_units():
    _, interval, _ = mean_ratio({0: 1.0}, {0: 2.0})
    assert math.isnan(interval.low)
    blocks = {0: 0, 1: 0, 2: 1, 3: 1}
    assert mean_ratio(OWN, BASE, blocks) == mean_ratio({0: 42.0, 1: 39.5}, {0: 51.0, 1: 48.0})


def test_the_interval_of_a_sequential_campaign_is_that_of_its_level():
    looks = (2, 3, 4)
    narrow, wide = mean_ratio(OWN, BASE)[1], mean_ratio(OWN, BASE, Blocks({}, looks))[1]
    assert wide.low < narrow.low
    assert wide.high > narrow.high
    rest = [OWN[i] - wide.low * BASE[i] for i in OWN]
    assert stats.ttest_1samp(rest, 0).pvalue == pytest.approx(nominal_level(LEVEL, looks), rel=1e-6)


def test_equal_shares_of_all_blocks_are_a_point():
    share, interval, _ = mean_ratio({0: 8.0, 1: 12.0, 2: 10.0}, {0: 16.0, 1: 24.0, 2: 20.0})
    assert share == interval.low == interval.high == 0.5


def test_fieller_covers_the_true_share_in_95_percent_of_campaigns():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        blocks = rng.normal(0, 3, 5)
        own, base = 40 + blocks + rng.normal(0, 2, 5), 50 + blocks + rng.normal(0, 2, 5)
        covered += 0.8 in mean_ratio(dict(enumerate(own)), dict(enumerate(base)))[1]
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (GainKept(0.834, 0.753, 0.854, 49.56), "83 % [75, 85] of the 49.6 points that the baseline gained"),
        (
            GainKept(1.2, 1.1, 1.3, 7.0, 1.246),
            "120 % [110, 130] of the 7.0 points that the baseline gained (paper 125 %)",
        ),
        (GainKept(0.9, 0.8, 1.0, -3.5), "no share of a gain: the baseline changed by -3.5 points"),
        (GainKept(-0.5, -0.7, -0.2, 7.0), "-50 % [-70, -20] of the 7.0 points that the baseline gained"),
    ],
)
def test_the_share_in_words(kept, text):
    assert kept.text == text


class Evaluated(Measured):
    """Accuracies of a baseline and a method before and after training."""

    def __init__(self, last):
        runs = [{"cell": cell, "seed": seed, "manifest": "", "block": seed} for cell in last for seed in range(4)]
        scores = pd.DataFrame(columns=["cell", "seed", "step", "benchmark", "role", "correct", "total"])
        super().__init__(Runs(pd.DataFrame(runs), pd.DataFrame(columns=["cell", "seed", "step"]), scores))
        self.last = last

    def values(self, quantity, cell, at=None, clock="steps"):
        return dict.fromkeys(range(4), 10.0) if at == 0 else {s: 10 + gain for s, gain in self.last[cell].items()}


def test_the_evidence_of_a_claim_about_accuracy_says_how_much_of_the_gain_is_kept():
    measured = Evaluated({"method": OWN, "baseline": BASE})
    tests = {
        "difference": {"kind": "compare", "relative": "difference", "threshold": -1.0},
        "ratio": {"kind": "compare", "relative": "ratio", "threshold": 0.9},
    }
    claims = [
        Claim.model_validate(
            {
                "id": name,
                "quotation": "q",
                "section": "1",
                "test": {"quantity": "accuracy:all", "cell": "method", "baseline": "baseline", "expected": "above"}
                | test,
            }
        )
        for name, test in tests.items()
    ]
    difference, ratio = (found["evidence"] for found in judge(claims, measured, True))
    assert "of its baseline's gain the method keeps 82 % [" in difference
    assert (
        difference.endswith("] of the 49.5 points that the baseline gained")
        or "that the baseline gained; " in difference
    )
    assert "gain" not in ratio


def test_the_first_screen_says_what_is_kept_of_the_gain():
    gain = dict(zip(KEPT, (-0.1, -0.2, -0.05, 7.0, 1.2), strict=True))
    numbers = {"reproduced": -6.3, "low": -9.2, "high": -3.4, "reported": 2.4, "p": 0.001, "p_corrected": 0.01}
    cell = pd.Series(numbers | gain | {"verdict": "opposite direction", "n_seeds": 5})
    headline = Headline(table=1, cell="a", column="d", form="points", words="It differs by {}", short="it is")
    table = CellTable.model_construct(number=1, columns=[])
    point = _point(headline, cell, table, "tiny", None)
    assert (
        "(paper: +2.4 points); the method keeps −10\N{NARROW NO-BREAK SPACE}% [−20, −5] of the 7.0 points"
        in point.sentence
    )
    without = _point(headline, cell.drop(list(KEPT)).reindex(cell.index), table, "tiny", None)
    assert "keeps" not in without.sentence


def test_without_a_common_finite_value_there_is_no_share():
    measured = Evaluated({"method": {0: math.nan}, "baseline": {0: 5.0}})
    assert measured.gain_kept("accuracy:all", ("method", "baseline")) is None
    apart = Evaluated({"method": {0: 5.0}, "baseline": {1: 5.0}})
    assert apart.gain_kept("accuracy:all", ("method", "baseline")) is None
