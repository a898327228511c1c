"""Every quantity of a run, worked out by hand from records in which no two columns and no two steps are alike."""

import math
import statistics

import pandas as pd
import pytest

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import RUN_QUANTITIES, STEP_QUANTITIES, by_seed, of_steps
from redraft.config.base import STEP_STAGES
from redraft.config.decoding import BLOCK_STARTS
from redraft.errors import UserError
from redraft.train.records import StageClock

EPOCHS = (0, 0, 1, 1, 2, 2, 2)
"""Of the steps; five have drafts, so that their thirds have two, two and one."""
VALUES = [7.0, 1.0, 2.0, 5.0, 4.0, 9.0, 8.0]
"""What each column holds, times a factor of its own."""
WITH_DRAFTS, LAST, SECOND = (2 + 5 + 4 + 9 + 8) / 5, (4 + 9 + 8) / 3, (2 + 5) / 2
MEAN, SUM, MOST = 36 / 7, 36.0, 9.0

COLUMNS = [
    "tokens_decoded",
    "tokens_verified",
    "tokens_reused",
    "prefix_length",
    "full_reuse_ratio",
    "token_age_epochs",
    "reward",
    "fresh_reward",
    "entropy",
    "kl",
    "clip_fraction",
    "distinct_1",
    "self_bleu",
    "rouge_1",
    "informative",
    "response_length",
    "prefix_share",
    "fresh_kl",
    "self_bleu_within",
    *(f"seconds.{stage}" for stage in STEP_STAGES),
    "rollouts",
    "without_correct",
    "replayed",
    "trained_reward",
]
FACTORS = {column: 1 + i for i, column in enumerate(COLUMNS)}
DRAFTS = ("prefix_length", "prefix_share", "full_reuse_ratio")


def times(column, value):
    """A reduced value of a column."""
    return FACTORS[column] * value


SECONDS = sum(FACTORS[f"seconds.{stage}"] for stage in STEP_STAGES)
EXPECTED = {
    "tokens_decoded": times("tokens_decoded", SUM),
    "tokens_verified": times("tokens_verified", SUM),
    "rollout_seconds": times("seconds.rollout", SUM),
    "generation_seconds": sum(times(f"seconds.{stage}", SUM) for stage in ("rollout", "verification", "assembly")),
    "step_seconds": SECONDS * SUM,
    "hours": SECONDS * SUM / 3600,
    **{
        name: times(name, WITH_DRAFTS)
        for name in (
            *DRAFTS,
            "entropy",
            "kl",
            "fresh_kl",
            "clip_fraction",
            "distinct_1",
            "self_bleu",
            "self_bleu_within",
        )
    },
    **{name: times(name, LAST) for name in ("token_age_epochs", "reward", "fresh_reward")},
    "kl_max": times("kl", MOST),
    "clip_fraction_max": times("clip_fraction", MOST),
    "rouge_1_second_epoch": times("rouge_1", SECOND),
    "rouge_1_last_epoch": times("rouge_1", LAST),
    "generation_steps": 7,
    "training_steps": 14,
    "rollouts_per_batch": times("rollouts", SUM) / 14,
    "informative": times("informative", MEAN),
    "response_length": times("response_length", MEAN),
    "reuse_share": FACTORS["tokens_reused"] / (FACTORS["tokens_reused"] + FACTORS["tokens_decoded"]),
    "first_reuse_step": 3,
    "from_half": times("trained_reward", MEAN) - 0.5,
    **{
        f"{name}_{part}": times(name, value)
        for name in ("prefix_length", "prefix_share")
        for part, value in {"early": (2 + 5) / 2, "middle": (4 + 9) / 2, "late": 8}.items()
    },
    "rollout_seconds_first_epoch": times("seconds.rollout", (7 + 1) / 2),
    "rollout_seconds_last_epoch": times("seconds.rollout", LAST),
    "rollout_seconds_reuse_epochs": times("seconds.rollout", WITH_DRAFTS),
    **{f"seconds:{stage}": times(f"seconds.{stage}", MEAN) for stage in STEP_STAGES},
    "seconds:total": SECONDS * MEAN,
}


