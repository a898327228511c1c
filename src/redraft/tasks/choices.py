"""Grading of multiple choice by the letter in a response's last box."""

import re

from redraft.tasks.answers import Outcome, Verdict, extract

LETTERS = "ABCD"
_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|textsf|textit|mathbf|mathrm|mathsf|mathit|boldsymbol)\{(.*)\}", re.S)
_CHOICE = re.compile(rf"\(([{LETTERS}])\)[.:]?(?:\s.*)?|([{LETTERS}])(?:[.):](?:\s.*)?)?", re.S)


def letter(content: str) -> str | None:
    """The letter that a box names, or None.

    A box names a letter as C, (C), C., C: or `C) some text`, also in bold or as LaTeX text. The first letter of a word,
    several letters joined by words or commas, small letters and written-out options name none.
    """
    while match := _WRAPPED.fullmatch(content.strip()):
        content = match[1]
    match = _CHOICE.fullmatch(content.strip().strip("$").strip())
    return match and (match[1] or match[2])


def grade_choice(text: str, answer: str) -> Verdict:
    """Compare the letter in the last box of a response with the answer, A to D.

    A box that names no letter is wrong. An answer that is no letter gives the outcome "error".
    """
    content = extract(text)
    if isinstance(content, Verdict):
        return content
    if len(answer) != 1 or answer not in LETTERS:
        return Verdict(Outcome.ERROR, content)
    found = letter(content)
    return Verdict(Outcome.CORRECT if found == answer else Outcome.WRONG, found or content)
