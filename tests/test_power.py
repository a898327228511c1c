"""Power of verdicts: the smallest effect that a campaign shows, the blocks that an effect needs, and their words."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.statistics import BASELINE, QUANTITY, Simulated
from redraft.analysis.claims.tests import Comparison, ComparisonSet
from redraft.analysis.claims.verdicts import (
    CONTRADICTED,
    INCONCLUSIVE,
    REASONS,
    REPRODUCED,
    Compared,
    _undecided,
    judge,
)
from redraft.analysis.data.power import POWER, blocks_needed, detectable, standardized
from redraft.analysis.data.sequential import MOST_BLOCKS
from redraft.analysis.data.statistics import LEVEL, Families, Family, _identity, corrected, estimate
from redraft.analysis.pages.claims_page import margin_text, power_text, seen_text
from redraft.analysis.pages.seeds_needed import advice, seeds_needed
from redraft.cli.report import seeds
from redraft.config import Claim, Compare, Experiments, Pairs, Several
from redraft.config.claims import ClaimFile, margin_of
from redraft.config.read import parse
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import write_with_hash

DEFAULT_CELLS = 4
"""Cells of SPEC-RL that the preset tiny trains by default."""


@pytest.mark.parametrize(("blocks", "effect"), [(3, 3.264), (5, 1.682), (10, 0.9960), (30, 0.5292)])
def test_the_standardized_effect_is_that_of_a_one_sample_t_test(blocks, effect):
    """At the level 0.05, with a power of 0.8; 0.9960 is what G*Power computes for ten."""
    assert standardized(blocks) == pytest.approx(effect, abs=5e-4)


@pytest.mark.parametrize("level", [LEVEL, 0.005, LEVEL / 78])
@pytest.mark.parametrize("blocks", [2, 3, 5, 10])
def test_campaigns_with_a_detectable_effect_are_significant_four_times_of_five(blocks, level):
    effect, rng = standardized(blocks, level), np.random.default_rng(blocks)
    p = stats.ttest_1samp(rng.normal(effect, 1, (40_000, blocks)), 0, axis=1).pvalue
    # Four standard errors of 40,000 campaigns.
    assert np.mean(p <= level) == pytest.approx(POWER, abs=0.008)


def test_one_block_shows_nothing():
    assert standardized(1) == math.inf
    for values in ({0: 1.0}, {0: 1.0, 1: 1.0}, {0: 1.0, 1: math.inf}, {0: 1.0, 1: 1.0, 2: 1.0}, {}):
        assert detectable(estimate(values)) is None
        assert blocks_needed(estimate(values), 0.0) is None


def test_the_detectable_effect_has_the_unit_of_the_values_and_the_uncertainty_of_their_spread():
    found = detectable(estimate({0: 1.0, 1: 2.0, 2: 3.0}))
    assert found.effect == pytest.approx(standardized(3))
    # (n - 1) s² over the quantiles of chi-squared with two degrees of freedom, 0.0506 and 7.378.
    assert (found.low, found.high) == pytest.approx(
        (standardized(3) * math.sqrt(2 / 7.3778), standardized(3) * math.sqrt(2 / 0.050636)), rel=1e-4
    )
    blocked = detectable(
        estimate({0: 0.0, 5: 2.0, 1: 1.0, 6: 3.0, 2: 2.0, 7: 4.0}, {0: 0, 5: 0, 1: 1, 6: 1, 2: 2, 7: 2})
    )
    assert blocked.effect == pytest.approx(found.effect), "the spread is that of the blocks' means"


def test_of_ratios_the_detectable_effect_is_a_factor():
    found = detectable(estimate({0: 1.0, 1: math.e, 2: math.e**2}, log=True))
    assert found.effect == pytest.approx(math.exp(standardized(3)))
    same = detectable(estimate({0: 1.0, 1: 1 / math.e, 2: math.e**-2}, log=True))
    assert same.effect == pytest.approx(found.effect), "a ratio and its inverse"


@given(
    st.lists(st.floats(-10, 10), min_size=3, max_size=8, unique_by=lambda x: round(x, 3)),
    st.floats(-20, 20),
    st.sampled_from([LEVEL, LEVEL / 78]),
)
def test_the_needed_blocks_are_the_fewest_that_show_the_effect(values, against, level):
    found = estimate(dict(enumerate(values)))
    effect = abs(found.mean - against) / np.std(values, ddof=1)
    needed = blocks_needed(found, against, level)
    if needed is None:
        assert standardized(MOST_BLOCKS, level) > effect
    else:
        assert standardized(needed, level) <= effect
        assert needed == 2 or standardized(needed - 1, level) > effect


def test_ratios_need_blocks_by_their_logarithms():
    ratios = {0: 0.4, 1: 0.5, 2: 0.65}
    logs = {seed: math.log(value) for seed, value in ratios.items()}
    assert blocks_needed(estimate(ratios, log=True), 1.0) == blocks_needed(estimate(logs), 0.0) is not None
    assert blocks_needed(estimate(ratios, log=True), 0.0) is None, "no ratio is compared with 0"


def family_of(p_values):
    """A family with these p-values, and its comparisons."""
    family, keys = Family([]), [({0: float(i), 1: 2.0 + i, 2: 5.0}, 0.0, False) for i in range(len(p_values))]
    family._p = {_identity(*key): p for key, p in zip(keys, p_values, strict=True)}
    return family, keys


@pytest.mark.parametrize(
    ("p_values", "levels"),
    [
        ([0.001, 0.9], [0.025, 0.05]),
        ([0.001, 0.5, 0.6], [0.05 / 3, 0.1 / 3, 0.1 / 3]),
        ([0.5, 0.04], [0.05, 0.025]),
        ([0.001, 0.002], [0.05, 0.05]),
        ([0.3], [0.05]),
    ],
)
def test_the_level_of_a_comparison_is_the_largest_p_value_that_would_count_among_the_others(p_values, levels):
    family, keys = family_of(p_values)
    assert [family.level(*key) for key in keys] == pytest.approx(levels)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12))
def test_a_level_is_the_limit_of_the_correction(p_values):
    family, keys = family_of(p_values)
    for i, key in enumerate(keys):
        level, others = family.level(*key), [p for j, p in enumerate(p_values) if j != i]
        assert corrected([*others, level * (1 - 1e-9)])[-1] <= LEVEL
        assert level >= LEVEL or corrected([*others, level * (1 + 1e-6)])[-1] > LEVEL
    new = ({0: -9.0, 1: 1.0, 2: 2.0}, 0.0, False)
    assert corrected([*p_values, family.level(*new) * (1 - 1e-9)])[-1] <= LEVEL, "as a further member"


def test_a_comparison_in_no_family_has_the_level_of_the_one_that_it_would_be_in():
    values = {0: -1.0, 1: 0.5, 2: 2.0}
    nulls = [({0: -1.0 - i, 1: 0.1, 2: 1.0 + i / 2}, 0.0, False) for i in range(30)]
    families = Families([({0: 3.0, 1: 4.0, 2: 3.5}, 0.0, False)], nulls)
    assert families.of(values, 0.0, primary=True) is families.primary
    assert families.of(values, 0.0) is families.other
    assert families.of(*nulls[0], primary=True) is families.other, "where it is"
    assert Family([]).level(values, 0.0) == LEVEL


def claim(why="seeds", parts=1, **power):
    power = {"effect": 3.1, "low": 1.6, "high": 19.5, "is_ratio": False, "units": 3, "needed": 7} | power
    return {"verdict": INCONCLUSIVE, "why": why, "deciding": 0, "parts": [{"power": power}] * parts}


@pytest.mark.parametrize(
    ("found", "blocks", "end"),
    [
        (claim(), 1, "An effect as measured needs 7 seeds, 4 more."),
        (claim(), 10, "An effect as measured needs 7 blocks, 4 more."),
        (claim(), 5, "An effect as measured needs 7 blocks, and the preset has 5."),
        (claim(needed=None), 5, "An effect as small as measured needs more than 1,000 blocks."),
        (
            claim(needed=3),
            5,
            "3 blocks decide an effect as measured in four of five campaigns; this is one of the others.",
        ),
        (claim(why=""), 5, "(by the uncertainty of the spread, 1.6 to 19.5)."),
        (claim(why="times"), 5, "(by the uncertainty of the spread, 1.6 to 19.5)."),
    ],
)
def test_a_claim_says_what_its_runs_show_and_what_it_would_take(found, blocks, end):
    text = power_text(found, blocks)
    unit = "blocks" if blocks > 1 else "seeds"
    assert text.startswith(f"With 3 {unit} the test shows a difference of 3.1 from the required value in four of five")
    assert text.endswith(end)
    assert seen_text(found) == "3.1"


def test_a_factor_is_named_so_and_an_unknown_end_is_infinite():
    found = claim(why="", parts=2, effect=1.4, low=1.2, high=None, is_ratio=True)
    assert seen_text(found) == "a factor of 1.4"
    assert "the comparison that decides shows a factor of 1.4 from" in power_text(found, 1)
    assert power_text(found, 1).endswith("1.2 to ∞).")
    assert "∞" in power_text(claim(is_ratio=True, high=4e9), 1)


def test_what_is_not_tested_shows_nothing():
    untested = claim() | {"parts": [{"power": None}]}
    assert (seen_text(untested), power_text(untested, 5)) == ("", "")
    assert (seen_text(untested | {"deciding": None}), power_text(untested | {"deciding": None}, 5)) == ("", "")
    assert seen_text({"parts": untested["parts"]}) == "", "an earlier version judged it"


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """A folder with one judged claim at the preset tiny, and a workflow."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    layout = Layout("tiny", Path("results"))
    parts = [
        {"label": f"mean accuracy (points), {cell} minus grpo-vanilla", "mean": mean, "threshold": -1.0, "power": power}
        for cell, mean, power in (
            ("grpo-spec-l0.5", -5.7, claim()["parts"][0]["power"]),
            ("grpo-spec-l0", -0.5, None),
        )
    ]
    judged = {"id": "quality-kept", "quotation": "q", "verdict": INCONCLUSIVE, "why": "seeds", "deciding": 0}
    more = {"evidence": "e", "same_as": "", "test": {}, "manifests": {"grpo-spec-l0.5": [], "grpo-vanilla": []}}
    write_with_hash(layout.claims("spec_rl"), [judged | more | {"parts": parts}])
    return layout