@pytest.fixture(scope="module")
def runs():
    """One run, its steps in another order than they were taken."""
    lines = [
        {"cell": "a", "seed": 0, "step": i, "epoch": epoch, "training_step": 2 * (i + 1), "updated": True}
        | {column: FACTORS[column] * VALUES[i] for column in COLUMNS}
        | {"seconds.total": SECONDS * VALUES[i]}
        | {name: values[i] for name, values in BLOCKS.items()}
        | (dict.fromkeys(DRAFTS, math.nan) if epoch == 0 else {})
        for i, epoch in enumerate(EPOCHS)
    ]
    steps = pd.DataFrame([*lines[3:], *lines[:3]])
    return Runs(pd.DataFrame([{"cell": "a", "seed": 0}]), steps, pd.DataFrame())


@pytest.mark.parametrize("quantity", RUN_QUANTITIES)
def test_a_quantity_of_a_run_has_the_value_worked_out_here(runs, quantity):
    assert by_seed(runs, quantity, "a") == {0: pytest.approx(EXPECTED[quantity])}


UNSOLVED = FACTORS["without_correct"] - FACTORS["replayed"]
STEP_EXPECTED = {
    "rollout_seconds": [times("seconds.rollout", value) for value in VALUES],
    "generation_seconds": [
        sum(times(f"seconds.{stage}", value) for stage in ("rollout", "verification", "assembly")) for value in VALUES
    ],
    "without_correct_after_reuse": [UNSOLVED * value for value in VALUES],
    "all_correct": [1 - (FACTORS["informative"] + UNSOLVED) * value for value in VALUES],
    "reward": [times("reward", value) for value in VALUES],
    "tokens_per_pass": [1, 0.5, math.nan, math.nan, 4, 3, 4],
    "plain_positions": [
        0.5,
        0,
        0.25 / (0.25 + 0.75 * 1.875),
        math.nan,
        0.5 / (0.5 + 0.5 * 1.3125),
        0.4 / 4,
        0.9 / 1.09,
    ],
    "token_acceptance": [0, 1, 0.5, math.nan, 0.25, 1, 0.9],
    **{f"token_acceptance_from.{start}": [math.nan] * len(VALUES) for start in BLOCK_STARTS},
    "token_acceptance_from.16": [1, 0.5, 0, math.nan, 0.25, 1, 0.9],
}
BLOCKS = {
    "decoding_passes": [7, 2, 0, math.nan, 1, 3, 2],
    "draft_length": [3, 3, 3, 3, 2, 5, 1],
    "speculated_passes": [0.5, 1, 0.75, math.nan, 0.5, 0.6, 0.1],
    "block_efficiency": [1, 4, 1.875, math.nan, 1.3125, 6, 1.9],
    "kept_from.16": [12, 7, 0, math.nan, 5, 5, 9],
    "proposed_from.16": [12, 24, 6, math.nan, 32, 5, 10],
}
"""γ and τ = 1 + α + … + α^γ of the steps, and what blocks that began at 16 to 31 proposed and kept: τ is 4 of 4 blocks,
1 + 7/8 of 8, 1 of 2, 1 + 5/16 of 16, 6 of 1 and 1.9 of 10. Of 10 passes of the sixth step 4 were plain: 4 of 40
positions."""


@pytest.mark.parametrize("quantity", [*STEP_QUANTITIES, "reward"])
def test_a_quantity_of_a_step_has_the_value_worked_out_here(runs, quantity):
    found = of_steps(runs, quantity, "a").sort_values("step")
    assert list(found["epoch"]) == list(EPOCHS)
    assert list(found["value"]) == pytest.approx(STEP_EXPECTED[quantity], nan_ok=True)


