"""The tiny task: sums worked out by hand, and splits that never overlap."""

import numpy as np
import pytest

from redraft.errors import UserError
from redraft.tasks.arithmetic import MODULUS, Sum, sample_problem, sample_problems
from redraft.tasks.problem_splits import split_of

PROBLEM = Sum(75, (6, -2, 8, 9, 9))


def test_a_problem_names_its_terms_and_its_answer_is_taken_modulo_100():
    assert (PROBLEM.prompt, PROBLEM.answer) == ("75a+6b-2c+8d+9e+9=", 5)
    assert Sum(3, (-9,)).answer == 94


def test_a_solution_is_worked_term_by_term_and_boxes_the_answer():
    assert PROBLEM.working() == "75;a+6=81;b-2=79;c+8=87;d+9=96;e+9=5;\\boxed{5}"
    assert Sum(3, (-9,)).working() == "3;a-9=94;\\boxed{94}"


def test_a_slip_is_carried_on_to_the_end():
    assert PROBLEM.working({1: 3}) == "75;a+6=81;b-2=82;c+8=90;d+9=99;e+9=8;\\boxed{8}"


def test_no_problem_stands_in_both_splits_and_none_stands_twice():
    train, held_out = (sample_problems(60, 2, 3, "both", split, 0) for split in ("train", "held-out"))
    assert len({*train, *held_out}) == 120
    assert {split_of(problem.prompt) for problem in train} == {"train"}
    assert {split_of(problem.prompt) for problem in held_out} == {"held-out"}


@pytest.mark.parametrize(("signs", "signed"), [("both", {-1, 1}), ("minus", {-1})])
def test_numbers_of_terms_count_the_first_value_and_all_are_drawn(signs, signed):
    rng = np.random.default_rng(0)
    drawn = [sample_problem(rng, 3, 5, signs) for _ in range(300)]
    assert {1 + len(problem.terms) for problem in drawn} == {3, 4, 5}
    assert {abs(term) for problem in drawn for term in problem.terms} == set(range(1, 10))
    assert {np.sign(term) for problem in drawn for term in problem.terms} == signed
    assert {0, MODULUS - 1} <= {problem.first for problem in drawn} <= set(range(MODULUS))


def test_a_draw_follows_from_its_seed():
    first, again, other = (sample_problems(20, 2, 4, "both", "train", seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_more_problems_than_there_are_is_one_clear_error():
    with pytest.raises(UserError, match="fewer different problems") as error:
        sample_problems(1800, 2, 2, "both", "train", 0)
    assert error.value.key == "data.size"
