"""Consistency proof of the transcribed EfficientRollout tables in experiments/efficient_rollout/reported.

A printed number stands for all that round to it, so what follows from rounded numbers follows within an interval.
"""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from redraft.selfspec.roofline import block_efficiency

ROOT = Path(__file__).parents[1]
REPORTED = ROOT / "experiments/efficient_rollout/reported"
KEY = ["model", "reuse", "schedule", "decoding", "toggle", "draft_length", "bits"]
QWEN_7B, QWEN_14B, LLAMA = MODELS = ("qwen2.5-7b", "qwen2.5-14b", "llama-3.1-8b-instruct")
METHODS = {"ar": 2, "history": 5, "auxiliary": 8, "self-sd": 8, "efficient": 8}
"""Rows of Table 2 and their numbers."""


@cache
def rows(number):
    """Values by column of every row of a table, as they are printed."""
    frame = pd.read_csv(REPORTED / f"table{number:02d}.csv", dtype=str, keep_default_na=False)
    assert list(frame.columns) == [*KEY, "column", "value"]
    assert not frame.duplicated([*KEY, "column"]).any()
    return {key: dict(zip(part["column"], part["value"], strict=True)) for key, part in frame.groupby(KEY, sort=False)}


def method_of(key):
    _, reuse, _, decoding, toggle, *_ = key
    if reuse == "history":
        return "history"
    return {"ar": "ar", "eagle3": "auxiliary"}.get(decoding) or {"always": "self-sd", "roofline": "efficient"}[toggle]


@cache
def main():
    """Rows of Table 2 by model and method."""
    return {(key[0], method_of(key)): row for key, row in rows(2).items()}


def interval(text):
    """Lowest and highest number that is printed so."""
    half = 0.5 * 10 ** -len(text.partition(".")[2])
    return float(text) - half, float(text) + half


def overlap(one, other):
    return one[0] <= other[1] + 1e-9 and other[0] <= one[1] + 1e-9


def reach(function, *printed):
    """Lowest and highest value of a monotone function over all numbers that are printed so."""
    values = [function(*numbers) for numbers in product(*map(interval, printed))]
    return min(values), max(values)


def test_the_tables_have_the_paper_s_rows_and_columns():
    assert [file.name for file in sorted(REPORTED.iterdir())] == [f"table{n:02d}.csv" for n in range(2, 9)]
    assert list(main()) == [(model, method) for model in MODELS for method in METHODS]
    assert {key: len(row) for key, row in main().items()} == {key: METHODS[key[1]] for key in main()}
    assert [len(rows(number)) for number in range(2, 9)] == [15, 3, 6, 3, 3, 3, 3]
    assert {number: {len(row) for row in rows(number).values()} for number in range(3, 9)} == {
        3: {20},
        4: {2},
        5: {5},
        6: {5},
        7: {5},
        8: {5},
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("change", "seconds"), [("rollout_change", "rollout_s"), ("step_change", "step_s")])
def test_every_percentage_of_table_2_follows_from_the_seconds(model, change, seconds):
    base = main()[model, "ar"][seconds]
    for method in METHODS:
        row = main()[model, method]
        if method != "ar":
            found = reach(lambda own, ar: 100 * (own / ar - 1), row[seconds], base)
            assert overlap(found, interval(row[change])), (method, found)


def test_percentages_that_the_printed_seconds_alone_would_round_otherwise():
    """They follow from seconds before rounding; the other 17 are those of the printed seconds."""
    other = {}
    for (model, method), row in main().items():
        for change, seconds in (("rollout_change", "rollout_s"), ("step_change", "step_s")):
            if change in row:
                value = 100 * (float(row[seconds]) / float(main()[model, "ar"][seconds]) - 1)
                if f"{value:.1f}" != row[change]:
                    other[model, method, change] = (row[change], round(value, 2))
    assert other == {
        (QWEN_7B, "history", "rollout_change"): ("4.9", 4.98),
        (QWEN_7B, "self-sd", "rollout_change"): ("-8.2", -8.25),
        (QWEN_7B, "self-sd", "step_change"): ("-3.7", -3.77),
        (QWEN_7B, "efficient", "rollout_change"): ("-19.6", -19.54),
        (QWEN_14B, "auxiliary", "rollout_change"): ("-8.9", -8.85),
        (LLAMA, "history", "step_change"): ("0.2", 0.27),
        (QWEN_14B, "self-sd", "rollout_change"): ("6.7", 6.64),
    }


