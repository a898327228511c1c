"""The text that a response gives as its answer, and the outcome of grading it.

The comparison is in `redraft.tasks.grading`, which imports sympy, and so takes a second to load.
"""

from dataclasses import dataclass
from enum import StrEnum

SECONDS = 5
"""Time limit in seconds of each of the grader's three steps: parsing the answer, parsing the box, comparing the two."""


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
class Verdict:
    """An outcome, and the text that was compared with the answer; empty if no text was."""

    outcome: Outcome
    extracted: str = ""


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


def extract(text: str) -> Verdict | str:
    """The content of a response's last box, stripped of blanks, or the verdict if there is no content."""
    if not text.strip():
        return Verdict(Outcome.EMPTY)
    return (boxed(text) or "").strip() or Verdict(Outcome.NO_ANSWER)