def test_a_quantity_of_a_step_that_no_record_holds_is_reduced_as_one_that_a_record_holds(runs):
    assert by_seed(runs, "reuse_epochs:without_correct_after_reuse", "a") == {0: pytest.approx(UNSOLVED * WITH_DRAFTS)}
    assert by_seed(runs, "mean@1-2:without_correct_after_reuse", "a") == {0: pytest.approx(UNSOLVED * 4)}
    assert by_seed(runs, "sum:rollout_seconds", "a") == by_seed(runs, "rollout_seconds", "a")


def test_what_a_caller_does_to_a_quantity_s_values_reaches_no_other_caller(runs):
    by_seed(runs, "reward", "a").clear()
    assert by_seed(runs, "reward", "a") == {0: pytest.approx(EXPECTED["reward"])}
    doubled = Runs(runs.runs, runs.steps.assign(reward=2 * runs.steps["reward"]), runs.scores)
    assert by_seed(doubled, "reward", "a") == {0: pytest.approx(2 * EXPECTED["reward"])}


def test_a_correlation_is_pearson_s_over_the_steps_that_have_both(runs):
    assert by_seed(runs, "correlation:reward:tokens_decoded", "a") == {0: pytest.approx(1)}
    opposite = Runs(runs.runs, runs.steps.assign(entropy=-runs.steps["reward"] + 3), runs.scores)
    assert by_seed(opposite, "correlation:entropy:reward", "a") == {0: pytest.approx(-1)}
    x, y = [7, 1, 2, 4, 9, 8], [1, 4, 1.875, 1.3125, 6, 1.9]
    assert by_seed(runs, "correlation:reward:block_efficiency", "a") == {0: pytest.approx(statistics.correlation(x, y))}
    assert math.isnan(by_seed(runs, "correlation:reward:quantisation_error", "a")[0]), "no run measured it"
    assert math.isnan(by_seed(Runs(runs.runs, runs.steps.assign(kl=2.0), runs.scores), "correlation:kl:reward", "a")[0])
    with pytest.raises(UserError, match="no such quantity of a run"):
        by_seed(runs, "correlation:reward:no_such_number", "a")


def test_what_only_self_speculation_measures_is_nan_of_runs_without_it(runs):
    plain = Runs(runs.runs, runs.steps.drop(columns=list(BLOCKS)), runs.scores)
    for quantity in ("mean:block_efficiency", "mean@2-101:token_acceptance", "max:draft_length"):
        assert math.isnan(by_seed(plain, quantity, "a")[0])
    assert of_steps(plain, "kept_at.1", "a")["value"].isna().all()
    assert of_steps(plain, "tokens_per_pass", "a")["value"].isna().all()
    assert of_steps(plain, "token_acceptance_from.16", "a")["value"].isna().all()
    for quantity in STEP_QUANTITIES:
        assert of_steps(plain, quantity, "a cell without a run").empty


def test_blocks_of_fewer_proposals_than_the_draft_length_have_no_acceptance_of_a_token(runs):
    """The equation of tokens of a block is one of γ proposals; suffixes and n-grams may propose fewer."""
    gamma = runs.steps["draft_length"]
    whole = runs.steps.assign(blocks=10, proposed=10 * gamma)
    fewer = whole.assign(proposed=whole["proposed"] - (runs.steps["step"] == 4))
    for quantity in ("token_acceptance", "token_acceptance_from.16"):
        expected = [*STEP_EXPECTED[quantity][:4], math.nan, *STEP_EXPECTED[quantity][5:]]
        for steps, values in ((whole, STEP_EXPECTED[quantity]), (fewer, expected)):
            found = of_steps(Runs(runs.runs, steps, runs.scores), quantity, "a").sort_values("step")
            assert list(found["value"]) == pytest.approx(values, nan_ok=True)