def test_the_command_prints_what_decides_a_claim_and_what_that_costs(layout, capsys):
    seeds("spec_rl/quality-kept", "tiny", wide=True, as_json=False)
    text = capsys.readouterr().out
    assert "mean accuracy (points), grpo-spec-l0.5 minus grpo-vanilla" in text
    assert re.search(r"3 +-5\.7 +-1 +3\.1 +7$", text, re.MULTILINE)
    assert "grpo-spec-l0 minus" not in text, "what is not tested has no power"
    assert "an effect as measured needs 4 more blocks\n" in text
    assert "start them with: snakemake --config preset=tiny papers=spec_rl seeds=7" in text
    assert (
        "or add blocks until the paper's claims are decided: redraft run-until spec_rl\n  --preset tiny --all\n" in text
    )


def test_a_preset_with_too_few_blocks_is_named(layout, capsys):
    content = json.loads(layout.claims("spec_rl").read_text())
    content[0]["parts"][0]["power"]["needed"] = 31
    write_with_hash(layout.claims("spec_rl"), content)
    seeds("spec_rl/quality-kept", "tiny", wide=True, as_json=False)
    text = capsys.readouterr().out
    assert "the preset has 30 blocks; one with `blocks: 31` and as many seeds has enough" in text


def test_the_command_has_the_same_as_json_and_says_how_to_start(layout, capsys):
    content = json.loads(layout.claims("spec_rl").read_text())
    content[0]["parts"][0]["power"]["needed"] = 4
    write_with_hash(layout.claims("spec_rl"), content)
    seeds("quality-kept", "tiny", wide=False, as_json=True)
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert (row["units"], row["needed"], row["could_show"], row["decides"]) == (3, 4, "3.1", True)
    assert found["notes"][1:] == [
        "an effect as measured needs 1 more block",
        "start them with: snakemake --config preset=tiny papers=spec_rl seeds=4",
        f"it trains {4 * DEFAULT_CELLS} runs; hours unknown",
        "or add blocks until the paper's claims are decided: redraft run-until spec_rl --preset tiny --all",
    ]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"why": "times"}, "more blocks do not decide it: times uneven"),
        ({"why": "cells"}, "more blocks do not decide it: too few cells"),
        ({"verdict": "reproduced", "why": ""}, None),
        ({"why": ""}, "more blocks do not decide it: an earlier version judged it"),
    ],
)
def test_nobody_is_sent_to_train_for_what_seeds_do_not_decide(changes, note, layout):
    found = claim() | {"evidence": "e", "manifests": {}} | changes
    found["parts"][0] |= {"label": "l", "mean": 1.0, "threshold": 0.0}
    experiments = Experiments()
    notes = advice(found, seeds_needed(found), "spec_rl", experiments, experiments.preset("tiny"), layout)
    assert notes == ([note] if note else [])


