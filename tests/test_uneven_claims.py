"""What claims ask of uneven runs and of reported tables: each part's values by seed, side and threshold."""

import pandas as pd
import pytest

from redraft.analysis.claims.reported_claims import NOT_SUPPORTED, SUPPORTED, ReportedTables, check
from redraft.analysis.claims.tests import comparison_set
from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REPRODUCED, RunValues
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measuring
from redraft.analysis.data.timing import TimingSpread, first_epoch_spread
from redraft.config import (
    Bound,
    Claim,
    Compare,
    Experiments,
    Fluctuation,
    Monotone,
    Pairs,
    Peak,
    Range,
    Several,
    Trend,
)
from redraft.config.claims import cells_of, compared_in
from tests import uneven
from tests.measured import judge
from tests.uneven import PLAIN, REUSE

EXPERIMENTS = Experiments()
TOKENS = {PLAIN: {0: 4000, 1: 4400, 2: 4800}, REUSE: {0: 2600, 2: 3040}}
"""Decoded in a run, by seed."""
OTHERS = {"grpo-spec-l0": 3, "grpo-spec-l2": 5}
"""Further cells, of which each seed decodes so many times as many tokens as `PLAIN`'s."""


@pytest.fixture(scope="module")
def runs():
    """The uneven runs, and cells that decode more."""
    made = uneven.runs()
    plain = made.steps[made.steps["cell"] == PLAIN]
    more = [plain.assign(cell=cell, tokens_decoded=plain["tokens_decoded"] * n) for cell, n in OTHERS.items()]
    return Runs(made.runs, pd.concat([made.steps, *more], ignore_index=True), made.scores)


def parts(runs, kind, **fields):
    """Values by seed, side and threshold of each part."""
    fields = {"quantity": "tokens_decoded"} | fields
    asked = comparison_set(
        kind(**{name: value for name, value in fields.items() if value is not None}), RunValues(Measuring(runs))
    )
    return [(part.values, part.expected, part.threshold) for part in asked.parts]


def ratio(cell, baseline):
    shared = TOKENS[cell].keys() & TOKENS[baseline].keys()
    return pytest.approx({seed: TOKENS[cell][seed] / TOKENS[baseline][seed] for seed in sorted(shared)})


def test_a_mean_over_pairs_is_taken_in_the_seeds_that_all_of_them_have(runs):
    pairs = [(REUSE, PLAIN), ("grpo-spec-l0", PLAIN)]
    ((values, side, threshold),) = parts(
        runs, Pairs, pairs=pairs, relative="ratio", statistic="mean", expected="below", threshold=2
    )
    assert values == pytest.approx({0: (2600 / 4000 + 3) / 2, 2: (3040 / 4800 + 3) / 2})
    assert (side, threshold) == ("below", 2)


def test_each_pair_has_its_own_seeds(runs):
    pairs = [(REUSE, PLAIN), ("grpo-spec-l0", PLAIN)]
    found = parts(runs, Pairs, pairs=pairs, relative="ratio", expected="below", threshold=2)
    assert found == [(ratio(REUSE, PLAIN), "below", 2), ({0: 3, 1: 3, 2: 3}, "below", 2)]


def test_a_distance_from_the_neutral_value_has_two_sides(runs):
    found = parts(runs, Compare, cell=REUSE, baseline=PLAIN, relative="ratio", expected="within", threshold=0.4)
    assert found == [(ratio(REUSE, PLAIN), "above", 0.6), (ratio(REUSE, PLAIN), "below", 1.4)]
    found = parts(runs, Compare, cell=REUSE, baseline=PLAIN, expected="within", threshold=50)
    assert found == [({0: -1400, 2: -1760}, "above", -50), ({0: -1400, 2: -1760}, "below", 50)]


def test_a_range_has_two_ends_in_every_cell(runs):
    found = parts(runs, Range, cells=[PLAIN, REUSE], low=2000, high=4500)
    ends = [
        (TOKENS[cell], side, limit) for cell in (PLAIN, REUSE) for side, limit in (("above", 2000), ("below", 4500))
    ]
    assert found == ends


