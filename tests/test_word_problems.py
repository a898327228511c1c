"""Sums and comparisons in words: worked out by hand, graded as mathematics, and splits that share no numbers."""

import re
from itertools import permutations, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.config.data import ProblemSet
from redraft.config.generated import Question, WordProblems
from redraft.errors import UserError
from redraft.tasks.answers import Outcome
from redraft.tasks.grading import compare, grade
from redraft.tasks.problem_splits import MAX_MISSED_SAMPLES, distinct, split_of
from redraft.tasks.problems import load_problems
from redraft.tasks.word_problems import NAMES, QUESTIONS, THINGS, WordProblem, prompts, sample_problem, sample_problems

EVERY = list(QUESTIONS)
GOLDEN = [
    ("Sam has 8 hats, Jack has 9 hats and Oscar has 3 hats. Who has the most hats?", "Jack"),
    ("Jack has 5 hats. Jack finds 2 more hats and then gives 4 hats to Ella. How many hats does Jack have now?", "3"),
]
SPLITS = ["held-out", "train", "train"]
PEOPLE = ("Ben", "Cora", "Mia")


@pytest.mark.parametrize(
    ("question", "numbers", "text", "answer"),
    [
        ("sum", (3, 4), "Ben has 3 keys. Cora gives Ben 4 more keys. How many keys does Ben have now?", "7"),
        (
            "total",
            (3, 4, 9),
            "Ben has 3 keys, Cora has 4 keys and Mia has 9 keys. How many keys do they have together?",
            "16",
        ),
        ("difference", (9, 4), "Ben has 9 keys. Ben gives 4 keys to Cora. How many keys does Ben have left?", "5"),
        (
            "sum_and_difference",
            (3, 8, 5),
            "Ben has 3 keys. Ben finds 8 more keys and then gives 5 keys to Cora. How many keys does Ben have now?",
            "6",
        ),
        (
            "how_many_more",
            (3, 8),
            "Ben has 3 keys and Cora has 8 keys. How many more keys does one of them have than the other?",
            "5",
        ),
        ("who_has_more", (3, 8), "Ben has 3 keys and Cora has 8 keys. Who has more keys?", "Cora"),
        (
            "who_has_most",
            (3, 8, 9),
            "Ben has 3 keys, Cora has 8 keys and Mia has 9 keys. Who has the most keys?",
            "Mia",
        ),
    ],
)
def test_problems_worked_out_by_hand(question, numbers, text, answer):
    problem = WordProblem(question, numbers, PEOPLE[: QUESTIONS[question].count("abc")], "keys")
    assert (problem.text, problem.answer) == (text, answer)


@pytest.mark.parametrize("question", EVERY)
@given(seed=st.integers(0, 10**6), largest=st.integers(6, 60))
def test_a_problem_tells_all_that_its_answer_needs(question, seed, largest):
    """The story decides the answer: the largest number's owner, or a sum of the numbers with some signs."""
    problem = sample_problem(np.random.default_rng(seed), [question], largest)
    assert tuple(map(int, re.findall(r"\d+", problem.text))) == problem.numbers
    assert len(set(problem.numbers)) == len(problem.numbers)
    assert all(2 <= number <= largest for number in problem.numbers)
    assert "{" not in problem.text
    assert set(problem.people) == {name for name in NAMES if re.search(rf"\b{name}\b", problem.text)}
    if problem.answer.isalpha():
        numbers_of = dict(re.findall(r"(\w+) has (\d+)", problem.text))
        assert int(numbers_of[problem.answer]) == max(map(int, numbers_of.values()))
    else:
        assert problem.answer in {str(abs(sum(terms))) for terms in product(*((n, -n) for n in problem.numbers))}
        assert int(problem.answer) > 0


@pytest.mark.parametrize("question", EVERY)
@given(seed=st.integers(0, 10**6))
def test_the_right_answer_is_graded_as_right_and_the_wrong_one_as_wrong(question, seed):
    rng = np.random.default_rng(seed)
    problem = sample_problem(rng, [question], 20)
    assert grade(f"So \\boxed{{{problem.answer}}}", problem.answer).outcome is Outcome.CORRECT
    assert grade(f"So \\boxed{{{problem.wrong(rng)}}}", problem.answer).outcome is Outcome.WRONG
    assert grade(f"So {problem.answer}", problem.answer).outcome is Outcome.NO_ANSWER


@pytest.mark.parametrize("question", EVERY)
def test_wrong_answers_resemble_right_ones(question):
    rng = np.random.default_rng(0)
    people = PEOPLE[: QUESTIONS[question].count("abc")]
    problem = WordProblem(question, (9, 7, 8)[: QUESTIONS[question].count("xyz")], people, "keys")
    wrong = {problem.wrong(rng) for _ in range(200)}
    if problem.answer.isalpha():
        assert wrong == set(people) - {problem.answer}
    else:
        right = int(problem.answer)
        assert wrong == {str(n) for n in (right - 2, right - 1, right + 1, right + 2) if n > 0}


