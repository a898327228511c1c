"""Tables, speedups and statistics on runs made up here, whose every number can be computed by hand."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import by_seed, noise_by_seed
from redraft.analysis.data.reported_tables import no_reported
from redraft.analysis.data.reported_tables import read_reported as read
from redraft.analysis.data.statistics import Family, corrected, estimate, noise_floor
from redraft.analysis.data.timing import KINDS, StageTimes, of_reported, reported_speedups
from redraft.analysis.tables import render, reported_only
from redraft.analysis.tables.comparison import lines_of, make_table
from redraft.analysis.tables.reported_only import NO_ROW, without_counterpart
from redraft.analysis.tables.table_columns import expand
from redraft.config import CellTable, Column, Experiments, Row
from redraft.config.base import STEP_STAGES
from redraft.errors import UserError
from tests.measured import table_source
from tests.step_records import made_up_scores, made_up_step

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
TABLES = {table.number: table for table in EXPERIMENTS.tables("spec_rl").tables}
REPORTED = ROOT / "experiments/spec_rl"
SPEC = EXPERIMENTS.reported("spec_rl")
TINY = EXPERIMENTS.preset("tiny")
EVERY = EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "tiny").trainer.evaluate_every
STEPS = EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "tiny").steps
PER_EPOCH = 6
BENCHMARKS = {name: benchmark.role for name, benchmark in TINY.benchmarks.items()}
DENOMINATOR = {
    "amc23": 640,
    "aime24": 960,
    "math500": 500,
    "minerva": 272,
    "olympiad": 675,
    "mmlu_stem": 3018,
    "ifeval": 541,
}


def read_reported(folder, number):
    return read(folder, number, SPEC)


def sheet(spec, cells):
    return render.Sheet(spec, spec.columns, cells)


def steps_of(cell, seed, tokens, rollout, verification=0.0):
    """A run of the tiny preset: each step decodes `tokens`, and in epochs with drafts reuses 3 times as many."""
    seconds = {"rollout": rollout, "verification": verification, "reward": 1.0}
    lines = []
    for i in range(STEPS):
        reuse = i >= PER_EPOCH and verification > 0
        tokens_of_step = {"tokens_decoded": tokens, "tokens_reused": 3 * tokens if reuse else 0}
        drafts = {"prefix_length": float(i)} if reuse else {}
        others = {"informative": 0.25, "kl": 0.0}
        lines.append(made_up_step(cell, seed, i, i // PER_EPOCH, seconds, reuse, **tokens_of_step, **drafts, **others))
    return lines


def make_runs(cells, seeds=(0, 1, 2)):
    """Runs of some cells: name to tokens a step, rollout and verification seconds a step, correct answers."""
    steps, scores, lines = [], [], []
    for cell, (tokens, rollout, verification, correct) in cells.items():
        for seed in seeds:
            steps += steps_of(cell, seed, tokens, rollout, verification)
            lines.append(
                {
                    "cell": cell,
                    "seed": seed,
                    "manifest": f"results/tiny/runs/{cell}/{seed}.json",
                    "initial": f"results/tiny/initial/{seed}.json",
                }
            )
            for step in (0, *range(EVERY, STEPS, EVERY), STEPS):
                right = 10 if step == 0 else correct + step + seed
                scores += made_up_scores(cell, seed, step, right, BENCHMARKS, 400)
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


@pytest.fixture(scope="module")
def runs():
    return make_runs({"grpo-vanilla": (400, 8.0, 0.0, 200), "grpo-spec-l0.5": (100, 2.0, 2.0, 210)})


def source(runs, number=None, paper_scale=False):
    reported = no_reported() if number is None or number > 100 else read_reported(REPORTED, number)
    return table_source(runs, reported, EXPERIMENTS, paper_scale=paper_scale)


def made(runs, number, **arguments):
    spec = expand(TABLES[number], TINY.benchmarks, SPEC)
    return spec, make_table(spec, source(runs, number, **arguments))


def cell_of(cells, row, column, group=None):
    chosen = cells[(cells["row"] == row) & (cells["column"] == column)]
    return chosen[chosen["group"] == group].iloc[0] if group else chosen.iloc[0]


# The runs themselves


def test_at_counts_only_the_steps_done_and_the_policy_after_them(runs):
    assert by_seed(runs, "tokens_decoded", "grpo-vanilla") == {seed: 400 * STEPS for seed in (0, 1, 2)}
    assert by_seed(runs, "tokens_decoded", "grpo-vanilla", at=10) == dict.fromkeys((0, 1, 2), 4000)
    assert by_seed(runs, "accuracy:all", "grpo-vanilla", at=10)[1] == pytest.approx(100 * 211 / 400)
    assert by_seed(runs, "accuracy:all", "grpo-vanilla")[1] == pytest.approx(100 * (201 + STEPS) / 400)
    assert by_seed(runs, "accuracy:all", "grpo-vanilla", at=0)[1] == 2.5
    assert by_seed(runs, "accuracy:all", "grpo-vanilla", at=11) == {}, "no policy was evaluated there"


def test_by_training_steps_a_step_counts_for_the_update_that_it_leads_to():
    """Of six steps of 100 tokens the second, third and fifth have an update batch; the last policy is the fifth's."""
    updated = (False, True, True, False, True, False)
    steps = [
        {"cell": "a", "seed": 0, "step": i, "training_step": sum(updated[: i + 1]), "updated": u, "tokens_decoded": 100}
        for i, u in enumerate(updated)
    ]
    scores = [
        {"cell": "a", "seed": 0, "step": done, "benchmark": "one", "role": "in", "correct": right, "total": 10}
        for done, right in ((0, 1), (2, 2), (3, 3), (5, 5), (6, 6))
    ]
    runs = Runs(*map(pd.DataFrame, ([{"cell": "a", "seed": 0}], steps, scores))).by("training_steps")
    assert [by_seed(runs, "tokens_decoded", "a", at)[0] for at in (1, 2, 3)] == [200, 300, 500]
    assert [by_seed(runs, "accuracy:all", "a", at)[0] for at in (0, 1, 2, 3)] == [10, 20, 30, 50]


