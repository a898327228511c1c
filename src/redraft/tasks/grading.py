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
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

from latex2sympy2_extended.antlr_parser import PSParser  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, convert_to_pct, normalize_latex  # type: ignore[import-untyped]
from latex2sympy2_extended.math_normalization import units_regex  # type: ignore[import-untyped]
from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, parser, verify
from math_verify.errors import TimeoutException
from math_verify.parser import get_last_eq, should_treat_as_complex
from sympy import (  # type: ignore[import-untyped]
    Derivative,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Integer,
    Integral,
    Limit,
    Pow,
    Product,
    Sum,
    Tuple,
    preorder_traversal,
)

from redraft.tasks.answers import SECONDS, GradedAnswer, Outcome, extract
from redraft.tasks.notation import ARGUMENT, both_signs, rewrite
from redraft.tasks.qualifiers import contradict

T = TypeVar("T")

# Two modules of math-verify each warn once that its own time limit is off.
parser.TIMEOUT_WARNING_SHOWN = grader.TIMEOUT_WARNING_SHOWN = True

AGAIN = 0.5
"""Seconds between an alarm and its repetition."""
MOST_DIGITS = 1000
"""Bound of the digits to which large numbers are compared."""
SLOW = (Integral, Sum, Product, Limit, Derivative)
"""Expressions of which many digits take long."""
_INTEGER = re.compile(r"\d+")
_NUMBER = re.compile(r"\{?\d+(?:\.\d+)?\}?")
_FRACTION = re.compile(r"\{?\\frac\{(\d+)\}\{(\d+)\}\}?")
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])")
_SERIES = re.compile(r"\\(?:sum|prod|int|lim)(?![A-Za-z])")
_PRODUCT = re.compile(r"ab|bc|rs|st|by|[a-z](?:\s+\S)+")
"""What math-verify takes for a unit and is a product of variables."""
_GREEK = re.compile(r"\\(?:alpha|beta|theta|lambda|mu|omega|Omega|phi|rho|sigma|tau)(?![A-Za-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]+")

_CLEAN_UP = LatexExtractionConfig().normalization_config
"""math-verify's settings, applied in two parts: before units are removed, and after."""
_BEFORE_UNITS = replace(_CLEAN_UP, boxed="none", units=False, nits=False, malformed_operators=False)
_AFTER_UNITS = replace(_CLEAN_UP, boxed="none", units=False, basic_latex=False)
_UNITS = re.compile(
    rf"(?:(?>(?:\\cdot|\\[,;:! ]|[\s/])*)\\(?:text|mbox)\s*{ARGUMENT}(?:\^-?\d|\^?\{{\^?-?\d+\}})?)+\Z", re.S
)
"""Texts at the end, as a unit such as m/s is written, each with its power."""

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

    Equal texts are correct without parsing, also if they are equal once they are rewritten. math-verify takes at most
    three times `SECONDS`. Outcomes are cached, including time-outs.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math-verify's time limits work only in the main thread of a process")
    if content == answer.strip():
        return Outcome.CORRECT
    # First, since rewriting and math-verify drop units and other words.
    if contradict(content, answer):
        return Outcome.WRONG
    if rewrite(content) == rewrite(answer) != "":
        return Outcome.CORRECT
    try:
        gold = _gold(answer)
        if not gold:
            return Outcome.ERROR
        # The text is last in the list. Reversed, texts are compared before values, which may be slow to compute.
        candidate = read(content)[::-1]
        gold, candidate = _without_percent(gold, candidate), _without_percent(candidate, gold)
        gold, candidate = _with_symbol(answer, gold, candidate), _with_symbol(content, candidate, gold)
        gold, candidate = _with_list(gold), _with_list(candidate)
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
        return read(answer)[::-1]
    except Exception:
        return []


@lru_cache(maxsize=1 << 14)
def read(content: str) -> list[Any]:
    """The sympy expression of an answer or of a box's content, if there is one, and the text.

    The list is cached, so callers must not modify it. Raises `TimeoutException` and exceptions of nearly any type.
    """
    return limited(SECONDS, read_latex, content)


