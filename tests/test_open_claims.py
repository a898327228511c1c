"""Claims that cannot be decided yet: which runs count, the reason, and what would decide them."""

import math
from dataclasses import dataclass, field

import pytest

from benchmarks.statistics import Simulated
from redraft.analysis.claims.campaign import next_look
from redraft.analysis.claims.tests import comparison_set
from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REPRODUCED, judge
from redraft.analysis.data.quantities import bound_of
from redraft.analysis.data.statistics import Blocks, Families, estimate, mean_ratio
from redraft.analysis.pages.claims_page import CLAIMS, power_text, seen_text
from redraft.analysis.pages.seeds_needed import advice, seeds_needed
from redraft.analysis.tables.cell_verdicts import verdict
from redraft.cli import run_until
from redraft.config import Bound, Claim, Compare, Correlation, Experiments, Fluctuation, Pairs
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import write_with_hash
from tests.checkout import ROOT

ACCURACY, HOURS, LATER = "accuracy:all", "steps_to:45:accuracy:all", "steps_to:50:accuracy:all"
INF = math.inf
LOOKS = (5, 8, 12, 18, 27)


def compare(quantity=ACCURACY, cell="a", baseline="b", **fields):
    return Compare(quantity=quantity, cell=cell, baseline=baseline, **fields)


def judged(test, values, looks=(), families=None):
    """A judged claim; values are lists, or mappings from seeds."""
    by_seed = {cell: each if isinstance(each, dict) else dict(enumerate(each)) for cell, each in values.items()}
    claim = Claim(id="c", quotation="q", section="1", test=test)
    return judge([claim], Simulated(by_seed, 30, looks), paper_scale=True, families=families)[0]


NO_LOSS = compare(expected="above", threshold=-1.0)
SAME = compare(expected="within", threshold=1.0)


@pytest.mark.parametrize(
    ("test", "values", "looks"),
    [
        (NO_LOSS, {"a": [0] * 3, "b": [0] * 3}, ()),
        # A seed of the baseline alone is compared with nothing.
        (NO_LOSS, {"a": [0] * 3, "b": [0, 0, 0, 2]}, ()),
        (SAME, {"a": [100, 100, 100, 98], "b": [100] * 3}, ()),
        # Nor does a block after the last look count.
        (NO_LOSS, {"a": [0] * 6, "b": [0, 0, 0, 0, 0, 2]}, (5, 8)),
        # 1, 7 and 1 of 300 have the mean 1.0000000000000002 %.
        (NO_LOSS, {"a": [0, 0, 100 * (1 / 300 + 7 / 300 + 1 / 300) / 3], "b": [0] * 3}, ()),
    ],
)
def test_only_what_is_compared_says_whether_it_is_at_an_end_of_the_scale(test, values, looks):
    found = judged(test, values, looks)
    assert (found["verdict"], found["why"], found["p"]) == (INCONCLUSIVE, "ends", None)


def test_a_block_up_to_the_look_is_no_end_of_the_scale():
    found = judged(NO_LOSS, {"a": [0, 0, 0, 0, 0], "b": [0, 0, 0, 0, 2]}, (5, 8))
    assert found["why"] != "ends"


FASTER = {"relative": "ratio", "expected": "below", "threshold": 0.5}
SLOWER = {"relative": "ratio", "expected": "above", "threshold": 2}


@pytest.mark.parametrize(
    ("test", "values"),
    [
        (compare(HOURS, **FASTER), {"a": [20, 21, 19], "b": [INF] * 3}),
        (
            compare(HOURS, "b", "a", relative="ratio", expected="above", threshold=2),
            {"a": [20, 21, 19], "b": [INF] * 3},
        ),
        (compare(HOURS, **FASTER), {"a": [2, 2.1, 1.9, INF, INF], "b": [5, 5.2, 5.1, INF, INF]}),
        (compare(HOURS, expected="below", threshold=0), {"a": [INF] * 3, "b": [INF] * 3}),
        (Bound(quantity=HOURS, cell="a", expected="below", threshold=30), {"a": [20, 21, 19, INF]}),
    ],
)
def test_a_target_that_a_run_did_not_reach_decides_nothing(test, values):
    found = judged(test, values)
    assert (found["verdict"], found["why"], found["p"]) == (INCONCLUSIVE, "never", None)
    assert "did not reach the target" in found["evidence"]