def test_rows_along_training_are_those_of_the_cell_s_clock(runs):
    """Before a run is finished, the paper's; then those that it reached, without an end between two."""
    cell, table = "dapo-vanilla", TABLES[24]
    table = table.model_copy(update={"rows": [row for row in table.rows if row.cell == cell and row.at == "end"]})
    assert [line.at for line in lines_of(table, source(runs, 24))] == [5, 10, 15]
    finished = make_runs({cell: (400, 8.0, 0.0, 200)})
    steps = finished.steps.assign(updated=finished.steps["step"] % 2 == 1)
    steps["training_step"] = (steps["step"] + 1) // 2
    done = {0: 0, 10: 10, 20: 20, STEPS: STEPS - 2}
    scores = finished.scores.assign(step=finished.scores["step"].map(done))
    lines = lines_of(table, source(Runs(finished.runs, steps, scores), 24))
    assert [(line.at, line.share, line.clock) for line in lines] == [
        (5, Fraction(5, STEPS), "training_steps"),
        (10, Fraction(10, STEPS), "training_steps"),
    ]


def test_the_last_policy_counts_even_if_an_earlier_one_was_better(runs):
    scores = runs.scores.copy()
    scores.loc[scores["step"] == 10, "correct"] = 400
    changed = Runs(runs.runs, runs.steps, scores)
    assert by_seed(changed, "accuracy:all", "grpo-vanilla") == by_seed(runs, "accuracy:all", "grpo-vanilla")


def test_quantities_of_a_run_by_hand(runs):
    def of(quantity, cell="grpo-spec-l0.5", at=None):
        return by_seed(runs, quantity, cell, at)[0]

    assert of("reuse_share") == pytest.approx(0.75)
    assert of("hours") == pytest.approx(STEPS * (2 + 2 + 1) / 3600)
    assert (of("seconds:rollout"), of("seconds:verification"), of("seconds:total")) == (2, 2, 5)
    assert (of("generation_steps"), of("training_steps"), of("generation_steps", at=7)) == (STEPS, STEPS, 7)
    assert (of("informative"), of("response_length")) == (0.25, 20)
    assert of("first_reuse_step") == PER_EPOCH + 1
    # Prefix lengths are the numbers of the steps, 6 to 29 here: thirds of eight.
    thirds = [of(f"prefix_length_{name}") for name in ("early", "middle", "late")]
    assert STEPS == 30
    assert thirds == [9.5, 17.5, 25.5]
    assert math.isnan(of("prefix_length_early", "grpo-vanilla"))
    assert math.isnan(of("first_reuse_step", "grpo-vanilla"))


