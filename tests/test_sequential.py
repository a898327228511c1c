"""Sequential campaigns: their p-values and intervals, the claims that go on, and the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.statistics import BASELINE, LOOKS, PRIMARY, Simulated, campaign, claims, sequential
from redraft.analysis.claims.campaign import next_blocks, next_look
from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, REASONS, REPRODUCED, judge
from redraft.analysis.data.power import can_still_show, detectable, standardized
from redraft.analysis.data.sequential import (
    check_looks,
    nominal_level,
    planned,
    read_looks,
    sequential_p,
    write_looks,
)
from redraft.analysis.data.statistics import LEVEL, Blocks, estimate
from redraft.cli import run_until
from redraft.cli.app import main
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.result_files import write_with_hash

ROOT = Path(__file__).parents[1]
REAL = {"cell-0": "grpo-spec-l0", "cell-1": "grpo-spec-l0.5", "cell-2": "grpo-spec-linf"}
"""Simulated cells to the cells of SPEC-RL as which the command's tests write them."""


def sequential_estimate(values, looks=LOOKS, log=False):
    return estimate(dict(enumerate(values)), Blocks({}, looks), log)


def plain_p(values, against=0.0):
    return stats.ttest_1samp(values, against).pvalue


@pytest.mark.parametrize("looks", [(5, 8, 12, 18, 27), (3, 5, 8), (2, 3, 40)])
def test_the_nominal_level_is_reached_at_some_look_in_as_many_null_campaigns_as_stated(looks):
    # Other campaigns than those of the calibration, by t-tests of SciPy.
    blocks = np.random.default_rng(7).normal(3, 2, (20_000, looks[-1]))
    for level in (0.05, 0.01):
        nominal = nominal_level(level, looks)
        reached = np.zeros(len(blocks), bool)
        for n in looks:
            reached |= stats.ttest_1samp(blocks[:, :n], 3, axis=1).pvalue <= nominal
        assert reached.mean() == pytest.approx(level, abs=4 * math.sqrt(level / len(blocks)))
        assert level / len(looks) <= nominal < level


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_sequential_p_value_is_a_probability_that_rises_with_the_p_value_and_is_never_below_it(p, other):
    low, high = sorted((p, other))
    assert low <= sequential_p(low, LOOKS) <= sequential_p(high, LOOKS) <= 1
    assert sequential_p(p, LOOKS) <= len(LOOKS) * p


@given(st.floats(1e-4, 0.9))
def test_the_nominal_level_is_the_largest_p_value_with_that_sequential_one(level):
    nominal = nominal_level(level, LOOKS)
    assert sequential_p(nominal, LOOKS) <= level * (1 + 1e-9)
    assert sequential_p(nominal * 1.02 + 1e-6, LOOKS) > level * 0.99


def test_a_campaign_with_one_look_is_judged_as_without_a_plan():
    assert sequential_p(0.03, (5,)) == 0.03 == sequential_p(0.03, ())
    assert nominal_level(0.03, (5,)) == 0.03
    values = [1.0, 2.0, 0.5, 3.0, 1.2]
    assert sequential_estimate(values, (5,)).p_value(0.0) == estimate(dict(enumerate(values))).p_value(0.0)


def test_the_smallest_p_value_of_the_looks_so_far_counts():
    strong, weak = [3.0, 3.1, 2.9, 3.2, 3.0], [9.0, -8.0, 1.0]
    found = sequential_estimate(strong + weak)
    assert found.p_value(0.0) == sequential_p(plain_p(strong), LOOKS), "the first look, not the second"
    assert plain_p(strong + weak) > plain_p(strong)
    between = sequential_estimate([*strong, 30.0])
    assert between.p_value(0.0) == found.p_value(0.0)
    assert between.mean == pytest.approx(np.mean(strong)), "blocks between two looks do not count yet"
    assert between.seeds == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("values", "looks", "expected"),
    [
        # Two equal blocks are no evidence, whatever comes later.
        ([0.5, 0.5, 0.1, -0.2, 0.3], (2, 5), None),
        # Three equal ones are, but not for the other side.
        ([1.0, 1.0, 1.0, -10.0, -10.0], (3, 5), None),
        ([1.0, 1.0, 1.0, 0.9, 1.2], (3, 5), 0.0),
    ],
)
def test_equal_blocks_at_an_early_look(values, looks, expected):
    found = sequential_estimate(values, looks).p_value(0.0)
    assert found == (sequential_p(plain_p(values), looks) if expected is None else expected)