def test_alpha_solves_equation_1_and_is_not_the_share_of_accepted_proposals():
    """E.2: "We compute from the measured using the equation". With (τ - 1)/γ not one row would hold."""
    compared = 0
    for (model, method), row in main().items():
        if "alpha" not in row:
            continue
        low, high = interval(row["alpha"])
        gammas = [float(row["gamma"])] if method != "efficient" else list(interval(row["gamma"]))
        taus = [(1 - a ** (gamma + 1)) / (1 - a) for a in (low / 100, high / 100) for gamma in gammas]
        assert overlap((min(taus), max(taus)), interval(row["tau"])), (model, method, taus)
        shares = reach(lambda tau, gamma: 100 * (tau - 1) / gamma, row["tau"], row["gamma"])
        assert not overlap(shares, (low, high)), (model, method)
        compared += 1
    assert compared == 9
    assert block_efficiency(0.982, 7) == pytest.approx(7.5, abs=0.05), "self-SD on Qwen2.5-7B"


def test_the_numbers_of_the_abstract_and_of_section_5_2_are_in_table_2():
    efficient = [main()[model, "efficient"] for model in MODELS]
    assert min(float(row["rollout_change"]) for row in efficient) == -19.6
    assert min(float(row["step_change"]) for row in efficient) == -12.7
    assert {row["rollout_change"] for row in efficient} == {"-19.6", "-16.8", "-10.7"}
    for name, method, ends in [
        ("prep_s", "self-sd", (1.3, 2.6)),
        ("prep_s", "history", (1.1, 1.1)),
        ("alpha", "efficient", (95.8, 98.2)),
        ("alpha", "auxiliary", (54.3, 60.3)),
    ]:
        values = [float(main()[model, method][name]) for model in MODELS]
        assert (min(values), max(values)) == ends
    assert main()[QWEN_14B, "auxiliary"]["step_change"] == "-3.3"
    assert main()[LLAMA, "auxiliary"]["step_change"] == "25.6"
    fastest = {model: min(METHODS, key=lambda name: float(main()[model, name]["rollout_s"])) for model in MODELS}
    assert set(fastest.values()) == {"efficient"}
    slower = [key for key, row in main().items() if float(row.get("step_change", "0")) > 0]
    assert slower == [
        (QWEN_7B, "history"),
        (QWEN_14B, "self-sd"),
        (LLAMA, "history"),
        (LLAMA, "auxiliary"),
    ]


def test_rows_of_table_3_sum_to_a_hundred_within_their_rounding():
    sums = {}
    for (model, *_), row in rows(3).items():
        for place in ("2k-8", "2k-4", "4k-2", "8k-1"):
            sums[model, place] = sum(float(value) for name, value in row.items() if name.endswith(f"@{place}"))
            dense = sum(float(row[f"{part}@{place}"]) for part in ("ffn", "qkvo", "lm_head"))
            assert dense > 87, "around 90% of total latency (4.1), at the batch of 8 down to 87.1"
    assert len(sums) == 12
    assert all(abs(total - 100) <= 5 * 0.05 + 1e-9 for total in sums.values()), sums