def read_latex(content: str) -> list[Any]:
    """Parse LaTeX by math-verify's clean-up and grammar: a sympy expression, if there is one, and the text.

    No time limit; raises exceptions of nearly any type.
    """
    latex = normalize_latex(both_signs(_without_unit(_clean(content))), _AFTER_UNITS)
    value = _value(latex)
    if value is None and (percentage := _percentage(latex)) and (number := _value(percentage)) is not None:
        value = convert_to_pct(number)
    return ([] if value is None else [value]) + ([latex] if latex else [])


def _clean(content: str) -> str:
    """LaTeX of a box in math-verify's notation, with its unit."""
    return normalize_latex(rewrite(content), _BEFORE_UNITS)


def _percentage(latex: str) -> str | None:
    """What is before the percent sign at the end of LaTeX with a digit, or None."""
    return latex[:-1].removesuffix("\\").strip() if latex.endswith("%") and any(map(str.isdigit, latex)) else None


def _without_unit(latex: str) -> str:
    r"""LaTeX without the unit at its end, as text in `\text{}` or as one of math-verify's units without it.

    math-verify's own removal takes all that follows the first of several texts, and the last letter of \pi r^2 h.
    """
    latex = _UNITS.sub("", latex).strip() or latex
    bare = units_regex.sub(r"\1", units_regex.sub(r"\1", latex)).strip()
    dropped, (left, _, right) = latex[len(bare) :].strip(), bare.rpartition("=")
    # Another letter next to it, or the argument of the function whose value it is in, as in f(t) = 2t.
    beside = _LETTER.search(right) or _GREEK.search(right)
    of_function = re.search(rf"\([^()]*\b{re.escape(dropped)}\b[^()]*\)", left)
    variable = _PRODUCT.fullmatch(dropped) or (len(dropped) == 1 and (beside or of_function))
    return latex if variable or not bare else bare


def _value(latex: str) -> Any:
    """The sympy expression of LaTeX or else of what follows its last equality sign, or None."""
    # The two are the same text without an equality sign, and are then parsed once.
    for text in dict.fromkeys((latex, get_last_eq(latex))):
        try:
            return _Converter(text).parse(text)
        except Exception:
            continue
    return None


class _Converter(_Latex2Sympy):  # type: ignore[misc]
    """math-verify's conversion of LaTeX to sympy, except for adjacent factors and the imaginary unit.

    math-verify adds an integer to any positive rational number after it, for the sake of mixed numbers: 2(4) is 6.
    """

    def __init__(self, latex: str) -> None:
        self.imaginary = bool(_IMAGINARY.search(latex)) and not _SERIES.search(latex)
        super().__init__(is_real=not (self.imaginary or should_treat_as_complex(latex)))

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        """The product of factors side by side, or the value of a mixed number.

        Raises:
            ValueError: for two numbers side by side.
        """
        if i + 1 == len(arr):
            return super().convert_postfix_list(arr, i)
        first, second = arr[i].getText(), arr[i + 1].getText()
        if _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second):
            raise ValueError(f"{first} and {second} side by side are neither a product nor one number")
        # An integer before a fraction below 1 is a mixed number; before anything else it is a factor.
        fraction = _FRACTION.fullmatch(second)
        if fraction and i + 2 == len(arr) and _INTEGER.fullmatch(first) and int(fraction[1]) < int(fraction[2]):
            return super().convert_postfix_list(arr, i)
        factor = self.convert_postfix(arr[i])
        if not isinstance(factor, Integer):
            return super().convert_postfix_list(arr, i)
        rest = self.convert_postfix_list(arr, i + 1)
        return self.mat_mul_flat(factor, rest) if getattr(rest, "is_Matrix", False) else self.mul_flat(factor, rest)

    def convert_atom_expr(self, atom_expr: Any) -> Any:
        """A symbol, or the imaginary unit for a letter i without an index."""
        letter = atom_expr.LETTER_NO_E()
        if not self.imaginary or letter is None or letter.getText() != "i" or atom_expr.subexpr():
            return super().convert_atom_expr(atom_expr)
        power = atom_expr.supexpr() if hasattr(atom_expr, "supexpr") else None
        if power is None:
            return I
        exponent = self.convert_expr(power.expr()) if power.expr() else self.convert_atom(power.atom())
        return Pow(I, exponent, evaluate=False)

    def convert_interval(self, expr: Any) -> Any:
        """An interval, or a pair of numbers of which one is complex."""
        try:
            return super().convert_interval(expr)
        except ValueError:
            return Tuple(*(self.convert_expr(end) for end in expr.expr()))