def test_epochs_of_rollout_seconds_and_a_last_one_cut_short(runs):
    steps = runs.steps[(runs.steps["cell"] == "grpo-vanilla") & (runs.steps["step"] < 15)].copy()
    steps["seconds.rollout"] = steps["step"].astype(float)  # epochs are 0-5, 6-11 and 12-14
    cut = Runs(runs.runs, steps, runs.scores)
    expected = {"first": 2.5, "last": 13.0}
    for epoch, value in expected.items():
        assert by_seed(cut, f"rollout_seconds_{epoch}_epoch", "grpo-vanilla")[0] == value
    assert by_seed(cut, "rollout_seconds_reuse_epochs", "grpo-vanilla")[0] == 10.0


def test_every_column_of_every_table_has_a_value_or_cannot_have_one(runs):
    """Values of every quantity are in test_run_quantities.py; without drafts some are none of a vanilla run's."""
    columns = {
        c.model_dump_json(): c for table in TABLES.values() for c in expand(table, TINY.benchmarks, SPEC).columns
    }
    table = TABLES[3].model_copy(update={"columns": list(columns.values()), "rows": TABLES[3].rows[:1]})
    cells = make_table(table, source(runs, 3))
    assert set(cells["verdict"]) == {"baseline", "not comparable", "not applicable"}
    without = cells["verdict"] == "not applicable"
    assert (cells["reproduced"].isna() == without).all()
    idle = {f"{stage}_s" for stage in STEP_STAGES if stage not in ("rollout", "reward")}
    assert set(cells.loc[without, "column"]) == idle | {"prefix_length", "full_reuse_ratio", "first_reuse_step"}


# Statistics


def test_the_interquartile_mean_cuts_a_quarter_at_each_end():
    assert estimate({0: 1.0, 1: 2.0, 2: 3.0, 3: 100.0}).iqm == 2.5
    assert estimate({0: 1.0, 1: 2.0, 2: 9.0}).iqm == 4.0, "fewer than four are all kept"
    assert math.isnan(estimate({}).iqm)


def test_p_values_by_hand():
    # Mean 2, standard error 1/sqrt(3): t = 3.464 with two degrees of freedom.
    assert estimate({0: 1.0, 1: 2.0, 2: 3.0}).p_value(0) == pytest.approx(0.0742, abs=1e-4)
    assert estimate({0: 1.0, 1: 2.0, 2: 3.0}).p_value(2) == 1
    assert math.isnan(estimate({0: 1.0}).p_value(0))
    assert estimate({0: 1.0, 1: 1.0, 2: 1.0}).p_value(1) == 1
    assert estimate({0: 1.0, 1: 1.0, 2: 1.0}).p_value(0) == 0
    assert estimate({0: 0.1 + 0.2, 1: 0.1 + 0.2, 2: 0.1 + 0.2}).p_value(0.3) == 1, "equal up to rounding"
    assert estimate({0: 0.1 + 0.2 - 0.3, 1: 0.0, 2: 0.0}).p_value(0) == 1
    assert estimate({0: 0.1 + 0.2, 1: 0.3, 2: 0.3}).p_value(0.2) == 0


@pytest.mark.parametrize(
    ("values", "blocks", "log"),
    [
        ({0: 0.5, 1: 0.5}, {}, False),
        ({0: 0.5, 1: 0.5}, {}, True),
        ({0: 0.1 + 0.2, 1: 0.3}, {}, False),
        ({0: 0.0, 1: 0.0, 2: math.nan}, {}, False),
        ({0: 1.0, 1: 2.0, 5: 2.0, 6: 1.0}, {0: 0, 5: 0, 1: 1, 6: 1}, False),
    ],
)
def test_two_equal_seeds_or_blocks_leave_no_variance_to_test(values, blocks, log):
    found = estimate(values, blocks, log)
    assert found.is_constant_pair
    assert math.isnan(found.p_value(0.25))
    assert math.isnan(found.interval.low)
    assert len(Family([(values, 0.25, log)], blocks)) == 0


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.integers(-50, 50))
def test_an_uncorrected_p_value_is_below_5_percent_just_where_the_tested_interval_leaves_the_value_out(values, against):
    found = estimate(dict(enumerate(values)))
    p = found.p_value(against)
    if abs(p - 0.05) > 1e-6:
        assert (p < 0.05) == (against not in found.interval)


