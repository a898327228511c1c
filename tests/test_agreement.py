"""Two evaluations, response by response."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.cli.app import main
from redraft.errors import UserError
from redraft.evaluate.agreement import agreements, common_tokens, paired_interval, sampling_noise
from redraft.files import hashes, write_json


def an_evaluation(folder, responses, benchmark="sums", prompt="1 + 1", steps=(0,), answers=True):
    """A folder of an evaluation.

    Args:
        folder: to make.
        responses: (problem, sample, tokens, right) each.
        benchmark: name.
        prompt: of all problems.
        steps: of the policies, each with all responses.
        answers: whether the first token is the answer, else there is none.
    """
    folder.mkdir()
    responses, keys = (
        [*responses] * len(steps),
        [
            {"step": step, "benchmark": benchmark, "problem": problem, "sample": n}
            for step in steps
            for problem, n, _, _ in responses
        ],
    )
    pd.DataFrame(
        [
            k | {"prompt": prompt, "answer": "2", "tokens": r[2], "text": str(r[2][:2])}
            for k, r in zip(keys, responses, strict=True)
        ]
    ).to_parquet(folder / "generations.parquet")
    outcomes = ["correct" if right else "wrong" for *_, right in responses]
    extracted = [str(r[2][0]) if answers else None for r in responses]
    graded = [k | {"outcome": o, "extracted": e} for k, o, e in zip(keys, outcomes, extracted, strict=True)]
    pd.DataFrame(graded[::-1]).to_parquet(folder / "grades.parquet")
    return recorded(folder)


def recorded(folder):
    """The folder, with the record of its files' hashes."""
    write_json(folder / "scores.json", {})
    made = {
        "sha256": hashes(folder / "grades.parquet", folder / "scores.json"),
        "made_from": hashes(folder / "generations.parquet"),
    }
    write_json(folder / "grades.json", made)
    return folder


FIRST = [(0, 0, [5, 6, 7], True), (0, 1, [5, 6], False), (1, 0, [8], True), (1, 1, [9, 9], False)]
SECOND = [(0, 0, [5, 6, 7], True), (0, 1, [5, 6, 7], True), (1, 0, [9, 8], True), (1, 1, [9, 8], False)]


@pytest.fixture
def two(tmp_path):
    return an_evaluation(tmp_path / "a", FIRST), an_evaluation(tmp_path / "b", SECOND)


def test_scores_verdicts_and_tokens_are_compared_response_by_response(two):
    (found,) = agreements(*two)
    assert (found.benchmark, found.responses, found.first, found.second) == ("sums", 4, 0.5, 0.75)
    assert (found.problems, found.same_verdict, found.same_tokens) == (2, 0.75, 0.25)
    assert (found.same_text, found.same_answer) == (0.5, 0.75), "texts are the first two tokens, answers the first"
    # 3 tokens are equal in the first, 2 before a longer response, 0 and 1 in the last two; three responses differ.
    assert found.tokens_a_difference == pytest.approx((3 + 2 + 0 + 1 + 3) / 3)
    assert (found.low, found.high) == paired_interval(np.array([0.5, 0.0]), 2), "a problem is one pair"


def test_a_problem_is_one_pair_however_many_policies_it_was_put_to(two, tmp_path):
    pair = [an_evaluation(tmp_path / name, of, steps=(0, 2, 4)) for name, of in (("c", FIRST), ("d", SECOND))]
    (once,), (thrice,) = agreements(*two), agreements(*pair)
    assert (thrice.responses, thrice.low, thrice.high) == (3 * once.responses, once.low, once.high)


def test_what_one_of_them_lacks_is_left_out(two, tmp_path):
    (found,) = agreements(two[0], an_evaluation(tmp_path / "short", SECOND[:2]))
    assert (found.responses, found.first, found.second, found.same_tokens) == (2, 0.5, 1.0, 0.5)


def test_as_a_whole_each_has_all_responses_of_the_other(two, tmp_path):
    short = an_evaluation(tmp_path / "short", SECOND[:2])
    assert [found.responses for found in agreements(*two, whole=True)] == [4]
    for pair in ((two[0], short), (short, two[0])):
        with pytest.raises(UserError, match="different problems or numbers of samples"):
            agreements(*pair, whole=True)


def test_without_extracted_answers_none_is_compared(two, tmp_path):
    (found,) = agreements(two[0], an_evaluation(tmp_path / "c", SECOND, answers=False))
    assert found.same_answer == 0
    pair = [an_evaluation(tmp_path / name, of, answers=False) for name, of in (("d", FIRST), ("e", SECOND))]
    (found,) = agreements(*pair)
    assert found.same_answer is None