def read_number(text: str) -> list[Any]:
    """The last plain number or fraction in a text, preferably after words such as "the answer is".

    Returns what `read_latex` returns. No time limit; raises exceptions of nearly any type.
    """
    return parse(text, extraction_config=[ExprExtractionConfig()], parsing_timeout=None, raise_on_error=True)


def _without_percent(forms: list[Any], others: list[Any]) -> list[Any]:
    r"""The parsed forms of an answer, and of its number without the percent sign if the other answer has none.

    math-verify does this for integers: 50\% equals 50. A number below 1 keeps its sign, since 0.5 may be a share.
    """
    # The text comes first (`compare`).
    percentage = _percentage(forms[0]) if forms and others and "%" not in str(others[0]) else None
    if not percentage:
        return forms
    values = limited(SECONDS, read_latex, percentage)[:-1]
    return [*forms, *(value for value in values if getattr(value, "is_number", False) and abs(value.evalf(3)) >= 1)]


def _with_symbol(content: str, forms: list[Any], others: list[Any]) -> list[Any]:
    r"""The parsed forms of an answer, and of it with the letter that was dropped from its end as a unit.

    The letter counts as a symbol if the other answer has that symbol: \frac{1}{\sqrt{2}} c equals \frac{c}{\sqrt{2}}.
    """
    latex = _clean(content)
    dropped = latex[len(_without_unit(latex)) :].strip()
    symbols = {str(symbol) for other in others for symbol in getattr(other, "free_symbols", ())}
    if dropped not in symbols:
        return forms
    value = limited(SECONDS, _value, normalize_latex(latex, _AFTER_UNITS))
    return forms if value is None else [*forms, value]


def _with_list(forms: list[Any]) -> list[Any]:
    """The parsed forms of an answer, and the list that a symbol is equal to, which math-verify compares by elements."""
    values = [
        form.rhs for form in forms if isinstance(form, Eq) and form.lhs.is_Symbol and isinstance(form.rhs, FiniteSet)
    ]
    return [*forms, *values]


def equal(gold: list[Any], candidate: list[Any]) -> bool:
    """True if math-verify finds any parsed forms of both equal, of which the first may be texts.

    No time limit; raises as `read_latex`.

    math-verify compares 6 decimals of decimal numbers and 15 of other values, and takes what is smaller for 0, also a
    factor. So values that are equal to this precision are compared again: decimal numbers to 3 significant digits, and
    exact ones to 50 digits more than their smallest and their largest part need.
    """
    if not verify(gold, candidate, timeout_seconds=None, raise_on_error=True):
        return False
    if gold[0] == candidate[0]:  # the same text
        return True
    parts = [part for form in (*gold, *candidate) if not isinstance(form, str) for part in preorder_traversal(form)]
    zeros, digits = _size(parts)
    exact = not any(isinstance(part, (Float, *SLOW)) for part in parts)
    return (not exact and zeros < 3) or verify(
        gold,
        candidate,
        float_rounding=max(6, 3 + zeros),
        numeric_precision=50 + zeros + min(4 * digits, MOST_DIGITS) if exact else 12 + zeros,
        timeout_seconds=None,
        raise_on_error=True,
    )


def _size(parts: list[Any]) -> tuple[int, int]:
    """Zeros after the decimal point of the smallest number among parts, and digits before it of the largest."""
    powers = [0]
    for part in parts:
        if isinstance(part, Expr) and part.is_number and not part.has(*SLOW):
            # Enough digits for the order of magnitude.
            value = abs(part.evalf(3))
            if isinstance(value, Float) and value:
                powers.append(Decimal(str(value)).adjusted())
    return max(0, -1 - min(powers)), max(powers)


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
        # First, since the alarm may come before the next line has switched it off.
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