def test_cells_beyond_the_default_need_the_target_that_has_them(layout):
    found = claim(needed=4) | {"evidence": "e", "manifests": {"ppo-vanilla": []}}
    found["parts"][0] |= {"label": "l", "mean": 1.0, "threshold": 0.0}
    experiments = Experiments()
    notes = advice(found, seeds_needed(found), "spec_rl", experiments, experiments.preset("tiny"), layout)
    assert notes[1] == "start them with: snakemake reproduction --config preset=tiny papers=spec_rl seeds=4"


def test_a_folder_without_a_workflow_names_no_command_of_it(layout):
    """A report of published results has no runs that could go on."""
    Path("Snakefile").unlink()
    found = claim(needed=4) | {"evidence": "e", "manifests": {}}
    found["parts"][0] |= {"label": "l", "mean": 1.0, "threshold": 0.0}
    experiments = Experiments()
    notes = advice(found, seeds_needed(found), "spec_rl", experiments, experiments.preset("tiny"), layout)
    assert len(notes) == 2
    assert "cannot be continued without their runs" in notes[1]


def test_differences_of_rounding_are_no_spread():
    found = estimate({0: 16.1 - 15.1, 1: 1.0, 2: 1.0})
    assert detectable(found) is None
    assert blocks_needed(found, 0.5) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qualty-kept", "no such claim"),
        ("nothing/quality-kept", "no such paper"),
        ("average-speedup", "this claim has no verdict yet"),
    ],
)
def test_a_claim_that_is_not_there_is_one_error(layout, name, message):
    with pytest.raises(UserError, match=message) as error:
        seeds(name, "tiny", wide=False, as_json=False)
    assert error.value.key == "claim"


