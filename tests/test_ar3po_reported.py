"""Consistency proof of the transcribed AR3PO tables in experiments/ar3po/reported (the paper's own numbers).

All printed averages and cost reductions follow from the other numbers of their rows. Scores prove nothing by their
denominators: avg@8 of 272 problems and more and avg@64 of 30 reach every tenth of a point.
"""

from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

REPORTED = Path(__file__).parents[1] / "experiments" / "ar3po" / "reported"
KEY = ["model", "algorithm", "method", "replay"]
SCORES = ["math500", "minerva", "olympiad", "aime24"]
COSTS = ["prompts", "rollouts_per_prompt", "rollouts", "cost_reduction"]
QWEN, LLAMA = "qwen2.5-7b", "llama-3.1-8b-instruct"
METHODS = [("grpo", "vanilla", ""), ("dapo", "vanilla", ""), ("grpo", "ar3po", "option-2")]
DAPO, AR3PO = METHODS[1], METHODS[2]
REPLAYS = ["direct-replay", "option-1", "option-2"]

Row = dict[str, Decimal]


@cache
def rows(number: int) -> dict[tuple[str, ...], Row]:
    """Values by column of every row of a table, as they are printed."""
    frame = pd.read_csv(REPORTED / f"table{number:02d}.csv", dtype=str, keep_default_na=False)
    assert list(frame.columns) == [*KEY, "column", "value"]
    assert not frame.duplicated([*KEY, "column"]).any()
    return {
        key: dict(zip(part["column"], map(Decimal, part["value"]), strict=True))
        for key, part in frame.groupby(KEY, sort=False)
    }


def rounded(value: Decimal) -> Decimal:
    """To one decimal, halves up, as the paper rounds 26.45 and 27.75."""
    return value.quantize(Decimal("0.1"), ROUND_HALF_UP)


def mean(row: Row) -> Decimal:
    return sum((row[name] for name in SCORES), Decimal(0)) / len(SCORES)


def test_the_tables_have_the_paper_s_rows_and_columns():
    assert [file.name for file in sorted(REPORTED.iterdir())] == ["table01.csv", "table02.csv"]
    assert list(rows(1)) == [(model, *method) for model in (QWEN, LLAMA) for method in METHODS]
    assert {tuple(row) for row in rows(1).values()} == {(*SCORES, "avg", *COSTS)}
    assert list(rows(2)) == [(QWEN, "grpo", "ar3po", replay) for replay in REPLAYS]
    assert {tuple(row) for row in rows(2).values()} == {(*SCORES, "avg")}


@pytest.mark.parametrize("number", [1, 2])
def test_every_average_is_the_mean_of_its_row_to_the_printed_precision(number):
    assert {key: rounded(mean(row)) for key, row in rows(number).items()} == {
        key: row["avg"] for key, row in rows(number).items()
    }


def test_rollouts_of_a_step_are_prompts_times_responses():
    for row in rows(1).values():
        assert row["rollouts"] == row["prompts"] * row["rollouts_per_prompt"]


@pytest.mark.parametrize("model", [QWEN, LLAMA])
def test_every_cost_reduction_is_the_ratio_of_rollouts_to_dapo_s(model):
    dapo = rows(1)[model, *DAPO]
    assert dapo["rollouts"] == 1536 * 8
    found = [rounded(dapo["rollouts"] / rows(1)[model, *method]["rollouts"]) for method in METHODS]
    assert found == [rows(1)[model, *method]["cost_reduction"] for method in METHODS]
    assert found[:2] == [Decimal("3.0"), Decimal("1.0")]


def test_responses_of_ar3po_lie_between_one_stage_and_two_and_give_the_share_of_the_second():
    """Two stages of 4: a mean of 4 + 4q responses, q the share of prompts without a correct one among the first 4."""
    shares = {model: (rows(1)[model, *AR3PO]["rollouts_per_prompt"] - 4) / 4 for model in (QWEN, LLAMA)}
    assert shares == {QWEN: Decimal("0.425"), LLAMA: Decimal("0.675")}


def test_the_two_tables_agree_on_the_row_that_both_have():
    both = rows(2)[QWEN, "grpo", "ar3po", "option-2"]
    assert both == {name: rows(1)[QWEN, *AR3PO][name] for name in both}


def test_what_the_text_says_of_single_benchmarks_is_in_the_tables():
    """Option I, "which shows better performance on difficult problems", leads on AIME 2024 alone and by 1.3 points."""
    one, two = (rows(2)[QWEN, "grpo", "ar3po", replay] for replay in REPLAYS[1:])
    assert one["aime24"] - two["aime24"] == Decimal("1.3")
    assert [name for name in SCORES if one[name] > two[name]] == ["aime24"]
    ahead = {
        model: [name for name in SCORES if rows(1)[model, *AR3PO][name] > rows(1)[model, *METHODS[0]][name]]
        for model in (QWEN, LLAMA)
    }
    assert ahead == {QWEN: ["math500", "olympiad", "aime24"], LLAMA: ["math500", "olympiad", "aime24"]}, "not Minerva"