def test_benjamini_and_hochberg_by_hand():
    assert corrected([0.01, math.nan, 0.04, 0.03])[0] == pytest.approx(0.03)
    assert corrected([0.01, math.nan, 0.04, 0.03])[2:] == pytest.approx([0.04, 0.04])
    assert math.isnan(corrected([math.nan])[0])
    assert corrected([]) == []


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=12))
def test_a_correction_never_makes_a_p_value_smaller_and_keeps_the_order(p_values):
    after = corrected(p_values)
    assert [math.isnan(p) for p in after] == [math.isnan(p) for p in p_values]
    pairs = sorted((p, q) for p, q in zip(p_values, after, strict=True) if not math.isnan(p))
    assert all(p <= q + 1e-12 and q <= 1 for p, q in pairs)
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)


def test_the_noise_floor_is_binomial():
    assert noise_floor({"a": (50.0, 100)}) == 5.0
    assert noise_floor({"a": (50.0, 100), "b": (100.0, 100)}) == 2.5
    assert math.isnan(noise_floor({}))


def test_a_difference_of_two_of_the_paper_s_averages_is_noisy_by_most_of_a_point():
    table = pd.DataFrame(read_reported(REPORTED, 1).lines)
    noises = []
    for _, part in table[table["method"] != "base"].groupby(["model", "algorithm"]):
        rows = [dict(zip(row["column"], row["value"], strict=True)) for _, row in part.groupby("method")]
        assert len(rows) == 2
        noises.append(math.hypot(*(noise_floor({b: (row[b], n) for b, n in DENOMINATOR.items()}) for row in rows)))
    assert len(noises) == 9
    assert 0.65 < min(noises) < max(noises) < 1.05
    assert sum(noises) / 9 == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize(("effect", "shown"), [(3.14159, "3.1"), (math.inf, "∞"), (math.nan, None)])
def test_the_details_of_a_number_say_what_it_could_show(runs, effect, shown):
    spec, cells = made(runs, 3)
    cells["detectable"] = math.nan
    chosen = (cells["row"] == "+ SPEC-RL, ℓ = e^0.5") & (cells["column"] == "average_difference")
    assert chosen.sum() == 1
    cells.loc[chosen, "detectable"] = effect
    found = re.findall(r"<dt>Could show</dt><dd>([^<]*)</dd>", render.html(sheet(spec, cells), Path("results")))
    assert found == ([shown] if shown else [])


def test_a_difference_in_accuracy_is_also_a_share_of_the_baseline_s_gain_beside_the_paper_s(runs):
    spec, cells = made(runs, 1)
    cell = cell_of(cells, "GRPO + SPEC-RL", "average_difference")
    scores = runs.scores.assign(accuracy=100 * runs.scores["correct"] / runs.scores["total"])
    mean = scores.groupby(["cell", "step"])["accuracy"].mean()
    gains = [mean[name, STEPS] - mean[name, 0] for name in ("grpo-spec-l0.5", "grpo-vanilla")]
    assert cell["baseline_gain"] == pytest.approx(gains[1])
    assert cell["gain_kept"] == pytest.approx(gains[0] / gains[1])
    assert cell["gain_kept_low"] <= cell["gain_kept"] <= cell["gain_kept_high"]
    printed = pd.DataFrame(read_reported(REPORTED, 1).lines).query("model == 'qwen3-1.7b-base' and column == 'avg'")
    base, vanilla, method = (
        printed.query(f"method == '{name}' and algorithm in ('', 'grpo')")["value"].mean()
        for name in ("base", "vanilla", "spec-rl")
    )
    assert cell["gain_kept_reported"] == pytest.approx((method - base) / (vanilla - base))
    assert set(cells.loc[cells["baseline_gain"].notna(), "column"]) == {
        "math_difference",
        "ood_difference",
        "average_difference",
    }
    share, gain = cell["gain_kept"], cell["baseline_gain"]
    assert f"<dt>Gain kept</dt><dd>{100 * share:.0f} % [" in (page := render.html(sheet(spec, cells), Path("results")))
    assert f"of the {gain:.1f} points that the baseline gained (paper {100 * cell['gain_kept_reported']:.0f} %)" in page


