r"""Notations that math-verify misreads, rewritten to ones that it reads with the same meaning.

Each rewriting has one meaning: what a reader of the typeset box sees. Where a notation has several, it is left to
math-verify, and `docs/grading.md` lists what becomes of it.
"""

import re
from collections.abc import Callable
from fractions import Fraction

_BLANK = r"(?:\\[,;:!> ]|~|\s)"
ARGUMENT = r"\{((?:\\.|[^{}\\]|\{(?:\\.|[^{}\\]|\{(?:\\.|[^{}\\])*+\})*+\})*+)\}"
"""A group in braces that nests at most two more, as TeX counts braces; without backtracking."""
_PARENTHESES = r"\(([^()]*+(?:\([^()]*+\)[^()]*+)*+)\)"
"""Parentheses that nest at most once."""
_INTEGER = re.compile(r"[-+]?\d+")
_WORD = re.compile(r"[A-Za-z]{2}|:")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_NUMERIC = re.compile(r"(?:[-+*/^_().,{}\s\d]|\\(?:[dt]?frac|sqrt|cdot|times|pm|pi|infty)(?![A-Za-z]))+")
"""LaTeX of numbers alone: no letters, so that no unit or word is in it."""
_SYMBOLS = str.maketrans(
    {
        "\u2212": "-",  # minus sign
        "\u2013": "-",  # en dash
        "\u00a0": " ",  # spaces that do not break or are narrow
        "\u2009": " ",
        "\u202f": " ",
        "∞": r"\infty ",
        "²": "^{2}",
        "³": "^{3}",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
    }
)


def _bold(match: re.Match[str]) -> str:
    """The argument of a bold or italic command, unless it is a word or the letter of an option."""
    inner = match[1].strip()
    if _WORD.search(_COMMAND.sub(" ", inner)):
        return match[0]
    whole = match[0] == match.string
    if whole and not re.search(r"[\d\\]", inner):
        return match[0]
    return inner if whole else f" {inner}" if len(inner) == 1 else f"{{{inner}}}"


def _roman(match: re.Match[str]) -> str:
    """The argument of a command for upright text, if it is a number that is all there is."""
    inner = match[1].strip()
    return inner if match[0] == match.string and _NUMERIC.fullmatch(inner) else match[0]


def _visible(match: re.Match[str]) -> str:
    """The argument of a command that colours or underlines it."""
    return match[1].strip() if match[0] == match.string else f"{{{match[1]}}}"


def _digits(match: re.Match[str]) -> str:
    """The digits of a number whose groups of three are separated by blanks or braced commas."""
    return re.sub(r"\D", "", match[0])


def _mixed(match: re.Match[str]) -> str:
    r"""`2 1/2` as `2\frac{1}{2}`, unless the fraction is not below 1."""
    whole, upper, lower = match.groups()
    return f"{whole}\\frac{{{upper}}}{{{lower}}}" if int(upper) < int(lower) else match[0]


def _repeating(match: re.Match[str]) -> str:
    """The fraction that equals a decimal whose last digits repeat."""
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}"), shift * (10 ** len(period) - 1))
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern, re.S), replacement)
    for pattern, replacement in (
        # Looks: sizes, styles, colours, bold. A command ends before its letters do not go on.
        (r"\A\*\*(.*)\*\*\Z", r"\1"),
        (r"\\(?:[bB]igg?[lrm]?|(?:text|script|display)style|[lL]arge|LARGE|normalsize)(?![A-Za-z])", " "),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}\s*(?!\{)", " "),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}\s*" + ARGUMENT, _visible),
        (r"\\(?:underline|emph|ensuremath)\s*" + ARGUMENT, _visible),
        (r"\\[hv]?phantom\s*" + ARGUMENT, " "),
        (r"\{\s*\\rm\s+([^{}\\]*)\}", r"\\mathrm{\1}"),
        (r"\\(?:bf|it)(?![A-Za-z])\s*|\\(?:mathbf|mathit|boldsymbol|bm)\s+(?=[\w\\])", " "),
        (r"\\(?:math(?:bf|it|sf|tt|normal)|text(?:bf|it|sf|tt)|boldsymbol|bm|pmb)\s*" + ARGUMENT, _bold),
        # Upright text. math-verify drops the last text in a box as a unit, also the imaginary unit, e and pi.
        (r"\\(?:mathrm|text|textrm|mbox|operatorname)\s*\{\s*([eixyz]|\\pi|\\infty)\s*\}", r" \1 "),
        (r"\\(?:mathrm|text|textrm|mbox)\s*" + ARGUMENT, _roman),
        (r"\\(?:text|mathrm)\{\s*\\?%\s*\}", r"\\%"),
        (r"\\imath(?![A-Za-z])", " i "),
        # math-verify ignores degrees, but cannot read every way to write them.
        (
            r"(?:\^\s*\{\s*(?:\\circ|\\degree|°)\s*\}|\^?\s*(?:\\(?:text)?degree(?![A-Za-z])|°)|\^\s*\\circ(?![A-Za-z]))"
            r"(?:\s*[CF]\s*\Z)?",
            " ",
        ),
        # Numbers.
        (r"(?<![\d.,_^])[1-9]\d{0,2}(?:(?:" + _BLANK + r"|\{\\?,\}|\\(?:text|mathord|mathpunct)\{,\})+\d{3})+(?!\d)", _digits),
        (r"(?<![\d./\\_^])(\d+)" + _BLANK + r"+(\d+)/(\d+)(?![\d./])", _mixed),
        (r"(?<![\d.])(\d+)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}(?!\d)", _repeating),
        (r"(?<=[\d}])" + _BLANK + r"+(?=\\?%)", ""),
        (r"(?<=\d)\.(?=\s*[/)}\],;])", ""),
        (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\[ns](?:ice)?frac(?=\s*\{)", r"\\frac"),
        (r"\\([dt]?binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
        (r"\^\s*" + _PARENTHESES, r"^{\1}"),
        (r"\\?sqrt\s*" + _PARENTHESES, r"\\sqrt{\1}"),
        # Braces and blanks.
        (r"\\([lr])brace(?![A-Za-z])", lambda match: "\\{" if match[1] == "l" else "\\}"),
        (r"~(?!=)", " "),
        (r"(?:(?<![.\\])[.,]|\\\\|\\(?=\Z)|\s|(?<!\\)\$)+\Z", ""),
    )
)


def rewrite(content: str) -> str:
    """The content of a box in notation that math-verify reads with the same meaning."""
    content = content.strip()
    if _INTEGER.fullmatch(content):
        return content
    content = content.translate(_SYMBOLS)
    for pattern, replacement in _REWRITES:
        content = pattern.sub(replacement, content)
    return content.strip()