def test_before_the_first_look_nothing_is_judged():
    found = sequential_estimate([3.0, 3.1, 2.9, 3.2])
    assert math.isnan(found.p_value(0.0))
    assert found.mean == pytest.approx(3.05)


def test_a_look_on_the_other_side_of_the_threshold_does_not_speak_for_this_one():
    below, above = [-1.0, -1.1, -0.9, -1.2, -1.0], [50.0, 60.0, 55.0]
    found = sequential_estimate(below + above)
    assert found.mean > 0
    assert found.p_value(0.0) == sequential_p(plain_p(below + above), LOOKS)


def test_ratios_are_judged_by_their_logarithms():
    values = [1.5, 1.7, 1.4, 1.6, 1.9]
    expected = sequential_p(plain_p(np.log(values)), LOOKS)
    assert sequential_estimate(values, log=True).p_value(1.0) == pytest.approx(expected, rel=1e-12)


def test_the_interval_has_the_nominal_level_and_what_could_be_seen_too():
    values = [1.0, 2.0, 0.5, 3.0, 1.2, 1.1, 0.9, 2.2]
    found = sequential_estimate(values)
    half = stats.t.ppf(1 - nominal_level(LEVEL, LOOKS) / 2, 7) * stats.sem(values)
    assert found.interval.high - found.mean == pytest.approx(half)
    expected = standardized(8, nominal_level(LEVEL, LOOKS)) * np.std(values, ddof=1)
    assert detectable(found).effect == pytest.approx(expected)


@pytest.mark.parametrize("level", [LEVEL, LEVEL / 3])
def test_a_claim_goes_on_while_its_effect_and_a_standard_error_are_detectable_at_the_last_look(level):
    unit = np.array([-1.0, 1.0, -0.5, 0.5, 0.0])
    unit /= np.std(unit, ddof=1)
    limit = standardized(LOOKS[-1], nominal_level(level, LOOKS)) - 1 / math.sqrt(5)
    assert can_still_show(sequential_estimate(unit + limit + 0.01), 0.0, level)
    assert not can_still_show(sequential_estimate(unit + limit - 0.01), 0.0, level)
    assert can_still_show(estimate(dict(enumerate(unit))), 0.0, level), "without a plan nothing ends"


def judged(effects, blocks, seed=0, looks=LOOKS):
    whole = campaign(np.random.default_rng(seed), looks[-1], looks[-1], np.array(effects)).by_cell
    part = {cell: {s: whole[cell][s] for s in range(blocks.get(cell, looks[0]))} for cell in whole}
    return judge(claims(len(effects)), Simulated(part, looks[-1], looks), True)


def test_decided_claims_get_no_more_blocks_and_open_ones_the_next_look():
    found = judged([60.0, -60.0, 4.0, 0.0], {})
    assert [claim["verdict"] for claim in found[:2]] == [REPRODUCED, CONTRADICTED]
    assert [next_look(claim) for claim in found[:2]] == [None, None]
    assert next_look(found[2]) == 8
    assert next_blocks(found[:3]) == {"cell-2": 8, BASELINE: 8}
    assert "look 1 of 5" in found[2]["evidence"]