def test_a_step_in_which_no_pass_speculated_has_no_draft_length(runs):
    """Records have the setting of the control, also if nothing used it."""
    share = runs.steps["speculated_passes"].mask(runs.steps["step"] == 5, 0)  # of 5 proposals, the most
    found = Runs(runs.runs, runs.steps.assign(speculated_passes=share), runs.scores)
    assert by_seed(runs, "max:draft_length", "a") == {0: 5}
    assert by_seed(found, "max:draft_length", "a") == {0: 3}
    assert by_seed(found, "steps_to:2:draft_length", "a") == {0: 1}
    assert by_seed(found, "steps_to:4:draft_length", "a") == {0: math.inf}
    share = runs.steps["speculated_passes"].mask(runs.steps["step"] == 5)  # a step without a decoding pass
    assert by_seed(
        Runs(runs.runs, runs.steps.assign(speculated_passes=share), runs.scores), "max:draft_length", "a"
    ) == {0: 3}
    nothing = Runs(runs.runs, runs.steps.assign(speculated_passes=0.0), runs.scores)
    for quantity in ("mean@1-7:draft_length", "max:draft_length", "max:token_acceptance", "steps_to:2:draft_length"):
        assert math.isnan(by_seed(nothing, quantity, "a")[0])


def test_the_positions_before_speculation_are_those_of_the_longest_response():
    """800 plain passes, then 1,478 blocks of 5 tokens: 9.8 % of 8,190 positions, and 35 % of the passes."""
    steps = pd.DataFrame({"speculated_passes": [1478 / 2278], "block_efficiency": [5.0]})
    assert STEP_QUANTITIES["plain_positions"](steps)[0] == pytest.approx(800 / 8190)
    nothing = pd.DataFrame({"speculated_passes": [0.0], "block_efficiency": [math.nan]})
    assert STEP_QUANTITIES["plain_positions"](nothing)[0] == 1


def test_the_share_of_prompts_that_the_initial_policy_never_solves_is_of_its_probe(tmp_path):
    """One of four prompts has no correct sample; a run whose preset has no probe is left out."""
    outcomes = {0: ["incorrect", "no answer"], 1: ["correct", "incorrect"], 2: ["correct"] * 2, 3: ["correct"] * 2}
    lines = [{"benchmark": "b", "problem": p, "outcome": o} for p, of_prompt in outcomes.items() for o in of_prompt]
    probed = tmp_path / "initial/prompts/model@1/seed1/grades.parquet"
    probed.parent.mkdir(parents=True)
    pd.DataFrame(lines).to_parquet(probed)
    initial = str(tmp_path / "initial/tiny/model@1/seed1/generations.json")
    records = [
        {"cell": "a", "seed": seed, "manifest": "m", "initial": initial, "probe": probe}
        for seed, probe in ((0, "prompts"), (1, ""))
    ]
    runs = Runs(pd.DataFrame(records), pd.DataFrame(), pd.DataFrame())
    assert by_seed(runs, "bin@0-0.02:initial_pass_rate:share", "a") == {0: 0.25}
    assert by_seed(runs, "bin@0.5-1:initial_pass_rate:share", "a") == {0: 0.75}
    assert by_seed(runs, "bin@0-0.02:initial_pass_rate:share", "b") == {}
    earlier = Runs(runs.runs.drop(columns="probe"), runs.steps, runs.scores)
    assert by_seed(earlier, "bin@0-0.02:initial_pass_rate:share", "a") == {}


def test_responses_of_a_run_without_an_update_are_those_of_no_batch(runs):
    none = Runs(runs.runs, runs.steps.assign(training_step=0), runs.scores)
    assert math.isnan(by_seed(none, "rollouts_per_batch", "a")[0])


def test_the_stages_are_those_that_a_step_s_clock_records():
    assert set(StageClock(lambda: 0.0).finish()) == {*STEP_STAGES, "total"}