def test_noise_of_means_and_differences_by_hand(runs):
    spec, cells = made(runs, 3)
    name = next(iter(TINY.benchmarks))
    shares = [(200 + STEPS + seed) / 400 for seed in (0, 1, 2)]
    one = math.sqrt(sum(p * (1 - p) / 400 for p in shares)) / 3
    assert cell_of(cells, "GRPO", name)["noise"] == pytest.approx(100 * one)
    assert noise_by_seed(runs, f"accuracy:{name}", "grpo-vanilla")[0] == pytest.approx(
        100 * math.sqrt(shares[0] * (1 - shares[0]) / 400)
    )
    other = [(210 + STEPS + seed) / 400 for seed in (0, 1, 2)]
    both = math.sqrt(sum(p * (1 - p) / 400 for p in [*shares, *other])) / 3 / math.sqrt(len(TINY.benchmarks))
    label = "+ SPEC-RL, ℓ = e^0.5"
    assert cell_of(cells, label, "average_difference")["noise"] == pytest.approx(100 * both)
    assert math.isnan(cell_of(cells, label, "speedup")["noise"])
    noise = f"<dt>Noise of sampling</dt><dd>± {cell_of(cells, 'GRPO', name)['noise']:.1f}</dd>"
    page = render.html(sheet(spec, cells), Path("results"))
    assert noise in page
    assert "± –" not in page


# Speedups


def test_all_kinds_of_speedup_by_hand():
    baseline = StageTimes(total=20, rollout=12, verification=0, assembly=0, hours=10)
    method = StageTimes(total=10, rollout=4, verification=1, assembly=1, hours=4)
    found = {name: kind(baseline, method) for name, kind in KINDS.items()}
    assert found == {"printed": 3, "honest": 2, "step": 2, "end_to_end": 2.5, "controlled": pytest.approx(20 / 14)}


def test_a_stage_without_a_reported_cell_took_no_time():
    times = of_reported({"total_s": 9.0, "rollout_s": 4.0, "end_to_end_h": 1.0}, SPEC)
    assert times == StageTimes(total=9, rollout=4, verification=0, assembly=0, hours=1)
    assert of_reported({"speedup": 2.0}, SPEC) is None


def test_the_reported_table_4_is_worth_less_than_it_prints():
    """Three rows and the means, worked out by hand from the printed times."""
    found = reported_speedups(read_reported(REPORTED, 4), SPEC.times).set_index(["model", "algorithm"])
    mean = found.loc[("mean", "")]
    assert {kind: round(mean[kind], 2) for kind in KINDS} == {
        "printed": 2.31,
        "honest": 1.94,
        "step": 1.43,
        "end_to_end": 1.44,
        "controlled": 1.41,
    }
    rows = {
        ("qwen3-1.7b-base", "grpo"): (2.29, 1.95, 1.46, 1.43),
        ("qwen3-8b-base", "dapo"): (2.88, 2.37, 1.88, 1.71),
        ("llama-3.2-1b-instruct", "ppo"): (2.01, 1.71, 1.27, 1.26),
    }
    for key, expected in rows.items():
        values = found.loc[key]
        assert [round(values[k], 2) for k in ("printed", "honest", "end_to_end", "controlled")] == list(expected)
    assert len(found) == 10


def test_reported_speedups_are_labelled_as_such():
    found = reported_speedups(read_reported(REPORTED, 4), SPEC.times)
    for text in reported_only.speedups_texts(found, 4, "id").values():
        assert "computed from the numbers that the paper reports, nothing reproduced" in text
        assert "2.31" in text


def test_table_4_of_runs_by_hand(runs):
    spec, cells = made(runs, 4)
    expected = {"printed": 4, "honest": 2, "step": 9 / 5, "end_to_end": 9 / 5, "controlled": 9 / 5}
    group = "Qwen3-1.7B-Base"
    for kind, value in expected.items():
        cell = cell_of(cells, "GRPO + SPEC-RL", f"speedup_{kind}", group)
        assert cell["reproduced"] == pytest.approx(value)
        assert cell_of(cells, "GRPO", f"speedup_{kind}", group)["verdict"] == "baseline"
    assert cell_of(cells, "GRPO + SPEC-RL", "speedup_honest", group)["reported"] == pytest.approx(309.9 / 158.8)
    assert cell_of(cells, "GRPO + SPEC-RL", "total_difference", group)["reproduced"] == -4
    assert math.isnan(cell_of(cells, "GRPO + SPEC-RL", "total_difference", group)["reported"]), "seconds have a scale"
    values = cell_of(cells, "GRPO + SPEC-RL", "values_s", group)
    assert (values["verdict"], values["n_seeds"]) == ("not applicable", 0)
    assert cell_of(cells, "GRPO", "verification_s", group)["verdict"] == "not applicable"
    assert cell_of(cells, "GRPO + SPEC-RL", "verification_s", group)["reproduced"] == 2
    text = render.markdown(sheet(spec, cells))
    line = next(line for line in text.splitlines() if line.startswith("| GRPO "))
    assert "–" in line
    assert "**LLaMA-3.2-1B-Instruct**" in text


