"""The rules that grade for comparison only, on texts where they differ."""

import pytest

from redraft.tasks.rewards import REWARDS
from tests.conformance import anywhere, last_number

last_box = REWARDS["last_box"]


@pytest.mark.parametrize(
    ("text", "answer", "by_box", "by_number"),
    [
        ("First 3, then \\boxed{4}.", "4", True, True),
        ("First 4, then \\boxed{3}.", "4", False, False),
        ("It costs $1,250.", "1250", False, True),
        ("It is -2.5", "-2.5", False, True),
        ("\\boxed{4} of 7", "4", True, False),
        ("\\boxed{x}", "x", True, False),
    ],
)
def test_the_last_box_and_the_last_number_may_tell_a_text_apart(text, answer, by_box, by_number):
    assert (last_box(text, answer), last_number(text, answer)) == (by_box, by_number)


def test_a_plain_expression_counts_anywhere_but_not_in_the_last_box():
    assert anywhere("So it is 12", "12")
    assert not last_box("So it is 12", "12")
