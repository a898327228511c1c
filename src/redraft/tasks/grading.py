"""The grader of mathematical answers, for the training reward and for evaluation.

math-verify compares the content of a response's last box with the answer. `docs/grading.md` lists which notations it
accepts as equal, and its known limits.

math-verify limits its time by one alarm whose handler raises an exception. If the alarm arrives during a garbage
collection, Python runs the handler there and ignores its exception, as it does in finalisers. The alarm is lost and
the call has no limit. Here the alarm repeats until the exception gets through.
"""

import re
import signal
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from latex2sympy2_extended.antlr_parser import PSParser  # type: ignore[import-untyped]
from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, parser, verify
from math_verify.errors import TimeoutException

from redraft.tasks.answers import SECONDS, GradedAnswer, Outcome, box, extract

T = TypeVar("T")

# Two modules of math-verify each warn once that its own time limit is off.
parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True

AGAIN = 0.5
"""Seconds between an alarm and its repetition."""
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([-+]?\d{1,3})")
EXPONENTS = range(-12, 300)
"""Exponents for which a text such as 4.5e33 is read as a number.

math-verify compares 15 decimal places, so all numbers with smaller exponents would be equal.
"""

if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
    # latex2sympy2-extended 1.11 calls this method on every atom. Its grammar for ANTLR 4.9, which hydra pins, lacks it
    # (those for 4.11 and 4.13 have it). The AttributeError leaves percentages unparsed, so 50\% would not equal 0.5.
    PSParser.AtomContext.FUNC_GAMMA = lambda self: None


def grade(text: str, answer: str) -> GradedAnswer:
    """Compare the last box of a response with the answer.

    Raises:
        RuntimeError: outside the main thread, since time limits are alarms. No other exception escapes.
    """
    content = extract(text)
    return content if isinstance(content, GradedAnswer) else GradedAnswer(compare(content, answer), content)


def is_correct(text: str, answer: str) -> bool:
    """True if the last box of a response holds the answer (SPEC-RL, Appendix A.1: reward 1 if it matches, else 0)."""
    return grade(text, answer).outcome is Outcome.CORRECT


@lru_cache(maxsize=1 << 16)
def compare(content: str, answer: str) -> Outcome:
    """Compare the content of a box with the answer, as texts and then by math-verify.

    Equal texts are correct without parsing. math-verify takes at most three times `SECONDS`. Outcomes are cached,
    including time-outs.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math-verify's time limits work only in the main thread of a process")
    if content == answer.strip():
        return Outcome.CORRECT
    try:
        gold = _gold(answer)
        if not gold:
            return Outcome.ERROR
        # The text is last in the list. Reversed, texts are compared before values, which may be slow to compute.
        candidate = _read(content)[::-1]
        return Outcome.CORRECT if limited(SECONDS, equal, gold, candidate) else Outcome.WRONG
    except TimeoutException:  # a BaseException, since sympy's own handlers would swallow an Exception
        return Outcome.TIMEOUT
    except Exception:  # sympy raises exceptions of nearly any type
        return Outcome.ERROR


@lru_cache(maxsize=1 << 13)
def _gold(answer: str) -> list[Any]:
    """The parsed answer, its text first; an empty list if it cannot be parsed.

    Raises:
        TimeoutException: if parsing takes too long. This is not cached, since the next attempt may be faster.
    """
    try:
        return _read(answer)[::-1]
    except Exception:
        return []


@lru_cache(maxsize=1 << 14)
def _read(content: str) -> list[Any]:
    """The sympy expression, if there is one, and the text, as math-verify parses LaTeX in a box.

    The list is cached, so callers must not modify it. LaTeX would read 4.5e33 as 4.5 times Euler's number times 33;
    58 of Minerva Math's 272 answers are written this way.
    """
    scientific = _SCIENTIFIC.fullmatch(content.strip())
    if scientific and int(scientific[2]) in EXPONENTS:
        content = f"{scientific[1]} \\times 10^{{{int(scientific[2])}}}"
    return limited(SECONDS, read_latex, box(content))


def read_latex(text: str) -> list[Any]:
    """Parse a text as LaTeX by math-verify, boxes before formulas: sympy expressions and their texts.

    No time limit; raises exceptions of nearly any type.
    """
    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(text, extraction_config=latex, parsing_timeout=None, raise_on_error=True)


def read_number(text: str) -> list[Any]:
    """The last plain number or fraction in a text, preferably after words such as "the answer is"; as `read_latex`."""
    return parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None, raise_on_error=True)


def equal(gold: list[Any], candidate: list[Any]) -> bool:
    """True if math-verify finds any parsed forms of both equal. No time limit; raises as `read_latex`."""
    return verify(gold, candidate, timeout_seconds=None, raise_on_error=True)


def limited(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """Call a function with a time limit and return its result.

    The limit is in wall seconds. A long call into C code is interrupted only when it returns.

    Raises:
        TimeoutException: if the limit is exceeded. It is a BaseException, so that handlers inside the function do not
            swallow it.
        ValueError: outside the main thread.
    """
    ended = False

    def expire(*_: object) -> None:
        if not ended:
            raise TimeoutException(f"the limit of {seconds} s is exceeded")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return function(*args)
    finally:
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