def test_the_grader_tells_all_names_apart_and_reads_them_as_text_too():
    """math-verify reads a name as a product of letters, so no name may be another's anagram."""
    assert all(compare(one, other) is Outcome.WRONG for one, other in permutations(NAMES, 2))
    assert all(compare(f"\\text{{{name}}}", name) is Outcome.CORRECT for name in NAMES)
    assert not set(NAMES) & set(THINGS)


def test_no_question_is_asked_about_the_same_numbers_in_both_splits():
    train, held_out = (sample_problems(400, EVERY, 10, split, 0) for split in ("train", "held-out"))
    assert len({problem.text for problem in train}) == len({problem.text for problem in held_out}) == 400
    problems = [{(problem.question, frozenset(problem.numbers)) for problem in split} for split in (train, held_out)]
    assert not problems[0] & problems[1]
    assert [{problem.question for problem in split} for split in (train, held_out)] == [set(EVERY), set(EVERY)]


def test_a_draw_follows_from_its_seed():
    first, again, other = (sample_problems(30, EVERY, 10, "train", seed) for seed in (0, 0, 1))
    assert first == again != other


def test_problems_and_splits_stay_what_they_are():
    """Other samples would be another experiment under the same fingerprint."""
    assert [(p.text, p.answer) for p in sample_problems(2, EVERY, 10, "held-out", 0)] == GOLDEN
    assert [split_of(content) for content in ("sum 3 4", "sum 3 5", "sum 4 9")] == SPLITS


def test_only_misses_in_a_row_end_a_draw():
    numbers = iter(range(10**6))
    assert len(distinct(lambda: next(numbers), str, "train", MAX_MISSED_SAMPLES + 2000)) == MAX_MISSED_SAMPLES + 2000


def test_more_problems_than_there_are_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("redraft.tasks.word_problems.NAMES", NAMES[:2])
    monkeypatch.setattr("redraft.tasks.word_problems.THINGS", THINGS[:2])
    with pytest.raises(UserError, match="fewer different problems") as error:
        sample_problems(1000, ["who_has_more"], 6, "train", 0)
    assert (error.value.key, error.value.value) == ("data.size", 1000)


def plain(text):
    """A story without its names, numbers and things."""
    return [word for word in re.findall(r"[A-Za-z]+", text) if word not in {*NAMES, *THINGS}]


@pytest.mark.parametrize("split", ["train", "held-out"])
@pytest.mark.parametrize("options", [True, False])
def test_examples_ask_the_same_about_other_numbers_of_the_training_split(split, options):
    data = WordProblems(size=60, split=split, examples=3, options=options, largest=8)
    stories = sample_problems(60, data.questions, 8, split, 0)
    for story, problem in zip(stories, load_problems(data), strict=True):
        *solved, last = problem.prompt.split("\n\n")
        assert last.startswith(f"Question: {story.text}")
        assert last.endswith("\nAnswer:")
        assert problem.answer == story.answer
        assert len(set(solved)) == 3
        for example in solved:
            numbers = sorted(map(int, re.findall(r"\d+", example.partition("?")[0])))
            content = f"{story.question} {' '.join(map(str, numbers))}"
            assert split_of(content) == "train"
            assert content != story.content
            question, answer = example.split("\nAnswer: ")
            assert plain(question.partition("?")[0]) == plain(f"Question: {story.text}")
            assert (answer in question) == options
            assert not options or len(re.findall(r"boxed", question)) == 2


def test_the_examples_answers_are_right():
    (story,) = sample_problems(1, ["difference"], 10, "train", 0)
    (text,) = prompts([story], 5, True, 10, 0)
    solved = re.findall(r"has (\d+) \w+\. \w+ gives (\d+) [^?]*\? (.*)\?\nAnswer: (.*)", text)
    assert len(solved) == 5
    for more, fewer, offered, answer in solved:
        assert answer == f"\\boxed{{{int(more) - int(fewer)}}}"
        assert answer in offered.split(" or ")


def test_both_options_come_first_as_often():
    stories = sample_problems(300, ["sum"], 20, "train", 0)
    texts = prompts(stories, 0, True, 20, 0)
    first = sum(
        text.split("?")[1].strip().startswith(f"\\boxed{{{s.answer}}}") for text, s in zip(texts, stories, strict=True)
    )
    assert 110 < first < 190


def test_without_examples_the_prompt_asks_for_a_box():
    (story,) = sample_problems(1, ["sum"], 10, "train", 0)
    assert prompts([story], 0, False, 10, 0) == [
        f"Put your final answer within \\boxed{{}}.\n\nQuestion: {story.text}\nAnswer:"
    ]


def test_the_configuration_offers_every_question_and_no_other():
    assert set(get_args(Question)) == set(QUESTIONS)


@pytest.mark.parametrize(
    ("data", "grading"), [({"kind": "word_problems"}, "instructions"), ({"kind": "instructions"}, "math")]
)
def test_a_problem_set_is_graded_by_the_grader_of_its_problems(data, grading):
    with pytest.raises(ValueError, match="need grading"):
        ProblemSet.model_validate({"data": data, "grading": grading})


@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": ["sum", "sum"]},
        {"questions": []},
        {"questions": ["product"]},
        {"largest": 5},
        {"examples": -1},
        {"size": 0},
        {"split": "test"},
    ],
)
def test_what_no_problem_can_have_is_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WordProblems.model_validate(wrong)
