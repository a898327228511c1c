"""Scores of graded samples by hand, from a frame in which no two counts are alike."""

import pandas as pd
import pytest

from redraft.config import ArithmeticProblems, ProblemFile
from redraft.config.data import Benchmark
from redraft.evaluate.metrics import score
from redraft.tasks.answers import Outcome


def frame(outcomes, **columns):
    """Graded samples, the longest of which was cut off."""
    count = len(outcomes)
    lengths = [10 * (i + 1) for i in range(count)]
    columns = {"extracted": [""] * count, "strict": None, "loose": None} | columns
    return pd.DataFrame(
        {
            "outcome": [str(o) for o in outcomes],
            "length": lengths,
            "seconds": 0.5,
            "truncated": [length == max(lengths) for length in lengths],
        }
        | columns
    )


def test_instructions_are_counted_strictly_and_loosely_and_a_prompt_needs_all_of_its_own():
    """Three prompts of 2, 1 and 3 instructions; loosely, four more are followed and one more prompt is."""
    strict = [[True, False], [False], [False, False, True]]
    loose = [[True, True], [False], [True, True, True]]
    graded = frame([Outcome.WRONG] * 3, strict=strict, loose=loose)
    benchmark = Benchmark(data=ProblemFile(path="p.jsonl", size=3), grading="instructions")
    found = score(graded, benchmark)
    names = ("instructions", "instructions_strict", "instructions_loose", "prompt_strict", "prompt_loose")
    assert [found[name] for name in names] == [6, 2, 5, 0, 2]
    assert (found["correct"], found["total"]) == (0, 3)


def test_samples_stand_by_their_problem_and_each_failure_is_counted_by_its_kind():
    outcomes = [
        Outcome.CORRECT,
        Outcome.CORRECT,
        Outcome.WRONG,
        Outcome.NO_ANSWER,
        Outcome.EMPTY,
        Outcome.TIMEOUT,
        Outcome.ERROR,
        Outcome.WRONG,
        Outcome.EMPTY,
        Outcome.WRONG,
    ]
    extracted = ["1", "1", "7", "", "", "8", "8", "9", "", "5"]
    benchmark = Benchmark(data=ArithmeticProblems(size=2), samples=5, role="out-of-distribution")
    found = score(frame(outcomes, extracted=extracted), benchmark, note="of the grader")
    expected = {
        "correct": 2,
        "total": 10,
        "problems": 2,
        "samples": 5,
        "pass_at_1": 0.2,
        "pass_at_2": (1 - 3 / 10) / 2,
        "pass_at_5": 0.5,
        "majority": 0.5,
        "without_answer": 3,
        "empty": 2,
        "timeouts": 1,
        "errors": 1,
        "truncated": 1,
        "mean_tokens": 55.0,
        "tokens_p50": 55.0,
        "tokens_p90": 91.0,
        "seconds": 5.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert (found["role"], found["note"]) == ("out-of-distribution", "of the grader")


@pytest.mark.parametrize(("without", "noted"), [(8, False), (9, True), (10, True)])
def test_a_note_says_that_nearly_all_responses_have_no_answer(without, noted):
    outcomes = [Outcome.NO_ANSWER] * (without - 1) + [Outcome.EMPTY] + [Outcome.WRONG] * (10 - without)
    found = score(frame(outcomes), Benchmark(data=ArithmeticProblems(size=10)))
    assert found["without_answer"] == without
    assert ("no answer" in found.get("note", "")) == noted
