"""The grade stage: scores of generations, refused files, and responses that hang."""

import json
import math
import os

import numpy as np
import pandas as pd
import pytest

from redraft.config.data import Benchmark, HubProblems, ProblemFile
from redraft.errors import UserError
from redraft.evaluate import grade as stage
from redraft.evaluate.grade import GRADES, grade
from redraft.evaluate.metrics import interval, pass_at

IFEVAL = json.dumps(
    {"key": 1000, "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, {}]}
)


def benchmark(problems, samples, grading="math", **changed):
    return Benchmark(data=ProblemFile(path="p.jsonl", size=problems), samples=samples, grading=grading, **changed)


def generation(name, problem, sample, text, answer, step=0, length=3, finish="stop"):
    return {
        "step": step,
        "benchmark": name,
        "problem": problem,
        "sample": sample,
        "prompt": f"Problem {problem}",
        "answer": answer,
        "tokens": np.arange(length, dtype=np.int32),
        "text": text,
        "finish": finish,
        "seconds": 0.25,
    }


def written(folder, rows):
    file = folder / "generations.parquet"
    pd.DataFrame(rows).to_parquet(file, index=False)
    return file


def graded(folder, rows, benchmarks, processes=1):
    grade(written(folder, rows), benchmarks, folder / "scores.json", processes)
    return pd.read_parquet(folder / "grades.parquet"), json.loads((folder / "scores.json").read_text())


TEXTS = {
    0: [r"\boxed{1}", r"\boxed{2}", r"\boxed{1.0}", "so 1"],
    1: [r"\boxed{7}", r"\boxed{8}", r"\boxed{8}", r"\boxed{2}"],
    2: ["", r"\boxed{", r"\boxed{\text{five}}", r"\boxed{5}"],
}
"""Responses to three problems whose answers are 1, 2 and 3."""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Grades and scores of two policies, from a file with lines out of order."""
    folder = tmp_path_factory.mktemp("graded")
    rows = [
        generation("sums", p, s, text, str(p + 1), step, length=10 * p + s, finish="length" if s == 3 else "stop")
        for step in (0, 6)
        for p, texts in TEXTS.items()
        for s, text in enumerate(texts)
    ]
    rows += [generation("letters", 0, 0, f"\\boxed{{{x}}}", "B", step) for step, x in ((0, "(B)"), (6, "A"))]
    benchmarks = {"sums": benchmark(3, 4), "letters": benchmark(1, 1, "choice", role="out-of-distribution")}
    return graded(folder, rows[::-1], benchmarks, processes=2)


def test_a_verdict_a_sample(both):
    grades, _ = both
    assert list(grades.columns) == GRADES.names
    assert len(grades) == 26
    sums = grades[(grades["benchmark"] == "sums") & (grades["step"] == 6)]
    assert list(zip(sums["problem"], sums["sample"], strict=True)) == [(p, s) for p in range(3) for s in range(4)]
    assert list(sums["outcome"]) == [
        "correct",
        "wrong",
        "correct",
        "no answer",
        "wrong",
        "wrong",
        "wrong",
        "correct",
        "empty",
        "no answer",
        "wrong",
        "wrong",
    ]
    assert list(sums["extracted"]) == ["1", "2", "1.0", "", "7", "8", "8", "2", "", "", r"\text{five}", "5"]
    assert list(sums["length"]) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert list(sums["truncated"]) == [False, False, False, True] * 3
    assert sums["strict"].isna().all()
    assert sums["loose"].isna().all()
    letters = grades[grades["benchmark"] == "letters"]
    assert list(letters["outcome"]) == ["correct", "wrong"]
    assert list(letters["extracted"]) == ["B", "A"]


def test_scores_count_what_was_graded(both):
    _, scores = both
    assert list(scores) == ["0", "6"]
    score = scores["6"]["sums"]
    assert (score["correct"], score["total"], score["problems"], score["samples"]) == (3, 12, 3, 4)
    assert (score["without_answer"], score["empty"], score["timeouts"], score["errors"]) == (3, 1, 0, 0)
    assert score["truncated"] == 3
    assert score["mean_tokens"] == 11.5
    assert (score["tokens_p50"], score["tokens_p90"]) == (11.5, pytest.approx(21.9))
    assert score["seconds"] == 3.0
    assert score["role"] == "in-distribution"
    correct = np.array([2, 1, 0])
    assert (score["accuracy_low"], score["accuracy_high"]) == interval(correct, 4)
    assert {k: score[f"pass_at_{k}"] for k in (1, 2, 4)} == {k: pass_at(correct, 4, k) for k in (1, 2, 4)}
    assert score["majority"] == pytest.approx((1 + 0 + 0) / 3)
    assert scores["0"]["letters"] | {"correct": 0} == scores["6"]["letters"] | {
        "correct": 0,
        "accuracy_low": scores["0"]["letters"]["accuracy_low"],
        "accuracy_high": 1.0,
        "pass_at_1": 1.0,
        "majority": 1.0,
    }
    assert scores["6"]["letters"]["role"] == "out-of-distribution"


def test_scores_are_flat_finite_numbers_and_fit_one_frame(both, tmp_path):
    _, scores = both
    lines = [score for of_step in scores.values() for score in of_step.values()]
    for score in lines:
        assert all(isinstance(v, str) or math.isfinite(v) for v in score.values())
        assert "note" not in score
    frame = pd.DataFrame([*lines, {"correct": 1, "total": 2, "role": "in-distribution", "note": "one is missing"}])
    frame.to_parquet(tmp_path / "scores.parquet")
    assert frame["correct"].dtype == frame["total"].dtype == np.int64


def test_samples_in_another_order_have_the_same_scores(both, tmp_path):
    rows = [
        generation("sums", p, s, TEXTS[p][s], str(p + 1), 6, 10 * p + s, "length" if s == 3 else "stop")
        for s in (2, 0, 3, 1)
        for p in (1, 2, 0)
    ]
    _, scores = graded(tmp_path, rows, {"sums": benchmark(3, 4)})
    assert scores["6"]["sums"] == both[1]["6"]["sums"]


def test_instructions_are_counted_by_prompt_and_by_instruction(tmp_path):
    texts = [["all is well", "All, is well"], ["all is well, she said", ""]]
    rows = [generation("ifeval", p, s, text, IFEVAL) for p, of in enumerate(texts) for s, text in enumerate(of)]
    grades, scores = graded(tmp_path, rows, {"ifeval": benchmark(2, 2, "instructions")})
    assert [list(map(bool, verdicts)) for verdicts in grades["strict"]] == [
        [True, True],
        [False, False],
        [False, True],
        [False, False],
    ]
    assert list(grades["outcome"]) == ["correct", "wrong", "wrong", "empty"]
    assert set(grades["extracted"]) == {""}
    score = scores["0"]["ifeval"]
    assert score["correct"] == score["prompt_strict"] == 1
    assert (score["instructions"], score["instructions_strict"]) == (8, 3)
    assert score["prompt_loose"] >= score["prompt_strict"]
    assert score["instructions_loose"] >= score["instructions_strict"]
    assert (score["pass_at_1"], score["pass_at_2"]) == (0.25, 0.5)
    assert score["empty"] == 1
    assert not {"majority", "without_answer"} & set(score)


def in_this_process(function, items, processes, seconds, lost):
    def one(item):
        try:
            return function(item)
        except Exception as error:
            return lost(item, error)

    return [one(item) for item in items]


def test_a_failing_check_of_instructions_follows_none_and_denominators_stay(tmp_path, monkeypatch):
    def fails(prompt, text, answer):
        raise {"slow": TimeoutError, "bad": ValueError}[text]("no verdict")

    monkeypatch.setattr("redraft.tasks.instructions.grade_instructions", fails)
    monkeypatch.setattr(stage, "run", in_this_process)
    rows = [generation("ifeval", 0, 0, "slow", IFEVAL), generation("ifeval", 1, 0, "bad", IFEVAL)]
    grades, scores = graded(tmp_path, rows, {"ifeval": benchmark(2, 1, "instructions")})
    assert list(grades["outcome"]) == ["time-out", "error"]
    assert [list(verdicts) for verdicts in grades["loose"]] == [[False, False]] * 2
    score = scores["0"]["ifeval"]
    assert (score["timeouts"], score["errors"], score["instructions"], score["instructions_loose"]) == (1, 1, 4, 0)


def test_damaged_instructions_of_a_problem_are_a_user_error(tmp_path):
    rows = [generation("ifeval", 0, 0, "text", '{"key": 1}')]
    with pytest.raises(UserError, match="instructions"):
        graded(tmp_path, rows, {"ifeval": benchmark(1, 1, "instructions")})
    assert not (tmp_path / "scores.json").exists()


def test_an_incomplete_copy_is_accepted_and_noted(tmp_path):
    data = HubProblems(id="a/b", files=["x"], size=5, incomplete={3: "2 are missing"})
    incomplete = benchmark(5, 2).model_copy(update={"data": data})
    rows = [generation("sums", p, s, r"\boxed{1}", "1") for p in range(3) for s in range(2)]
    _, scores = graded(tmp_path, rows, {"sums": incomplete})
    score = scores["0"]["sums"]
    assert (score["total"], score["problems"], score["note"]) == (6, 3, "3 of 5 problems: 2 are missing")
    with pytest.raises(UserError, match="wrong number") as error:
        graded(tmp_path, rows[:4], {"sums": incomplete})
    assert error.value.allowed == "5 problems x 2 samples or 3 problems x 2 samples"


def complete():
    return [generation("sums", p, s, r"\boxed{1}", "1", step) for step in (0, 6) for p in (0, 1) for s in (0, 1)]


REFUSED = {
    "sample is lacking": (lambda rows: rows[:-1], "wrong number", "step 6, sums"),
    "problem is lacking": (lambda rows: rows[:2] + rows[4:], "wrong number", "step 0, sums"),
    "too many samples": (lambda rows: [*rows, rows[0] | {"sample": 2}], "wrong number", "step 0, sums"),
    "sample is there twice": (lambda rows: [*rows[:-1], rows[-2]], "twice", "step, benchmark, problem, sample"),
    "other numbers of samples": (lambda rows: [*rows[:-1], rows[-1] | {"sample": 2}], "numbered", "step 6, sums"),
    "other numbers of problems": (
        lambda rows: [*rows[:-2], *(r | {"problem": 7} for r in rows[-2:])],
        "numbered",
        "step 6, sums",
    ),
    "negative numbers": (lambda rows: [*rows[:-1], rows[-1] | {"sample": -1}], "numbered", "step 6, sums"),
    "other benchmark": (lambda rows: [*rows, rows[0] | {"benchmark": "other"}], "another benchmark", "benchmark"),
    "no answer": (lambda rows: [*rows[:-1], rows[-1] | {"answer": ""}], "no answer", "benchmark, problem"),
    "column is lacking": (lambda rows: [{k: v for k, v in r.items() if k != "seconds"} for r in rows], "column", "sec"),
}


@pytest.mark.parametrize(("change", "message", "key"), REFUSED.values(), ids=REFUSED)
def test_generations_that_are_not_what_was_asked_for_are_rejected(tmp_path, change, message, key):
    with pytest.raises(UserError, match=message) as error:
        graded(tmp_path, change(complete()), {"sums": benchmark(2, 2)})
    assert key in error.value.key
    assert error.value.file == tmp_path / "generations.parquet"
    assert not (tmp_path / "scores.json").exists()
    assert not (tmp_path / "grades.parquet").exists()


def test_a_benchmark_without_generations_is_rejected(tmp_path):
    with pytest.raises(UserError, match="wrong number") as error:
        graded(tmp_path, complete(), {"sums": benchmark(2, 2), "others": benchmark(2, 2)})
    assert (error.value.key, error.value.value) == ("step 0, others", 0)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not Parquet"])
def test_a_damaged_file_is_rejected(tmp_path, damage):
    file = written(tmp_path, complete())
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match="damaged"):
        grade(file, {"sums": benchmark(2, 2)}, tmp_path / "scores.json")
    file.unlink()
    with pytest.raises(UserError, match="missing"):
        grade(file, {"sums": benchmark(2, 2)}, tmp_path / "scores.json")


def test_a_file_without_lines_is_rejected(tmp_path):
    pd.DataFrame(complete())[:0].to_parquet(tmp_path / "none.parquet")
    with pytest.raises(UserError, match="no generations"):
        grade(tmp_path / "none.parquet", {"sums": benchmark(2, 2)}, tmp_path / "scores.json")


def test_a_hostile_response_costs_itself_and_is_graded_once(tmp_path):
    tower = r"\boxed{9^{9^{9^9}}}"
    rows = [generation("sums", p, s, tower if s else r"\boxed{1}", "1") for p in (0, 1) for s in range(4)]
    began = os.times().elapsed
    grades, scores = graded(tmp_path, rows, {"sums": benchmark(2, 4)})
    assert os.times().elapsed - began < 15, "six times five seconds, if each were graded"
    assert list(grades["outcome"]) == ["correct", "time-out", "time-out", "time-out"] * 2
    score = scores["0"]["sums"]
    assert (score["correct"], score["timeouts"], score["without_answer"]) == (2, 6, 0)


@pytest.mark.parametrize(("error", "outcome"), [(TimeoutError(), "time-out"), (MemoryError(), "error")])
def test_a_lost_comparison_has_an_outcome(tmp_path, monkeypatch, error, outcome):
    def loses(function, items, processes, seconds, lost):
        return [lost(item, error) if item[0] == "2" else function(item) for item in items]

    monkeypatch.setattr(stage, "run", loses)
    rows = [generation("sums", 0, s, f"\\boxed{{{s + 1}}}", "1") for s in range(3)]
    grades, scores = graded(tmp_path, rows, {"sums": benchmark(1, 3)})
    assert list(grades["outcome"]) == ["correct", outcome, "wrong"]
    assert list(grades["extracted"]) == ["1", "2", "3"]
    assert scores["0"]["sums"]["timeouts"] + scores["0"]["sums"]["errors"] == 1