def test_the_noise_is_that_of_samples_and_unknown_where_they_do_not_differ(two, tmp_path):
    (found,) = agreements(*two)
    # First: variance 1/2 in both problems; second: 0 and 1/2. Over two samples each, and the mean of two problems.
    assert found.noise == pytest.approx(1.95996 * ((0.5 + 0.5 + 0 + 0.5) / 2 / 2**2) ** 0.5, rel=1e-4)
    sure = an_evaluation(tmp_path / "sure", [(p, s, tokens, True) for p, s, tokens, _ in FIRST])
    assert agreements(sure, sure)[0].noise is None
    once = an_evaluation(tmp_path / "once", [FIRST[0], FIRST[2]])
    assert agreements(once, once)[0].noise is None


def test_two_samplings_of_a_policy_differ_by_at_most_the_noise_as_often_as_it_says():
    rng = np.random.default_rng(0)
    chances, problem = np.repeat(rng.uniform(size=40), 8), pd.Series(np.repeat(np.arange(40), 8))
    within = []
    for _ in range(400):
        first, second = (pd.Series((rng.uniform(size=320) < chances).astype(float)) for _ in range(2))
        within.append(abs(second.mean() - first.mean()) <= sampling_noise([problem], first, second))
    assert 0.92 < np.mean(within) < 0.98


def test_equal_evaluations_have_no_first_difference(two):
    (found,) = agreements(two[0], two[0])
    assert (found.same_verdict, found.same_tokens, found.tokens_a_difference) == (1, 1, None)
    assert found.low == -found.high < 0


def test_the_command_prints_a_row_a_benchmark(two, capsys):
    for extra in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            main(["agreement", *map(str, two), *extra])
        assert end.value.code == 0
    printed = capsys.readouterr().out
    text, document = printed.split("{", 1)
    assert "+25.0" in text
    assert "3 tokens" in text.replace("\n", " ")
    assert json.loads("{" + document)["rows"][0]["second"] == 0.75


def test_folders_without_evaluations_and_other_problems_are_rejected(two, tmp_path):
    def error_of(second):
        with pytest.raises(UserError) as error:
            agreements(two[0], second)
        return str(error.value)

    assert "no folder of a finished evaluation" in error_of(tmp_path / "none")
    assert "no response of the same problem" in error_of(an_evaluation(tmp_path / "c", SECOND, benchmark="words"))
    text = error_of(an_evaluation(tmp_path / "d", SECOND, prompt="1 + 2"))
    assert "another prompt" in text
    assert "sums, problem 0" in text
    assert "'1 + 2'" in text
    broken = an_evaluation(tmp_path / "e", SECOND)
    pd.read_parquet(broken / "grades.parquet")[:3].to_parquet(broken / "grades.parquet")
    assert "differs from the hash in grades.json" in error_of(broken)
    assert "do not belong to the generations" in error_of(recorded(broken))


TOKENS = st.lists(st.integers(0, 2), max_size=5)


@given(TOKENS, TOKENS)
def test_common_tokens_are_the_longest_common_prefix(first, second):
    count = common_tokens(np.array(first), np.array(second))
    assert first[:count] == second[:count]
    assert count == min(len(first), len(second)) or first[count] != second[count]


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=30))
def test_the_interval_turns_with_the_sides_and_is_never_a_point(changes):
    low, high = paired_interval(np.array(changes))
    assert -1 <= low < high <= 1
    assert paired_interval(-np.array(changes)) == pytest.approx((-high, -low))


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth, tries = 0.12 - 0.05, 2000
    changes = rng.choice([1.0, -1.0, 0.0], size=(tries, 60), p=[0.12, 0.05, 0.83])
    covered = sum(low <= truth <= high for low, high in map(paired_interval, changes))
    assert 0.93 < covered / tries < 0.98


@pytest.mark.parametrize("samples", [4, 64])
def test_the_interval_of_several_samples_is_neither_too_narrow_nor_much_too_wide(samples):
    rng, problems, tries = np.random.default_rng(0), 100, 1000
    rates = rng.uniform(size=(tries, problems))
    changes = (rng.binomial(samples, rates) - rng.binomial(samples, rates)) / samples
    found = [paired_interval(each, samples) for each in changes]
    assert 0.93 < sum(low <= 0 <= high for low, high in found) / tries < 0.97