def test_a_rise_is_one_from_each_cell_to_the_next_and_a_peak_is_higher_than_each_other(runs):
    path = [REUSE, PLAIN, "grpo-spec-l2", "grpo-spec-l0"]
    differences = [
        {seed: TOKENS[PLAIN][seed] - TOKENS[REUSE][seed] for seed in (0, 2)},
        {seed: 4 * value for seed, value in TOKENS[PLAIN].items()},
        {seed: -2 * value for seed, value in TOKENS[PLAIN].items()},
    ]
    assert parts(runs, Monotone, cells=path, expected="rises") == [(values, "above", 0) for values in differences]
    found = parts(runs, Peak, cell="grpo-spec-l2", others=[REUSE, "grpo-spec-l0"])
    assert found == [
        ({seed: 5 * TOKENS[PLAIN][seed] - TOKENS[REUSE][seed] for seed in (0, 2)}, "above", 0),
        ({seed: 2 * value for seed, value in TOKENS[PLAIN].items()}, "above", 0),
    ]


def test_a_trend_compares_neighbours_in_the_declared_direction(runs):
    quantities = ["first_epoch:tokens_decoded", "last_epoch:tokens_decoded", "max:tokens_decoded"]
    found = parts(runs, Trend, quantities=quantities, cells=[REUSE], expected=["falls", "rises"], quantity=None)
    assert found == [({0: -700, 2: -880}, "below", 0), ({0: 700, 2: 880}, "above", 0)]


def test_the_largest_fall_is_between_neighbours_and_not_from_first_to_last(runs):
    scores = runs.scores.copy()
    few = (scores["cell"] == PLAIN) & (scores["benchmark"] == "few")
    scores.loc[few, "correct"] = scores.loc[few, "step"].map({0: 10, 2: 19, 4: 13}) + scores.loc[few, "seed"]
    changed = Runs(runs.runs, runs.steps, scores)
    found = parts(changed, Fluctuation, quantity="accuracy:few", cell=PLAIN, baseline=REUSE)
    assert found == [(pytest.approx(dict.fromkeys((0, 2), 100 * (6 + 2) / 30)), "above", 0)]


COMPARE = Compare(cell="a", baseline="b", quantity="tokens_decoded", expected="above", threshold=1)
COMPARED = [
    (COMPARE, [("a", "b")]),
    (Monotone(cells=["a", "b", "c"], quantity="tokens_decoded", expected="rises"), [("a", "b"), ("b", "c")]),
    (Peak(cell="a", others=["b", "c"], quantity="tokens_decoded"), [("a", "b"), ("a", "c")]),
    (
        Pairs(pairs=[("a", "b"), ("c", "d")], quantity="tokens_decoded", expected="above", threshold=1),
        [("a", "b"), ("c", "d")],
    ),
    (
        Several(tests=[COMPARE, COMPARE.model_copy(update={"baseline": "c"})], at_least=1),
        [("a", "b"), ("a", "c")],
    ),
    (Range(cells=["a", "b"], quantity="tokens_decoded", low=1, high=2), [("a",), ("b",)]),
    (Bound(cell="a", quantity="tokens_decoded", expected="above", threshold=1), [("a",)]),
]


@pytest.mark.parametrize(("test", "pairs"), COMPARED, ids=[type(test).__name__ for test, _ in COMPARED])
def test_cells_are_compared_as_the_test_compares_them(test, pairs):
    assert compared_in(test) == pairs
    assert {cell for pair in pairs for cell in pair} == set(cells_of(test))