def test_the_mean_row_needs_all_rows_and_leaves_the_baselines_out(runs):
    _, cells = made(runs, 4)
    mean = cell_of(cells, "Mean", "speedup_printed")
    assert mean["verdict"] == "missing", "eight of nine rows were not run"
    assert mean["reported"] == pytest.approx(2.3134, abs=1e-4)
    spec_rows = [row for row in TABLES[4].rows if row.cell in ("grpo-vanilla", "grpo-spec-l0.5")]
    other = spec_rows[1].model_copy(update={"label": "the other", "baseline": "grpo-vanilla", "cell": "grpo-spec-l0"})
    table = expand(TABLES[4].model_copy(update={"rows": [*spec_rows, other]}), TINY.benchmarks, SPEC)
    three = make_runs(
        {"grpo-vanilla": (9, 8.0, 0.0, 9), "grpo-spec-l0.5": (9, 2.0, 2.0, 9), "grpo-spec-l0": (9, 4.0, 1.0, 9)}
    )
    mean = cell_of(make_table(table, source(three, 4)), "Mean", "speedup_printed")
    assert (mean["reproduced"], mean["n_seeds"]) == (pytest.approx(3.0), 3)


def test_an_unknown_speedup_is_named(runs):
    with pytest.raises(ValidationError, match="no such speedup(.|\n)*lucky"):
        Column(name="x", title="x", quantity="speedup:lucky")
    column = Column.model_construct(name="x", title="x", quantity="speedup:lucky")
    table = CellTable.model_construct(
        number=104, title="t", baseline="grpo-vanilla", columns=[column], rows=[Row(label="a", cell="grpo-vanilla")]
    )
    with pytest.raises(UserError, match="no such speedup(.|\n)*lucky(.|\n)*speedup:honest"):
        make_table(table, source(runs))


# Trajectories, groups and base rows


def test_a_trajectory_has_a_row_a_policy_and_the_paper_s_at_the_same_share_of_a_run(runs):
    spec, cells = made(runs, 16)
    assert list(dict.fromkeys(cells["row"])) == [
        "Base Model",
        "GRPO @ 10",
        "+ SPEC-RL @ 10",
        "GRPO @ 20",
        "+ SPEC-RL @ 20",
        "GRPO @ 30",
        "+ SPEC-RL @ 30",
    ]
    # 10 of 30 steps stand beside 30 of 90.
    early = cell_of(cells, "+ SPEC-RL @ 10", "tokens_relative")
    assert (early["reproduced"], early["reported"]) == (0.25, pytest.approx(85.1 / 187.7))
    assert cell_of(cells, "+ SPEC-RL @ 10", "speedup")["reported"] == 1.85
    assert cell_of(cells, "+ SPEC-RL @ 30", "speedup")["reported"] == 2.29
    assert cell_of(cells, "+ SPEC-RL @ 20", "tokens_m")["reproduced"] == pytest.approx(20 * 100e-6)
    assert cell_of(cells, "+ SPEC-RL @ 20", "average_difference")["reproduced"] == pytest.approx(2.5)
    assert "+ SPEC-RL @ 20" in render.markdown(sheet(spec, cells))


def test_nothing_reported_stands_beside_a_share_that_the_paper_does_not_have():
    frame, cell = read_reported(REPORTED, 16), EXPERIMENTS.cell("spec_rl/grpo-spec-l0.5")
    assert frame.row(cell, at=Fraction(1, 9))["speedup"] == 1.41
    assert frame.row(cell, at=Fraction(1, 10)) == {}
    assert frame.row(cell, at=Fraction(1, 7)) == {}
    assert frame.row(cell)["speedup"] == frame.row(cell, at=Fraction(1))["speedup"] == 2.29


def test_dapo_is_compared_by_its_training_steps():
    frame, cell = read_reported(REPORTED, 25), EXPERIMENTS.cell("spec_rl/8b-dapo-spec-l0.15")
    key = dict(zip(SPEC.row, frame.key(cell, at=Fraction(25, 90), clock="training_steps"), strict=True))
    assert (key["step"], key["gen_step"]) == ("25", "50")
    assert frame.key(cell, at=Fraction(1), clock="training_steps") is None, "it has 40"
    assert dict(zip(SPEC.row, frame.key(cell), strict=True))["gen_step"] == "82"


