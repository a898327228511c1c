"""The comparison of IFEval's two graders, on verdicts made up; lighteval's own are in `test_lighteval.py`."""

import json

import pandas as pd
import pytest

from redraft.errors import UserError
from redraft.evaluate.lighteval import compare, disagreements, write_comparison


def graded(verdicts, step=0):
    """Grades of either grader: None where a checker failed, for which ours has stand-ins and theirs null."""
    ours = [verdict or [False, False] for verdict in verdicts]
    outcomes = ["error" if verdict is None else "wrong" for verdict in verdicts]
    return pd.DataFrame(
        {
            "step": step,
            "benchmark": "ifeval",
            "problem": range(len(verdicts)),
            "sample": 0,
            "outcome": outcomes,
            "strict": ours,
            "loose": ours,
            "official_strict": None,
            "official_loose": None,
            "instructions": [["a", "b"]] * len(verdicts),
        }
    )


def test_every_verdict_that_differs_is_named():
    ours, theirs = graded([[True, True], [True, False], None]), graded([[True, True], [True, True], [True, True]])
    metrics = compare(ours, theirs).set_index("metric")
    assert metrics.loc["prompt_level_strict_acc", ["lm_eval", "lighteval", "samples", "failed"]].tolist() == [
        0.5,
        1.0,
        2,
        1,
    ]
    assert metrics.loc["inst_level_loose_acc", ["lm_eval", "lighteval"]].tolist() == [0.75, 1.0]
    lines = disagreements(ours, theirs)
    assert lines[["problem", "level", "instruction", "lm_eval", "lighteval"]].to_numpy().tolist() == [
        [1, "strict", "b", False, True],
        [1, "loose", "b", False, True],
    ]


def test_where_a_character_other_than_a_letter_is_counted_the_unchanged_checkers_are_compared():
    ours, theirs = graded([[True, True], [False, True]]), graded([[True, True], [True, True]])
    assert len(disagreements(ours, theirs)) == 2
    official = pd.Series([None, [True, True]])
    ours = ours.assign(official_strict=official, official_loose=official)
    assert disagreements(ours, theirs).empty
    assert compare(ours, theirs)["lm_eval"].tolist() == [1.0] * 4


def test_other_benchmarks_are_left_out_and_other_samples_rejected():
    ours = graded([[True, True]])
    assert len(compare(pd.concat([ours, ours.assign(benchmark="aime24", strict=None)]), ours)) == 4
    with pytest.raises(UserError, match="1 samples were graded by only one of the two graders"):
        compare(ours, graded([[True, True], [True, True]]))


def test_a_step_without_a_complete_sample_has_no_metrics(tmp_path):
    ours = pd.concat([graded([[True, False]]), graded([None], step=6)])
    theirs = pd.concat([graded([[True, False]]), graded([[True, True]], step=6)])
    ours.to_parquet(tmp_path / "ours.parquet")
    theirs.to_parquet(tmp_path / "theirs.parquet")
    (tmp_path / "theirs.json").write_text('{"sentence_splitter": "untrained", "lighteval": "0.13.0", "nltk": "3.9.1"}')
    write_comparison(tmp_path / "ours.parquet", tmp_path / "theirs.parquet", "untrained", tmp_path / "out.json")
    metrics = json.loads((tmp_path / "out.json").read_text())["metrics"]
    assert [line["lm_eval"] for line in metrics] == [0.0, 0.5, 0.0, 0.5, None, None, None, None]


def test_graders_that_split_sentences_differently_are_not_compared(tmp_path):
    graded([[True, True]]).to_parquet(tmp_path / "theirs.parquet")
    (tmp_path / "theirs.json").write_text('{"sentence_splitter": "punkt_tab", "lighteval": "0.13.0", "nltk": "3.9.1"}')
    graded([[True, True]]).to_parquet(tmp_path / "ours.parquet")
    with pytest.raises(UserError, match="split sentences differently"):
        write_comparison(tmp_path / "ours.parquet", tmp_path / "theirs.parquet", "untrained", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