def test_without_a_test_the_command_gives_the_reason(layout, capsys):
    content = json.loads(layout.claims("spec_rl").read_text())
    content[0] |= {"parts": [], "deciding": None, "why": "", "evidence": "missing: grpo-vanilla"}
    write_with_hash(layout.claims("spec_rl"), content)
    seeds("quality-kept", "tiny", wide=False, as_json=False)
    assert "nothing is tested: missing: grpo-vanilla" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdict", "end"),
    [
        ("reproduced", "shown to be within the margin."),
        ("contradicted", "shown to be beyond the margin."),
        ("inconclusive", "open: these runs show neither."),
    ],
)
def test_without_loss_has_three_outcomes(verdict, end):
    claim = {"verdict": verdict, "margin": 1.0, "test": {"expected": "above"}}
    assert margin_text(claim) == f"A loss of up to 1 counts as none (margin): {end}"
    both = claim | {"test": {"expected": "within"}}
    assert margin_text(both) == f"A difference of up to 1 counts as none (margin): {end}"
    assert margin_text(claim | {"margin": None}) == ""
    assert margin_text(claim | {"verdict": "not run"}) == ""


@pytest.mark.parametrize(
    ("fields", "margin"),
    [
        ({"expected": "above", "threshold": -1.0}, 1.0),
        ({"expected": "below", "threshold": 2.0}, 2.0),
        ({"expected": "within", "threshold": 3.0}, 3.0),
        ({"expected": "above", "threshold": 0.0}, None),
        ({"expected": "above", "threshold": 2.0}, None),
        ({"expected": "below", "threshold": -2.0}, None),
        ({"expected": "above", "threshold": 0.9, "relative": "ratio"}, None),
    ],
)
def test_a_margin_is_a_threshold_on_the_other_side_of_no_effect(fields, margin):
    one = Compare(quantity="accuracy:all", cell="a", baseline="b", **fields)
    pairs = Pairs(quantity="accuracy:all", pairs=[("a", "b"), ("c", "b")], **fields)
    other = Compare(quantity="reward", cell="a", baseline="b", expected="above", threshold=0)
    # `within` is two comparisons, which `several` does not count.
    test = one if fields["expected"] == "within" else Several(tests=[one, other], at_least=1)
    assert margin_of(one) == margin_of(pairs) == margin
    content = {"claims": [{"id": "c", "quotation": "q", "section": "1", "test": test.model_dump()}]}
    if margin is None:
        assert parse(ClaimFile, content, "claims.yaml").margin == ""
    else:
        with pytest.raises(UserError, match=r"claims allow a difference \(c\)") as error:
            parse(ClaimFile, content, "claims.yaml")
        assert error.value.key == "margin"
        assert parse(ClaimFile, content | {"margin": "One point is noise."}, "claims.yaml").margin