def test_a_claim_that_no_further_look_would_decide_says_so():
    verdicts = judged([0.0] * 6, {})
    ended = [claim for claim in verdicts if claim["why"] == "plan"]
    assert ended, "of six claims without an effect some end at the first look"
    assert all(claim["verdict"] == INCONCLUSIVE and next_look(claim) is None for claim in ended)
    last = judged([0.5] * 3, dict.fromkeys(["cell-0", "cell-1", "cell-2", BASELINE], LOOKS[-1]))
    assert {claim["why"] for claim in last if claim["verdict"] == INCONCLUSIVE} == {"plan"}
    assert REASONS["plan"]


def test_simulated_campaigns_stop_early_and_are_seldom_wrong():
    rng = np.random.default_rng(3)
    null = sequential(rng, 40, [0.0], (5, 8))
    assert null.primary <= 0.2
    assert null.decided == 0.0
    sure = sequential(rng, 3, [30.0], LOOKS)
    assert (sure.decided, sure.primary, sure.runs) == (1.0, 0.0, 5 * 7), "decided at the first look"


@pytest.mark.parametrize("looks", [[], [1, 2], [5, 5], [8, 5], [5, 2000]])
def test_looks_ascend_from_two_blocks_on(looks):
    with pytest.raises(UserError, match="no looks"):
        check_looks(looks, "--looks")


def test_runs_that_were_judged_before_are_the_first_look():
    assert planned((5, 8, 12), 3) == (3, 5, 8, 12)
    assert planned((5, 8, 12), 6) == (6, 8, 12)
    assert planned((5, 8, 12), 0) == planned((5, 8, 12), 1) == (5, 8, 12), "one block allows no test"


def test_a_plan_that_was_edited_is_refused(tmp_path):
    file = tmp_path / "looks.json"
    assert read_looks(file) == ()
    write_looks(file, (5, 8))
    assert read_looks(file) == (5, 8)
    file.write_text(file.read_text().replace("8", "9"))
    with pytest.raises(UserError):
        read_looks(file)