def test_times_to_a_target_are_not_ranked_if_one_is_infinite():
    pairs = [(f"c{i}", "b") for i in range(5)]
    values = {f"c{i}": [i + 1, i + 1.1, i + 1.2] for i in range(5)} | {"b": [1, 1, 1]}
    test = Correlation(quantity=HOURS, other=LATER, pairs=pairs, relative="ratio", expected="above", threshold=0.5)
    assert judged(test, values)["verdict"] == REPRODUCED
    assert judged(test, values | {"c4": [5, 5.1, INF]})["why"] == "never"


THREE = {"quantity": ACCURACY, "pairs": [("a", "b"), ("c", "b"), ("d", "b")], "expected": "above", "threshold": 0.0}
WRONG = {"a": [49, 48.2, 49.9, 48.1, 49.8], "c": [55, 46, 52, 44, 54], "d": [47, 54, 52, 53, 45], "b": [50] * 5}
"""One difference that is soon below 0, and two that may be on either side."""


def test_a_claim_goes_on_if_a_contradiction_is_likely():
    found = judged(Pairs(**THREE), WRONG, LOOKS)
    assert (found["verdict"], found["why"], found["deciding"], next_look(found)) == (INCONCLUSIVE, "seeds", 0, 8)


def test_the_blocks_needed_are_those_of_the_nearer_verdict():
    all_hold = judged(Pairs(**THREE), WRONG)
    assert all_hold["deciding"] == 0, "one on the other side contradicts it"
    one_holds = judged(Pairs(**THREE, at_least=1), WRONG)
    assert one_holds["deciding"] != 0, "which would not be decided by the comparison that speaks against it"


@pytest.mark.parametrize(
    ("values", "looks", "needed", "further"),
    [
        ({"a": [50], "b": [40]}, (), 2, None),
        ({"a": [50, 51], "b": [40, 41]}, (), 3, None),
        ({"a": [50, 51], "b": [40, 41]}, (2, 5, 8), 5, 5),
        ({"a": [50], "b": [40]}, (2, 5, 8), 2, 2),
        ({"a": [50], "b": [40]}, (5, 8), 5, 5),
    ],
)
def test_one_seed_and_two_equal_ones_allow_no_test(values, looks, needed, further):
    found = judged(compare(expected="above", threshold=0.0), values, looks)
    assert (found["verdict"], found["why"], next_look(found)) == (INCONCLUSIVE, "seeds", further)
    assert seeds_needed(found)[0].needed == needed
    assert power_text(found, 30) == f"A test needs at least {needed} blocks."
    assert seen_text(found) == ""


def test_before_the_first_look_nothing_is_tested():
    """Neither a claim nor a cell of a table, however large the effect."""
    found = judged(compare(expected="above", threshold=0.0), {"a": [3, 3.1, 2.9, 3.2], "b": [0] * 4}, LOOKS)
    assert (found["why"], found["p"], seeds_needed(found)[0].needed) == ("seeds", None, 5)
    assert "needs 5 blocks, 1 more" in power_text(found, 30)


def test_a_ratio_to_0_is_a_pair_without_a_value():
    pairs = [("a", "b"), ("c", "b"), ("d", "b"), ("e", "z")]
    cells = {name: [5, 5.1, 5.2] for name in "acd"} | {"b": [50, 51, 52], "e": [1, 2, 3], "z": [0, 0, 0]}
    test = Pairs(quantity="tokens_decoded", pairs=pairs, relative="ratio", expected="below", threshold=0.5, at_least=3)
    found = judged(test, cells)
    assert found["verdict"] == REPRODUCED
    assert "3 of 4 pairs have values" in found["evidence"]


def test_the_comparison_that_decides_has_the_p_value_that_is_shown():
    """Corrected p-values of two comparisons are equal."""
    values = {"a": [1, 1.7, 2.9, 2.1], "c": [1, 1.8, 3.2, 2.2], "d": [9, 9.1, 9.2, 8.9], "b": [0] * 4}
    found = judged(Pairs(**THREE), values)
    assert (found["verdict"], found["deciding"]) == (REPRODUCED, 1)
    assert found["p"] == pytest.approx(estimate(dict(enumerate(values["c"]))).p_value(0)) == found["p_corrected"]


