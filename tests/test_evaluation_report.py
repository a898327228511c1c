"""What the report says of grading."""

import math

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.evaluation import graders, summary
from redraft.files import write_json
from redraft.result_files import write_with_hash

NOTHING = pd.DataFrame()


def scores(cell, seed, step, benchmark, correct, **more):
    counts = {"total": 8, "samples": 4, "mean_tokens": 10.0 + seed, "tokens_p50": 9.0, "tokens_p90": 12.0}
    failed = {"truncated": 1, "empty": 1, "timeouts": 0, "errors": 0}
    return {
        "cell": cell,
        "seed": seed,
        "step": step,
        "benchmark": benchmark,
        "correct": correct,
        **counts,
        **failed,
        **more,
    }


def test_counts_are_summed_over_seeds_and_shares_averaged_and_only_last_policies_have_rows():
    sums = {"pass_at_1": 0.5, "pass_at_2": 0.6, "pass_at_4": 0.75, "majority": 0.5, "without_answer": 2}
    frame = pd.DataFrame(
        [scores("a", seed, step, "sums", step // 5 + seed, **sums) for seed in (0, 1) for step in (0, 5, 10)]
        + [
            scores("a", seed, step, "asked", 3, samples=1, pass_at_1=0.4, note="one is missing", timeouts=step // 10)
            for seed in (0, 1)
            for step in (0, 5, 10)
        ]
    )
    found = summary(Runs(NOTHING, NOTHING, frame))
    by_benchmark = {row["benchmark"]: row for row in found["rows"]}
    row = by_benchmark["sums"]
    assert (row["correct"], row["total"], row["without_answer"], row["empty"]) == (2 + 3, 16, 4, 2)
    assert (row["pass_at_most"], row["majority"], row["mean_tokens"]) == (0.75, 0.5, 10.5)
    assert math.isnan(by_benchmark["asked"]["pass_at_most"])
    assert math.isnan(by_benchmark["asked"]["majority"])
    assert math.isnan(by_benchmark["asked"]["without_answer"])
    assert found["totals"]["total"] == 8 * 2 * 2 * 2  # the initial policy, of step 0, is shared by cells
    assert found["totals"]["timeouts"] == 2
    assert found["notes"] == ["asked: one is missing"]


def test_scores_of_an_older_kind_have_rows_too():
    frame = pd.DataFrame(
        [
            {
                "cell": "a",
                "seed": 0,
                "step": 1,
                "benchmark": "sums",
                "correct": 1,
                "total": 2,
                "mean_tokens": 3.0,
                "truncated": 0,
                "without_answer": 0,
            }
        ]
    )
    (row,) = summary(Runs(NOTHING, NOTHING, frame))["rows"]
    assert row["correct"] == 1
    assert math.isnan(row["timeouts"])


def test_two_graders_stand_side_by_side(tmp_path):
    manifests = [tmp_path / f"a/seed{seed}/manifest.json" for seed in (0, 1)]
    other = tmp_path / "other/a/seed0/manifest.json"
    of_cells = {"cell": ["a", "a", "other/a"], "manifest": [str(file) for file in (*manifests, other)]}
    runs = Runs(pd.DataFrame(of_cells), NOTHING, NOTHING)
    assert graders(runs) == []
    for seed, file in enumerate([*manifests, other]):
        metrics = [
            {"step": step, "metric": "prompt_level_strict_acc", "lm_eval": 0.5 + 0.1 * seed, "lighteval": 0.5}
            for step in (5, 10)
        ]
        write_with_hash(
            file.with_name("ifeval.json"), {"metrics": metrics, "disagreements": [{"step": 5}, {"step": 10}]}
        )
    write_json(tmp_path / "b/seed0/ifeval.json", {"metrics": "of a run that was not collected"})
    assert graders(runs) == [
        {"cell": "a", "metric": "prompt_level_strict_acc", "lm_eval": 0.55, "lighteval": 0.5, "differ": 2},
        {"cell": "other/a", "metric": "prompt_level_strict_acc", "lm_eval": 0.7, "lighteval": 0.5, "differ": 1},
    ]
