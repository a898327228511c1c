"""The grader, the arithmetic task and its tokenizer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.config.data import ArithmeticProblems, ProblemFile
from redraft.errors import UserError
from redraft.tasks.arithmetic import MODULUS, Sum, box, draw, split_of
from redraft.tasks.grading import boxed, is_correct
from redraft.tasks.problems import Problem, load_problems
from redraft.tasks.tokenizer import BOX, EOS, PAD, make_tokenizer

sums = st.builds(
    Sum,
    st.integers(0, MODULUS - 1),
    st.lists(st.integers(1, 9).flatmap(lambda n: st.sampled_from([n, -n])), min_size=1, max_size=6).map(tuple),
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{7} no, \boxed{42}.", "42"),  # the last box counts
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2"),
        (r"\boxed{ 042 }", "42"),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
        (r"\boxed{\{1,2\}}", r"\{2,1\}"),
    ],
)
def test_right(text, answer):
    assert is_correct(text, answer) is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{41}", "42"),
        (r"\boxed{42} no, \boxed{7}", "42"),
        ("42", "42"),  # not boxed
        ("", "42"),
        (r"\boxed{}", "42"),
        (r"\boxed{42", "42"),  # not closed
        (r"\boxed{42} or \boxed{42", "42"),  # the last box is not closed
        ("boxed{42}", "42"),
        (r"\boxed{the answer}", "42"),
        (r"\boxed{-42}", "42"),
        (r"\boxed{4 2 7}", "42"),
    ],
)
def test_wrong(text, answer):
    assert is_correct(text, answer) is False


@pytest.mark.parametrize(
    "content", [r"\frac{1}{0}", r"\frac{}{}", "(" * 100, r"\int_{", "\x00", "^", r"\left(\right", "1/0"]
)
def test_what_cannot_be_parsed_is_wrong_and_raises_nothing(content):
    assert is_correct(f"\\boxed{{{content}}}", "42") is False


def test_braces_nest_in_a_box():
    assert boxed(r"a \boxed{\frac{1}{2}} b") == r"\frac{1}{2}"
    assert boxed(r"\boxed{1} \boxed{{2}{3}}}") == "{2}{3}"
    assert boxed(r"\boxed{\frac{1}{2}") is None


@given(sums)
def test_working_ends_in_the_right_box_and_takes_up_every_term(problem):
    working = problem.working()
    assert working.endswith(box((problem.first + sum(problem.terms)) % 100))
    assert is_correct(working, str(problem.answer))
    assert working.count(";") == len(problem.terms) + 1
    values = [int(step.rpartition("=")[2]) for step in working.split(";")[:-1]]
    steps = [(after - before) % MODULUS for before, after in pairwise(values)]
    assert steps == [term % MODULUS for term in problem.terms]


@given(sums, st.integers(1, 9))
def test_a_slip_spoils_the_answer_and_a_guess_is_what_is_boxed(problem, error):
    assert not is_correct(problem.working({0: error}), str(problem.answer))
    assert boxed(problem.working(boxed=5)) == "5"


def test_splits_are_disjoint_and_drawn_without_repetition():
    train, held_out = (draw(300, 2, 3, "both", split, seed=0) for split in ("train", "held-out"))
    assert len({*train, *held_out}) == 600
    assert {split_of(problem) for problem in train} == {"train"}
    assert {split_of(problem) for problem in held_out} == {"held-out"}


def test_a_draw_depends_on_its_seed_alone():
    assert draw(20, 4, 7, "both", "train", 0) == draw(20, 4, 7, "both", "train", 0)
    assert draw(20, 4, 7, "both", "train", 0) != draw(20, 4, 7, "both", "train", 1)


def test_problems_are_as_configured():
    problems = draw(100, 3, 5, "minus", "train", 0)
    assert {1 + len(problem.terms) for problem in problems} == {3, 4, 5}
    assert {term for problem in problems for term in problem.terms} == set(range(-9, 0))
    loaded = load_problems(ArithmeticProblems(size=100, min_terms=3, max_terms=5, signs="minus"))
    assert loaded == [Problem(problem.prompt, str(problem.answer)) for problem in problems]
    assert Sum(75, (6, -2, 8)).prompt == "75a+6b-2c+8="


def test_tokenizer_has_a_token_for_every_character_of_the_task():
    tokenizer = make_tokenizer()
    assert len(tokenizer) == 44
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, EOS)
    assert tokenizer(BOX)["input_ids"] == [tokenizer.convert_tokens_to_ids(BOX)]


@given(sums)
def test_text_comes_back_from_its_tokens(problem):
    tokenizer = make_tokenizer()
    text = problem.prompt + problem.working()
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text) - len(BOX) + 1
    assert tokenizer.pad_token_id not in tokens


def test_tokenizer_is_the_same_when_loaded(tmp_path):
    from transformers import AutoTokenizer

    text = Sum(75, (6, -2)).working()
    make_tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = make_tokenizer()(text)["input_ids"]
    assert loaded(text)["input_ids"] == ids
    ending = [*ids, loaded.eos_token_id]
    assert loaded.batch_decode([ending], skip_special_tokens=True) == [text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"problem": "1+1", "answer": 2}\n', "wrong number"),
        ('{"problem": "1+1"}\n{"problem": "1+2", "answer": 3}\n', "lacks a key"),
        ('{"problem": "1+1", "answer": 2}\nnonsense\n', "line 2 is not JSON"),
        ("[1]\n[2]\n", "line 1"),
    ],
)
def test_a_wrong_problem_file_is_named(tmp_path, content, message):
    file = tmp_path / "problems.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_problems(ProblemFile(path=str(file), size=2))
    assert error.value.file == file


def test_a_problem_file_is_read_in_order(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"problem": "1+1", "answer": 2}\n{"problem": "x", "answer": "y", "level": 3}\n')
    assert load_problems(ProblemFile(path=str(file), size=2)) == [Problem("1+1", "2"), Problem("x", "y")]
    with pytest.raises(UserError, match="missing"):
        load_problems(ProblemFile(path=str(tmp_path / "other.jsonl"), size=2))