def test_no_blocks_are_asked_for_if_no_verdict_follows():
    """One holds, one is below, and two are at an end of the scale; two must hold."""
    pairs = [("a", "b"), ("c", "b"), ("d", "e"), ("e", "d")]
    values = {"a": [59, 59.1, 59.2, 58.8, 59], "c": [49, 48, 51, 47, 47.8], "b": [50] * 5, "d": [0] * 5, "e": [0] * 5}
    test = Pairs(quantity=ACCURACY, pairs=pairs, expected="above", threshold=0.0, at_least=2)
    found = judged(test, values, LOOKS)
    assert (found["verdict"], found["why"], found["deciding"], next_look(found)) == (INCONCLUSIVE, "ends", None, None)


@pytest.mark.parametrize(("units", "looks"), [(0, (5, 8)), (1, (5, 8)), (2, (5, 8)), (3, (3, 5, 8))])
def test_the_default_looks_fit_the_preset_and_what_allowed_no_test_was_no_look(tmp_path, monkeypatch, units, looks):
    smoke = Experiments(ROOT).preset("smoke")
    assert smoke.blocks == 10
    monkeypatch.chdir(tmp_path)
    layout = Layout("smoke")
    if units:
        values = {"a": [50, 51, 52.5][:units], "b": [40, 41, 42][:units]}
        write_with_hash(layout.claims("spec_rl"), [judged(compare(expected="above", threshold=0.0), values)])
    assert run_until._plan(layout, "spec_rl", "", smoke) == looks


def test_a_comparison_that_was_declared_later_says_so():
    values = {"a": [50, 51, 52.5], "b": [40, 40.5, 42]}
    test = compare(expected="above", threshold=0.0)
    assert judged(test, values)["verdict"] == REPRODUCED
    found = judged(test, values, families=Families())
    assert (found["verdict"], found["why"], found["p_corrected"]) == (INCONCLUSIVE, "declared", None)


def test_a_cell_of_a_table_and_a_claim_have_one_verdict_after_a_look():
    differences = [3, 3.1, 2.9, 3.2, 3, 9, -8, 1]
    found = judged(compare(expected="above", threshold=0.0), {"a": differences, "b": [0.0] * 8}, LOOKS)
    assert found["verdict"] == REPRODUCED
    assert "an earlier look decided" in found["evidence"]
    measured = Simulated({"a": dict(enumerate(differences))}, 30, LOOKS)
    of_cell = estimate(dict(enumerate(differences)), measured.runs.blocks)
    assert 0 in of_cell.interval
    for reported, expected in (
        (2.0, "agrees"),
        (9.0, "same direction"),
        (0.0, "differs"),
        (-2.0, "opposite direction"),
    ):
        assert verdict(of_cell, reported, "difference", p_corrected=found["p_corrected"]) == expected
    assert verdict(of_cell, 2.0, "difference", p_corrected=0.06) == "inconclusive"
    assert verdict(of_cell, 2.0, "difference") == "inconclusive"


def test_an_inconclusive_claim_has_the_p_value_of_the_comparison_that_decides_it():
    pairs = [("a", "b"), ("c", "b")]
    values = {"a": [-9, -9.1, -8.9, -9.2], "c": [1, -0.8, 2, -0.2], "b": [0] * 4}
    test = Pairs(quantity=ACCURACY, pairs=pairs, expected="above", threshold=0.0, at_least=1)
    found = judged(test, values)
    assert (found["verdict"], found["deciding"]) == (INCONCLUSIVE, 1)
    assert found["p"] == pytest.approx(estimate(dict(enumerate(values["c"]))).p_value(0))
    assert found["p_corrected"] >= found["p"] > 0.1
    # Nor that of one that is open, but on the other side.
    found = judged(test, values | {"a": [-2, -1, -3, 0.5]})
    assert (found["verdict"], found["deciding"]) == (INCONCLUSIVE, 1)
    assert found["p"] == pytest.approx(estimate(dict(enumerate(values["c"]))).p_value(0))


def test_no_p_value_is_shown_if_only_a_comparison_on_the_other_side_has_one():
    pairs = [("a", "b"), ("c", "d")]
    values = {"a": [41, 40.9, 41.1], "b": [50] * 3, "c": [0] * 3, "d": [0] * 3}
    found = judged(Pairs(quantity=ACCURACY, pairs=pairs, expected="above", threshold=0.0, at_least=1), values)
    assert (found["verdict"], found["why"], found["deciding"]) == (INCONCLUSIVE, "ends", None)
    assert (found["p"], found["p_corrected"]) == (None, None)


@dataclass
class Curves:
    """A source of curves: cells to seeds to values."""

    by_cell: dict
    blocks: Blocks = field(default_factory=Blocks)

    def trajectory(self, quantity, cell):
        return self.by_cell[cell]