CLAIMS = {
    "within, and is": (Range, {"cells": [PLAIN], "low": 1000, "high": 9000}, REPRODUCED),
    "within, and is above": (Range, {"cells": [PLAIN], "low": 1000, "high": 2000}, CONTRADICTED),
    "within, and is below": (Range, {"cells": [PLAIN], "low": 8000, "high": 9000}, CONTRADICTED),
    "above another threshold than 0": (Bound, {"cell": PLAIN, "expected": "above", "threshold": 6000}, CONTRADICTED),
    "on either side": (Bound, {"cell": PLAIN, "expected": "above", "threshold": 4300}, INCONCLUSIVE),
    "of a cell without runs": (Bound, {"cell": "ppo-vanilla", "expected": "above", "threshold": 0}, NOT_RUN),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_verdict_is_by_side_and_threshold(runs, name):
    kind, fields, expected = CLAIMS[name]
    claim = Claim(id="c", quotation="q", section="1", test=kind(quantity="tokens_decoded", **fields))
    (verdict,) = judge([claim], runs, paper_scale=True)
    assert verdict["verdict"] == expected, verdict["evidence"]


def test_equal_work_is_that_of_one_seed_and_one_pair_that_differs_spoils_all(runs):
    """All first epochs decode the same tokens, and take longer the higher the seed; seed 0 takes 1.3 times as long."""
    steps = runs.steps[runs.steps["cell"].isin([PLAIN, REUSE])].assign(tokens_decoded=125)
    assert first_epoch_spread(Runs(runs.runs, steps, runs.scores)) == TimingSpread(2, 1.0, 1.0)
    slow = (steps["cell"] == REUSE) & (steps["seed"] == 0)
    steps.loc[slow, "seconds.rollout"] *= 1.3
    agreement = first_epoch_spread(Runs(runs.runs, steps, runs.scores))
    assert (agreement.groups, agreement.median, agreement.largest) == (2, pytest.approx(1.15), pytest.approx(1.3))
    assert not agreement.comparable


EQUAL = "grpo-spec-l0"
"""A cell that decodes as much as `PLAIN` in the reported table."""
HEAD = "model,dataset,algorithm,method,lenience,step,gen_step,column,value\n"


@pytest.fixture
def tables(tmp_path):
    """A reported table of three cells: 100, 40 and 100 million tokens, 34, 36 and 34 percent."""
    (tmp_path / "spec_rl/reported").mkdir(parents=True)
    values = {("vanilla", ""): (100, 34), ("spec-rl", "e^0.5"): (40, 36), ("spec-rl", "1"): (100, 34)}
    lines = [
        f"qwen3-1.7b-base,deepmath-6k,grpo,{method},{lenience},90,,{column},{value}\n"
        for (method, lenience), row in values.items()
        for column, value in zip(("tokens_m", "avg"), row, strict=True)
    ]
    (tmp_path / "spec_rl/reported/table03.csv").write_text(HEAD + "".join(lines))
    spec = EXPERIMENTS.reported("spec_rl").model_copy(update={"values": {}})  # of other lengths than the made-up table
    return ReportedTables(tmp_path / "spec_rl", spec, EXPERIMENTS)


def supported(tables, test, *printed):
    claim = Claim(id="c", quotation="q", section="1", test=test, printed=list(printed))
    return check(claim, tables)["reported_verdict"]


def bound(expected, threshold, cell=PLAIN):
    return Bound(quantity="tokens_decoded", cell=cell, expected=expected, threshold=threshold)


@pytest.mark.parametrize(
    ("expected", "threshold", "verdict"),
    [
        ("above", 99e6, SUPPORTED),
        ("above", 100e6, NOT_SUPPORTED),
        ("above", 101e6, NOT_SUPPORTED),
        ("below", 101e6, SUPPORTED),
        ("below", 100e6, NOT_SUPPORTED),
        ("below", 99e6, NOT_SUPPORTED),
    ],
)
def test_a_reported_value_on_the_threshold_is_not_beyond_it(tables, expected, threshold, verdict):
    assert supported(tables, bound(expected, threshold)) == verdict


BOTH = Pairs(
    quantity="tokens_decoded", pairs=[(REUSE, PLAIN), (EQUAL, PLAIN)], relative="ratio", expected="below", threshold=2
)
"""Ratios of 0.4 and 1.0."""


@pytest.mark.parametrize(
    ("number", "lies_within", "ends_there"),
    [
        ("0.4–1.0", True, True),
        ("0.3–1.1", True, False),
        ("0.4–1.2", True, False),
        ("0.2–1.0", True, False),
        ("0.4–0.9", False, False),
        ("0.5–1.0", False, False),
        ("0.4", False, False),
        ("1.0", False, False),
    ],
)
def test_all_values_lie_in_a_printed_range_and_its_ends_may_have_to_occur(tables, number, lies_within, ends_there):
    both_ends = ((True, ends_there),) if "–" in number else ()
    for ends, agrees in ((False, lies_within), *both_ends):
        expected = SUPPORTED if agrees else NOT_SUPPORTED
        assert supported(tables, BOTH, {"number": number, "ends": ends}) == expected


def test_every_printed_number_must_be_that_of_the_tables(tables):
    right, wrong = ({"number": n, "quantity": "accuracy:all", "cell": REUSE} for n in ("36", "37"))
    assert supported(tables, bound("above", 1), right, right) == SUPPORTED
    assert supported(tables, bound("above", 1), right, wrong) == NOT_SUPPORTED
    assert supported(tables, bound("below", 1), right) == NOT_SUPPORTED