def test_speedups_along_training_are_the_paper_s_up_to_that_step():
    """Tokens of a trajectory grow and its last speedup is the whole run's in Table 1: both are cumulative."""
    last = EXPERIMENTS.cell("spec_rl/grpo-spec-l0.5")
    whole, along = read_reported(REPORTED, 1).row(last), read_reported(REPORTED, 16)
    assert along.row(last, at=Fraction(1)) == whole
    tokens = [along.row(last, at=Fraction(i, 9))["tokens_m"] for i in range(1, 10)]
    assert tokens == sorted(tokens)


def test_base_rows_have_the_initial_policy_s_accuracies_and_nothing_else(runs):
    _, cells = made(runs, 1, paper_scale=True)
    group = "Qwen3-1.7B-Base"
    name = next(iter(TINY.benchmarks))
    assert cell_of(cells, "Base Model", name, group)["reproduced"] == 2.5
    tokens = cell_of(cells, "Base Model", "tokens_m", group)
    assert (tokens["verdict"], math.isnan(tokens["reproduced"])) == ("not applicable", True)
    frame, cell = read_reported(REPORTED, 1), EXPERIMENTS.cell("spec_rl/grpo-vanilla")
    assert frame.row(cell, at=Fraction(0))["avg"] == 22.3
    assert read_reported(REPORTED, 24).row(cell, at=Fraction(0))["avg"] == 22.3


def test_rows_of_groups_are_compared_with_their_own_baseline(runs):
    cells = {
        "grpo-vanilla": (400, 8.0, 0.0, 9),
        "grpo-spec-l0.5": (100, 2.0, 2.0, 9),
        "ppo-vanilla": (600, 8.0, 0.0, 9),
        "ppo-spec-l0.3": (300, 2.0, 2.0, 9),
    }
    _, made_cells = made(make_runs(cells), 1)
    group = "Qwen3-1.7B-Base"
    ppo = cell_of(made_cells, "PPO + SPEC-RL", "tokens_relative", group)
    assert (ppo["reproduced"], ppo["reported"]) == (0.5, pytest.approx(230.8 / 565.1))
    assert ppo["manifests"].split()[-1].startswith("results/tiny/runs/ppo-vanilla")
    assert cell_of(made_cells, "PPO", "tokens_relative", group)["verdict"] == "baseline"
    assert cell_of(made_cells, "PPO", "tokens_relative", "Qwen3-8B-Base")["verdict"] == "missing"


def test_headings_stand_above_their_groups_in_every_format(runs):
    spec, cells = made(runs, 6)
    whole = sheet(spec, cells)
    text, tex, page = render.markdown(whole), render.latex(whole), render.html(whole, Path("results"))
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:] == [
        "**DeepMath-6K**",
        "GRPO",
        "GRPO + SPEC-RL",
        "**SimpleRL-8K**",
        "GRPO",
        "GRPO + SPEC-RL",
    ]
    assert tex.count("{l}{\\emph{") == 2
    assert page.count('class="group') == 2


def test_a_table_beyond_the_paper_says_so_and_has_nothing_reported(runs):
    for number in (101, 102, 103, 104):
        spec, cells = made(runs, number)
        assert cells["reported"].isna().all()
        assert render.markdown(sheet(spec, cells)).startswith(f"**Extra {number - 100}.**")
    _, cells = made(runs, 104)
    assert cell_of(cells, "SPEC-RL, 6K", "first_reuse_step")["reproduced"] == PER_EPOCH + 1
    assert cell_of(cells, "GRPO, 6K", "first_reuse_step")["verdict"] == "not applicable", "there are no drafts"
    assert cell_of(cells, "SPEC-RL, 2K", "first_reuse_step")["verdict"] == "missing"


# The correction in a table