def test_the_ratios_of_table_4_are_those_of_one_share_of_quantised_bytes():
    """With a share f of 16-bit weights as 4 or 8 bits the ratios are 1 - 3f/4 and 1 - f/2: f is 0.853 to 0.854."""
    ratios = {bits: {row["draft_to_target"] for key, row in rows(4).items() if key[-1] == bits} for bits in "48"}
    (four,), (eight,) = ratios["4"], ratios["8"]
    by_four = reach(lambda ratio: (1 - ratio) / 0.75, four)
    by_eight = reach(lambda ratio: (1 - ratio) / 0.5, eight)
    assert overlap(by_four, by_eight)
    assert max(by_four[0], by_eight[0]) == pytest.approx(0.853, abs=1e-3)


def test_the_draft_lengths_of_table_4_are_those_that_its_blocks_allow():
    """A block has γ + 1 tokens at most, and each of W8's τ lies between γ and γ + 1 for one γ alone."""
    for key, row in rows(4).items():
        gamma, tau = int(key[KEY.index("draft_length")]), float(row["tau"])
        assert 1 < tau < gamma + 1
        if key[-1] == "8":
            assert gamma < tau, "so that γ is the whole part of it"
    eight, four = ([float(row["tau"]) for key, row in rows(4).items() if key[-1] == bits] for bits in "84")
    assert [round(a / b - 1, 2) for a, b in zip(eight, four, strict=True)] == [0.1, 0.13, 0.16]


def test_the_reuse_rate_of_table_5_is_the_reused_share_of_the_response():
    for key, row in rows(5).items():
        found = reach(lambda reused, length: 100 * reused / length, row["reused_prefix"], row["response_length"])
        assert overlap(found, interval(row["reuse_rate"])), key
    rates = [float(row["reuse_rate"]) for row in rows(5).values()]
    overheads = [float(row["verification_s"]) for row in rows(5).values()]
    assert (min(rates), max(rates)) == (4.4, 50.2)
    assert (min(overheads), max(overheads)) == (10.7, 19.5)


def test_which_increase_of_section_f_4_follows_from_the_seconds_of_table_2():
    """Of "19.4% on Qwen2.5-7B and 8.8% on Llama3.1-8B-Instruct" the second; the first would need 66.0 s of AR."""
    seconds = {model: main()[model, "ar"]["rollout_s"] for model in MODELS}
    increases = {
        key[0]: reach(lambda more, ar: 100 * more / ar, row["generation_change_s"], seconds[key[0]])
        for key, row in rows(5).items()
    }
    assert overlap(increases[LLAMA], interval("8.8"))
    assert not overlap(increases[QWEN_7B], interval("19.4"))
    assert np.mean(increases[QWEN_7B]) == pytest.approx(15.5, abs=0.05)
    assert float(main()[QWEN_7B, "ar"]["rollout_s"]) > 1.2 * 12.8 / 0.194


def test_the_ratios_of_table_6_follow_from_its_milliseconds():
    for row in rows(6).values():
        for name, time in (("draft_to_target", "draft_ms"), ("verification_to_target", "verification_ms")):
            found = reach(lambda part, target: part / target, row[time], row["target_ms"])
            assert overlap(found, interval(row[name]))
    assert all(0.8 <= float(row["draft_ms"]) < 0.95 for row in rows(6).values()), "around 0.8–0.9 ms (F.5)"


def test_blocks_of_tables_7_and_8_have_one_to_four_tokens_and_grow_with_five_steps_of_adaptation():
    assert list(rows(7)) == list(rows(8))
    for key, before in rows(7).items():
        assert key[KEY.index("draft_length")] == "3"
        assert all(1 <= float(value) <= 4 for value in (*before.values(), *rows(8)[key].values()))
        assert all(float(rows(8)[key][name]) > float(value) for name, value in before.items()), key
    llama = [float(value) for value in next(row for key, row in rows(8).items() if key[0] == LLAMA).values()]
    assert all(1.1 <= value < 1.35 for value in llama[2:]), "remains near 1.2–1.3 in the 1k–8k bins (F.5)"
