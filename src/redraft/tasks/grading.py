"""The one grader: training reward and evaluation both ask it. math-verify compares what is boxed with the answer.

What it takes for equal, and what not, is in `docs/grading.md`.
"""

import re
import threading
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.antlr_parser import PSParser  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, grader, parse, parser, verify
from math_verify.errors import TimeoutException

from redraft.tasks.limit import limited

SECONDS = 5
"""Time limit of each of three steps: reading the answer, reading the box, comparing."""

# math-verify warns once, in each of two modules, that its own limit is off.
parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True

_SCIENTIFIC = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([-+]?\d{1,3})")

EXPONENTS = range(-12, 300)
"""Of numbers such as 4.5e33 that are read so. math-verify compares 15 decimal places: smaller ones would be equal."""

if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
    # latex2sympy2-extended 1.11 asks this of every atom, but its grammar for ANTLR 4.9, which hydra pins, lacks it: an
    # AttributeError that leaves percentages unread, so that 50\% is not 0.5. Those for 4.11 and 4.13 have it.
    PSParser.AtomContext.FUNC_GAMMA = lambda self: None


class Outcome(StrEnum):
    """What became of a response."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    """No closed box, or an empty one."""
    EMPTY = "empty"
    """No text at all."""
    TIMEOUT = "time-out"
    ERROR = "error"
    """The grader failed, or cannot read the answer to compare with."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and the text that was compared with the answer; empty if there was none."""

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
    """What a response's last box holds, without blanks around it, or the verdict if that is nothing."""
    if not text.strip():
        return Verdict(Outcome.EMPTY)
    return (boxed(text) or "").strip() or Verdict(Outcome.NO_ANSWER)


def grade(text: str, answer: str) -> Verdict:
    """Compare the last box of a response with the answer.

    Raises:
        RuntimeError: outside a main thread, where time limits (alarms) do not work. Nothing else escapes.
    """
    content = extract(text)
    return content if isinstance(content, Verdict) else Verdict(compare(content, answer), content)


def is_correct(text: str, answer: str) -> bool:
    """Whether the last box of a response holds the answer (SPEC-RL, Appendix A.1: 1 if it matches, else 0)."""
    return grade(text, answer).outcome is Outcome.CORRECT


@lru_cache(maxsize=1 << 16)
def compare(content: str, answer: str) -> Outcome:
    """math-verify's verdict on what is boxed, within three times `SECONDS`; what timed out once is remembered.

    Raises:
        RuntimeError: outside a main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math-verify's time limits work in the main thread of a process only")
    try:
        gold = _gold(answer)
        if not gold:
            return Outcome.ERROR
        # Backwards, since what is read as text comes last: equal texts are equal, whatever they would take to compute.
        found = _read(content)[::-1]
        return Outcome.CORRECT if limited(SECONDS, _equal, gold, found) else Outcome.WRONG
    except TimeoutException:  # a BaseException, so that sympy's own handlers do not swallow it
        return Outcome.TIMEOUT
    except Exception:  # sympy raises nearly anything
        return Outcome.ERROR


@lru_cache(maxsize=1 << 13)
def _gold(answer: str) -> list[Any]:
    """An answer to compare with, its text first; nothing if it cannot be read.

    Raises:
        TimeoutException: if it takes too long now; that is not remembered, since the next response may have more luck.
    """
    try:
        return _read(answer)[::-1]
    except Exception:
        return []


def _read(content: str) -> list[Any]:
    """An expression of sympy, if it is one, and the text, as math-verify reads LaTeX in a box.

    As LaTeX 4.5e33 would be 4.5 times Euler's number times 33, and 58 of Minerva Math's 272 answers are written so.
    """
    scientific = _SCIENTIFIC.fullmatch(content.strip())
    if scientific and int(scientific[2]) in EXPONENTS:
        content = f"{scientific[1]} \\times 10^{{{int(scientific[2])}}}"
    return limited(SECONDS, _parse, f"\\boxed{{{content}}}")


def _parse(text: str) -> list[Any]:
    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(text, extraction_config=latex, parsing_timeout=None, raise_on_error=True)


def _equal(gold: list[Any], found: list[Any]) -> bool:
    return verify(gold, found, timeout_seconds=None, raise_on_error=True)