def write_judged(claims):
    """Write judged claims as the workflow does, of real cells."""
    text = json.dumps(claims)
    for made, real in REAL.items():
        text = text.replace(f'"{made}"', f'"{real}"')
    write_with_hash(Layout("tiny").claims("spec_rl"), json.loads(text))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout's folder in which calls of Snakemake are simulated: they write judged claims of the requested runs."""
    for name in ("Snakefile", "config", "experiments", "workflows"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    calls, blocks = [], {}
    layout = Layout("tiny")

    def call(options, _layout, _as_json):
        calls.append(options)
        targets = [text for text in options if text.endswith("scores.json")]
        for target in targets:
            if "/runs/" not in target:
                continue
            real, seed = target.split("/")[-3], int(target.split("/")[-2].removeprefix("seed"))
            cell = {name: made for made, name in REAL.items()}.get(real, real)
            blocks[cell] = max(blocks.get(cell, 0), seed + 1)
        if not targets:
            first = int(next(text for text in options if text.startswith("seeds=")).partition("=")[2])
            for cell in (BASELINE, *(f"cell-{i}" for i in range(PRIMARY))):
                blocks[cell] = max(blocks.get(cell, 0), first)
            layout.claims("spec_rl").parent.mkdir(parents=True, exist_ok=True)
            looks = read_looks(layout.looks("spec_rl"))
            write_judged(judged([60.0, 2.5, 0.0], blocks, looks=looks))

    monkeypatch.setattr(run_until, "_call", call)
    return calls


def test_the_command_adds_runs_of_open_claims_until_none_is_left(folder, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run-until", "spec_rl", "--json", "--snakemake", "--profile slurm"])
    assert not end.value.code
    output = json.loads(capsys.readouterr().out)
    assert output["rows"][0]["verdict"] == REPRODUCED
    assert output["rows"][0]["blocks"] == 5, "the decided claim got no more"
    assert all(row["next_look"] is None for row in output["rows"])
    assert "claims are decided; no other claim is likely" in output["notes"][0]
    first, second, third = folder[:3]
    assert third == ["--forcerun", "collect", *first], "the runs of the look are no inputs of it"
    assert {text for text in second if text.startswith("results/tiny/initial/")} == {
        f"results/tiny/initial/tiny/qwen3-1.7b-base{f'@{seed}' * bool(seed)}/seed{seed}/scores.json"
        for seed in range(8)
    }
    assert "seeds=5" in first
    assert first[2:4] == ["--profile", "slurm"]
    runs = {tuple(text.split("/")[-3:-1]) for text in second if text.endswith("scores.json") and "/runs/" in text}
    assert (REAL["cell-1"], "seed7") in runs
    assert not any(cell == REAL["cell-0"] or seed == "seed8" for cell, seed in runs)


def test_the_same_command_goes_on_and_another_plan_is_refused(folder, capsys):
    for options in (["--hours", "1e-9"], []):
        with pytest.raises(SystemExit) as end:
            main(["run-until", "spec_rl", *options])
        assert not end.value.code
    assert "is used up" in capsys.readouterr().out
    assert read_looks(Layout("tiny").looks("spec_rl")) == LOOKS
    with pytest.raises(SystemExit) as end:
        main(["run-until", "spec_rl", "--looks", "5,6,7"])
    assert end.value.code == 2
    assert "cannot change" in capsys.readouterr().err
    for same in ([], ["--looks", "5,8,12,18,27"]):
        with pytest.raises(SystemExit) as end:
            main(["run-until", "spec_rl", *same])
        assert not end.value.code


def test_runs_that_were_judged_before_are_looks_of_the_plan_and_the_same_command_goes_on(folder, capsys):
    write_with_hash(
        Layout("tiny").claims("spec_rl"), json.loads(json.dumps(judged([60.0, 2.5, 0.0], {}, looks=(6, 27))))
    )
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(["run-until", "spec_rl", "--hours", "1e-9"])
        assert not end.value.code
        assert read_looks(Layout("tiny").looks("spec_rl")) == (6, 8, 12, 18, 27)
    with pytest.raises(SystemExit) as end:
        main(["run-until", "spec_rl", "--looks", "18,27"])
    assert end.value.code == 2, "looks that were left out are another plan"


def test_a_plan_without_any_verdict_may_change(folder):
    write_looks(Layout("tiny").looks("spec_rl"), (4, 6))
    with pytest.raises(SystemExit) as end:
        main(["run-until", "spec_rl", "--looks", "5,6", "--hours", "1e-9"])
    assert not end.value.code
    assert read_looks(Layout("tiny").looks("spec_rl")) == (5, 6)


def test_a_claim_that_lacks_values_of_its_runs_ends_and_the_others_go_on(folder, monkeypatch, capsys):
    call = run_until._call

    def without_new_runs(options, *rest):
        if not any(text.endswith(f"{REAL['cell-1']}/seed7/scores.json") for text in options):
            call(options, *rest)

    monkeypatch.setattr(run_until, "_call", without_new_runs)
    with pytest.raises(SystemExit) as end:
        main(["run-until", "spec_rl"])
    assert not end.value.code
    assert "no other claim is likely to be decided" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["spec_rl", "--looks", "5,x"], "no list of whole numbers"),
        (["spec_rl", "--looks", "5,40"], "needs more blocks"),
        (["nothing"], "no such paper"),
        (["spec_rl", "--target", "all"], "no such target"),
        (["spec_rl", "--hours", "-1"], "greater than or equal"),
        (["spec_rl", "--snakemake", "'"], "no shell options"),
    ],
)
def test_wrong_requests_end_before_any_run(folder, capsys, options, message):
    with pytest.raises(SystemExit) as end:
        main(["run-until", *options])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not folder
    assert not Layout("tiny").looks("spec_rl").exists()
