"""The text that a response gives as its answer, the outcome of grading it, and grading of multiple choice.

The comparison of mathematics is in `redraft.tasks.grading`, which imports sympy, and so takes a second to load.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

SECONDS = 5
"""Time limit in seconds of each of the grader's three steps: parsing the answer, parsing the box, comparing the two."""

LETTERS = "ABCD"
_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|textsf|textit|mathbf|mathrm|mathsf|mathit|boldsymbol)\{(.*)\}", re.S)
_CHOICE = re.compile(rf"\(([{LETTERS}])\)[.:]?(?:\s.*)?|([{LETTERS}])(?:[.):](?:\s.*)?)?", re.S)


class Outcome(StrEnum):
    """The result of grading a response."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    """The response has no closed box, or the last one is empty."""
    EMPTY = "empty"
    """The response has no text."""
    TIMEOUT = "time-out"
    ERROR = "error"
    """The grader failed, or cannot parse the answer."""


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """An outcome, and the text that was compared with the answer; empty if no text was."""

    outcome: Outcome
    extracted: str = ""


def box(content: object) -> str:
    """A final answer in its box."""
    return f"\\boxed{{{content}}}"


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` with balanced braces, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return None


def extract(text: str) -> GradedAnswer | str:
    """The content of a response's last box, stripped of blanks, or the verdict if there is no content."""
    if not text.strip():
        return GradedAnswer(Outcome.EMPTY)
    return (boxed(text) or "").strip() or GradedAnswer(Outcome.NO_ANSWER)


def letter(content: str) -> str | None:
    """The letter that a box names, or None.

    A box names a letter as C, (C), C., C: or `C) some text`, also in bold or as LaTeX text. The first letter of a word,
    several letters joined by words or commas, small letters and written-out options name none.
    """
    while match := _WRAPPED.fullmatch(content.strip()):
        content = match[1]
    match = _CHOICE.fullmatch(content.strip().strip("$").strip())
    return match and (match[1] or match[2])


def grade_choice(text: str, answer: str) -> GradedAnswer:
    """Compare the letter in the last box of a response with the answer, A to D.

    A box that names no letter is wrong. An answer that is no letter gives the outcome "error".
    """
    content = extract(text)
    if isinstance(content, GradedAnswer):
        return content
    if len(answer) != 1 or answer not in LETTERS:
        return GradedAnswer(Outcome.ERROR, content)
    found = letter(content)
    return GradedAnswer(Outcome.CORRECT if found == answer else Outcome.WRONG, found or content)