def part(bound=""):
    comparison = Comparison("c", {0: 1.0, 1: 2.0}, "above", 0.0, bound=bound)
    return Compared(comparison, estimate(comparison.values), math.nan if bound else 0.5)


YES, NO, OPEN = REPRODUCED, CONTRADICTED, INCONCLUSIVE


@pytest.mark.parametrize(
    ("needed", "total", "outcomes", "needs", "expected"),
    [
        (1, 1, [OPEN], [7], (0, "seeds")),
        (3, 3, [OPEN, OPEN, YES], [7, 40, 2], (1, "seeds")),
        (3, 3, [OPEN, OPEN, OPEN], [7, 9, None], (2, "seeds")),
        (3, 6, [YES, YES, NO, NO, OPEN, OPEN], [2, 2, 2, 2, 90, 12], (5, "seeds")),
        (5, 6, [YES, YES, YES], [2, 2, 2], (None, "cells")),
        (2, 4, [YES, "bound", OPEN, OPEN], [2, 0, 12, 30], (2, "seeds")),
        (2, 2, [YES, "bound"], [2, 0], (None, "ends")),
        (1, 1, [OPEN], [0], (None, "variance")),
    ],
)
def test_what_an_inconclusive_claim_lacks_is_what_keeps_it_from_holding(needed, total, outcomes, needs, expected):
    """`needs` has the blocks of each comparison, 0 where nothing is tested."""
    parts = [part("floor" if outcome == "bound" else "") for outcome in outcomes]
    found = [OPEN if outcome == "bound" else outcome for outcome in outcomes]
    powers = [None if count == 0 else {"needed": count} for count in needs]
    comparisons = ComparisonSet([each.part for each in parts], needed, total, [])
    assert _undecided(comparisons, parts, found, powers) == expected
    assert expected[1] in REASONS


NOISE = {f"cell-{i}": {0: 1.0 + i / 9, 1: -1.3, 2: 0.4, 3: 0.2 - i / 9} for i in range(2, 11)}
"""Cells whose difference from a baseline of 0 is noise."""
TRUE = {"cell-0": {0: 1.1, 1: 2.5, 2: 0.5, 3: 2.2}, "cell-1": {0: 1.0, 1: 2.0, 2: 0.7, 3: 1.6}}
SIMULATED = {BASELINE: dict.fromkeys(range(4), 0.0)} | TRUE | NOISE


def above(name, cell, **fields):
    test = Compare(quantity=QUANTITY, cell=cell, baseline=BASELINE, expected="above", threshold=0.0)
    return Claim(id=name, quotation="q", section="1", test=test, **fields)


def judged(*claims, paper_scale=True):
    return judge(claims, Simulated(SIMULATED, 4), paper_scale)


def test_the_parts_of_a_claim_in_two_families_are_counted_and_decided_by_their_own():
    both = Pairs(quantity=QUANTITY, pairs=[(cell, BASELINE) for cell in TRUE], expected="above", threshold=0.0)
    pair = Claim(id="both", quotation="q", section="1", test=both)
    found = judged(pair, above("first", "cell-0", primary=True), *(above(cell, cell) for cell in NOISE))[0]
    p_0, p_1 = (estimate(values).p_value(0.0) for values in TRUE.values())
    assert p_1 < p_0 <= LEVEL, "so the larger is significant in the primary family alone"
    assert (found["verdict"], found["deciding"], found["p"]) == (INCONCLUSIVE, 1, pytest.approx(p_1))
    assert "not significant after correction for 10 comparisons" in found["evidence"]
    assert found["p_corrected"] == pytest.approx(10 * p_1)
    levels = (LEVEL, LEVEL / 10)
    effects = [detectable(estimate(values), level).effect for values, level in zip(TRUE.values(), levels, strict=True)]
    assert [each["power"]["effect"] for each in found["parts"]] == pytest.approx(effects)


def test_an_undecidable_primary_claim_has_the_level_of_the_primary_family():
    claims = above("first", "cell-0", primary=True, scale="paper"), *(above(cell, cell) for cell in NOISE)
    found = judged(*claims, paper_scale=False)[0]
    assert found["why"] == "scale"
    assert found["parts"][0]["power"]["effect"] == pytest.approx(detectable(estimate(TRUE["cell-0"])).effect)