@pytest.mark.parametrize(("later", "bound"), [([0, 0], "floor"), ([30, 0], ""), ([100, 100], ""), ([INF, 0], "never")])
def test_a_curve_that_begins_at_0_is_at_an_end_only_if_it_stays_there(later, bound):
    curves = Curves({"a": {0: [0, *later], 1: [0, *later]}, "b": {0: [0, 0, 0], 1: [0, 0, 0], 2: [50, 20, 0]}})
    (part,) = comparison_set(Fluctuation(quantity=ACCURACY, cell="a", baseline="b"), curves).parts
    assert part.bound == bound


def test_a_curve_that_ends_at_100_is_at_an_end_only_if_it_was_always_there():
    for first, bound in ((100, "ceiling"), (40, "")):
        curves = Curves({"a": {0: [first, 100]}, "b": {0: [100, 100]}})
        (part,) = comparison_set(Fluctuation(quantity=ACCURACY, cell="a", baseline="b"), curves).parts
        assert part.bound == bound


def test_the_advice_for_one_seed_is_a_test_and_for_three_an_effect():
    smoke = Experiments(ROOT).preset("smoke")
    for values, text in (([50], "a test needs at least 1 more block"), ([50, 47, 52.5], "an effect as measured needs")):
        found = judged(compare(expected="above", threshold=0.0), {"a": values, "b": [48, 47, 50][: len(values)]})
        lines = advice(found, seeds_needed(found), "spec_rl", Experiments(ROOT), smoke, Layout("smoke"))
        assert lines[0].startswith(text), lines


@pytest.mark.parametrize(
    ("own", "other"), [((10, 10), (20, 20)), ((10, 14), (20, 20)), ((10, 12), (20, 24)), ((1000, 1000.5), (2000, 2001))]
)
def test_two_equal_blocks_give_no_interval_of_a_share(own, other):
    share, interval, _ = mean_ratio(dict(enumerate(own)), dict(enumerate(other)))
    assert share == pytest.approx(sum(own) / sum(other))
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert math.isfinite(mean_ratio({0: 10, 1: 14, 2: 12}, {0: 20, 1: 20, 2: 20})[1].low)


@pytest.mark.parametrize(
    "values", [{"a": [50, 51], "b": {2: 40, 3: 41}}, {"a": [50, 51, 52], "b": [0, 0, 0]}], ids=["seeds", "zeros"]
)
def test_what_cannot_be_compared_is_not_called_unmeasured(values):
    test = compare("tokens_decoded", relative="ratio", expected="above", threshold=1.0)
    found = judged(test, values)
    assert (found["verdict"], found["evidence"]) == (NOT_RUN, "no seed has values of all cells")


def test_a_contradicted_claim_is_still_contradicted():
    found = judged(Pairs(**THREE), WRONG | {"a": [41, 40.9, 41.1, 40.8, 41]})
    assert (found["verdict"], found["deciding"]) == (CONTRADICTED, 0)


@pytest.mark.parametrize(
    ("field", "value"), [("deciding", 7), ("deciding", None), ("verdict", "sure"), ("why", "because")]
)
def test_a_damaged_file_of_claims_is_refused(field, value):
    found = judged(compare(expected="above", threshold=0.0), {"a": [1, -1, 3], "b": [0, 0, 0]})
    assert found["why"] == "seeds"
    CLAIMS.validate_python([found])
    with pytest.raises(ValueError, match=field if value != "sure" else "verdict"):
        CLAIMS.validate_python([found | {field: value}])


def test_a_campaign_that_has_begun_goes_on_with_its_looks_whatever_the_blocks_of_the_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = Experiments(ROOT).preset("smoke").model_copy(update={"blocks": 4})
    with pytest.raises(UserError, match="the first default look is after 5 blocks"):
        run_until._plan(Layout("smoke"), "spec_rl", "", few)
    assert run_until._plan(Layout("smoke"), "spec_rl", "2,3", few) == (2, 3)
    assert run_until._plan(Layout("smoke"), "spec_rl", "", few) == (2, 3)


def test_a_seed_whose_value_is_unknown_is_not_compared():
    sides = ({0: 0, 1: 0, 2: 0, 3: math.nan}, {0: 0, 1: 0, 2: 0, 3: 0.5})
    assert bound_of(["fresh_reward"], sides) == bound_of(["fresh_reward"], sides[::-1]) == "floor"