def test_a_verdict_rests_on_the_p_value_corrected_over_the_table(runs):
    """Two comparisons of one column; p is 0.0353 in one and about 0.9 in the other, so the first becomes 0.07."""
    accuracy = {"name": "d", "title": "d", "quantity": "accuracy:all", "relative": "difference", "reported": ["avg"]}
    rows = [Row(label=label, cell=f"grpo-{label}") for label in ("vanilla", "spec-l0.5", "spec-l0")]
    table = CellTable(number=3, title="t", baseline="grpo-vanilla", columns=[Column(**accuracy)], rows=rows)
    both = make_runs(dict.fromkeys(("grpo-vanilla", "grpo-spec-l0.5", "grpo-spec-l0"), (9, 8.0, 0.0, 100)))
    gains = {"grpo-spec-l0.5": (4, 8, 6), "grpo-spec-l0": (-40, 42, 1)}
    for (cell, seed), part in both.scores.groupby(["cell", "seed"]):
        if cell in gains:
            last = part.index[part["step"] > 0]
            both.scores.loc[last, "correct"] += gains[cell][seed]
    cells = make_table(table, source(both, 3)).set_index("row")
    assert cells.loc["spec-l0.5", "p"] == pytest.approx(0.0353, abs=1e-3)
    assert cells.loc["spec-l0.5", "p_corrected"] == pytest.approx(2 * cells.loc["spec-l0.5", "p"])
    assert cells.loc["spec-l0.5", "low"] > 0
    assert cells.loc["spec-l0.5", "verdict"] == "inconclusive"
    assert math.isnan(cells.loc["vanilla", "p"])
    alone = make_table(table.model_copy(update={"rows": rows[:2]}), source(both, 3)).set_index("row")
    assert alone.loc["spec-l0.5", "verdict"] in ("agrees", "same direction")


# What the tables declare


def test_the_tables_of_the_paper_are_all_there():
    assert list(TABLES) == [*range(1, 28), 101, 102, 103, 104]


@pytest.mark.parametrize("number", range(1, 28))
def test_every_reported_row_has_a_row_of_the_file_where_the_paper_evaluates(number):
    """Structure only: a run with the paper's steps, and an update in each, meets every row, DAPO's too."""
    frame, table = read_reported(REPORTED, number), TABLES[number]
    met = set()
    for row in table.rows:
        cell = EXPERIMENTS.cell(f"spec_rl/{row.cell}")
        total = 100 if cell.data == "simplerl-8k" else 90
        trainer = EXPERIMENTS.run(cell.id, 0, "tiny").trainer
        every = 5 if "dapo" in row.cell else 10
        if row.at == "start":
            shares = [Fraction(0)]
        else:
            shares = [Fraction(s, total) for s in range(every, total + 1, every)] if table.kind == "steps" else [None]
        met |= {frame.key(cell, row.reported, share, trainer.evaluation_clock) for share in shares}
    assert met - {None} == set(frame.rows)


def test_rows_without_a_counterpart_are_listed_with_the_reason(runs):
    reported = {number: read_reported(REPORTED, number) for number in (3, 16, 17)}
    missing = without_counterpart({n: TABLES[n] for n in (3, 16)}, source(runs), reported)
    third = missing[missing["table"] == 3]
    assert set(third["cell"]) == {f"grpo-spec-{x}" for x in ("l0", "l0.2", "l0.8", "l2", "linf")}
    assert set(third["reason"]) == {"its cell was not run"}
    along = missing[missing["table"] == 16]
    assert set(along["step"]) == {"10", "20", "40", "50", "70", "80"}, "30, 60 and 90 are thirds of a run"
    assert along["reason"].str.contains("evaluated after 10, 20, 30 of 30 steps").all()
    assert set(missing.loc[missing["table"] == 17, "reason"]) == {NO_ROW}
    assert len(missing[missing["table"] == 17]) == 19


def test_a_preset_without_the_model_is_the_reason(runs):
    smoke = table_source(runs, no_reported(), EXPERIMENTS, preset="smoke")
    missing = without_counterpart({2: TABLES[2]}, smoke, {2: read_reported(REPORTED, 2)})
    assert set(missing["cell"]) == {"grpo-random", "grpo-delayed-l0.5"}
    without = {name: replace(cell, lacks_run="no model") for name, cell in smoke.resolved.cells.items()}
    source = replace(smoke, resolved=replace(smoke.resolved, cells=without))
    lines = lines_of(TABLES[7].model_copy(update={"rows": TABLES[7].rows[1:]}), source)
    assert not any(line.known for line in lines)


def test_the_list_of_rows_without_a_counterpart_is_readable(runs):
    reported = {16: read_reported(REPORTED, 16)}
    missing = without_counterpart({16: TABLES[16]}, source(runs), reported)
    text = reported_only.counterparts_markdown(missing, reported, "tiny")
    assert "12 of the 19 reported rows have none" in text
    assert "10, 20, 40, 50, 70, 80" in text
