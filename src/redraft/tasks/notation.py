r"""Notations that math-verify misreads, rewritten to ones that it reads with the same meaning.

Each rewriting has one meaning: what a reader of the typeset box sees. Where a notation has several, it is left to
math-verify, and `docs/grading.md` lists what becomes of it.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from redraft.tasks.characters import plain

_BLANK = r"(?:\\[,;:!> ]|~|\s)"
ARGUMENT = r"\{((?>(?:\\.|[^{}\\]|\{(?>(?:\\.|[^{}\\]|\{(?>(?:\\.|[^{}\\])*)\})*)\})*))\}"
"""A group in braces that nests at most two more, as TeX counts braces; without backtracking.

Its inner groups are atomic, as in all patterns here: with a possessive quantifier after a group, early releases of
Python 3.11 (Debian 12 has 3.11.2) miss matches."""
_PARENTHESES = r"\(([^()]*+(?>(?:\([^()]*+\)[^()]*+)*))\)"
"""Parentheses that nest at most once."""
_INTEGER = re.compile(r"[-+]?\d+")
_WORD = re.compile(r"[A-Za-z]{2}|:")
_NAME = re.compile(r"[A-Za-z()\s]*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SYMBOL = r"(?:[A-Za-z]|\\[A-Za-z]+)"
_GREEK = r"\\(?:pi|alpha|beta|theta|lambda|mu|omega|phi|rho|sigma|tau)(?![A-Za-z])"
_MU = r"(?:\\mu(?![A-Za-z])|[μµ])"
_INDEX = r"(?:\s*_\s*(?:\{\s*(\w+)\s*\}|(\w)))?"
_QUOTIENT = re.compile(r"(?:/|÷|:|\\div)\s*\Z")
_LETTER = re.compile("[A-Za-z]")
_PART = r"((?:[^{}\\]|\\[,;:! ]|\\cdot(?![A-Za-z])|\\sqrt\s*(?:\{[^{}]*\}|\d))*)"
_ROOTS = re.compile(r"\\[dt]?frac\s*\{" + _PART + r"\\pm" + _PART + r"\}\s*\{([^{}]*)\}")
r"""A fraction with \pm in its numerator."""
_NUMERIC = re.compile(r"(?:[-+*/^_().,{}\s\d]|\\(?:[dt]?frac|sqrt|cdot|times|pm|pi|infty)(?![A-Za-z])|\\[$%])+")
"""LaTeX of numbers alone: no letters, so that no unit or word is in it."""


def _bold(match: re.Match[str]) -> str:
    """The argument of a bold or italic command. A word or a lone letter stays a name, as math-verify reads it."""
    command, inner = match[1], match[2].strip()
    whole = match[0] == match.string
    if len(inner) == 1 and not whole:
        return f" {inner}"
    words = _WORD.search(_COMMAND.sub(" ", inner)) if command.startswith("text") else _NAME.fullmatch(inner)
    if words or (whole and _NAME.fullmatch(inner)):
        return f"\\text{{{inner}}}"
    return inner if whole else f"{{{inner}}}"


def _roman(match: re.Match[str]) -> str:
    """The argument of a command for upright text, if it is a number that is all there is."""
    inner = match[1].strip()
    return inner if match[0] == match.string and _NUMERIC.fullmatch(inner) else match[0]


def _visible(match: re.Match[str]) -> str:
    """The argument of a command that colours, underlines or frames it."""
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
    whole, fixed, *periods = match.groups()
    period = periods[0] or periods[1]
    shift = 10 ** len(fixed)
    value = Fraction(int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}"), shift * (10 ** len(period) - 1))
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _scientific(match: re.Match[str]) -> str:
    r"""`8.7 \times 10^{8}` as `87 \times 10^{7}`, since 8.7 times a power of ten has a rounding error in sympy."""
    whole, decimals, *powers = match.groups()
    if _QUOTIENT.search(match.string[: match.start()]):  # 6/2.5 \times 10^2 is a product of a quotient
        return match[0]
    return f"{whole}{decimals} \\times 10^{{{int(powers[0] or powers[1]) - len(decimals)}}}"


def _common(match: re.Match[str]) -> str:
    r"""A symbol for the gcd or lcm of expressions with symbols: in sympy \gcd(m, n) is 1."""
    product = rf"(?<=\d){_BLANK}*\\(?:cdot|times)(?![A-Za-z]){_BLANK}*(?=\d)"
    inside = re.sub(_BLANK + r"|\\(?:left|right|cdot|times)(?![A-Za-z])", "", re.sub(product, "*", match[2]))
    arguments = sorted(re.sub(r"\{(\w)\}", r"\1", inside).split(","))
    if len(arguments) < 2 or not _LETTER.search(inside):
        return match[0]
    # The name has digits alone, since the grammar finds differentials and functions in letters.
    signs = ",".join(arguments)
    return f"g_{{{1 if match[1] == 'gcd' else 2}{''.join(f'{ord(sign):07}' for sign in signs)}}}"


def both_signs(content: str) -> str:
    r"""A list in which a fraction with one \pm in its numerator, the roots of a quadratic, is two elements."""
    if content.count(r"\pm") != 1 or not (match := _ROOTS.search(content)):
        return content
    start = max(content.rfind(sign, 0, match.start()) for sign in ",;{[(") + 1
    if start and content[start - 1] in "[(":
        return content
    ends = [end for sign in (",", ";", "\\}") if (end := content.find(sign, match.end())) >= 0]
    end = min(ends, default=len(content))
    if any(sign in content[start:end].replace(match[0], "") for sign in "{}()[]\\"):
        return content
    before, after = content[start : match.start()], content[match.end() : end]
    values = [f"{before}\\frac{{{match[1]}{sign}{match[2]}}}{{{match[3]}}}{after}" for sign in "+-"]
    return f"{content[:start]}{', '.join(values)}{content[end:]}"


def _derivative(match: re.Match[str]) -> str:
    """A symbol for the derivative of one symbol by another."""
    return f"{'D' if match[1] == 'd' else 'P'}_{{{match[2]}{match[3]}}}".replace("\\", "")


def _primed(match: re.Match[str]) -> str:
    """A letter with primes, and maybe an index, as a symbol with their number in its index."""
    letter, primes, *index = match.groups()
    return f"{letter}_{{p{primes.count(chr(39)) + primes.count('prime')}{index[0] or index[1] or ''}}}"


_BELOW = (r"\\frac\s*(" + ARGUMENT + r")\s*(" + _GREEK + r"|\d|[A-Za-z])", r"\\frac\1{\3}")
"""A denominator without braces."""
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern, re.S), replacement)
    for pattern, replacement in (
        # Delimiters of formulas; a line break may have a length in brackets after it.
        (r"(?<=\\\\)\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in|mu)\s*\]", " "),
        (r"\\\\|\\[\[\]()]", lambda match: match[0] if match[0] == r"\\" else " "),
        (r"\A\$(?=[^$]*\Z)", ""),  # the one at the end is gone already
        (r"∞", r"\\infty "),
        (r"\\(text|mathrm|textrm|mbox|operatorname)\s+\{", r"\\\1{"),
        # Sizes, styles, colours and bold.
        (r"\A\*\*(.*)\*\*\Z", r"\1"),
        (r"\\(?:[bB]igg?[lrm]?|(?:text|script|display)style|[lL]arge|LARGE|normalsize)(?![A-Za-z])", " "),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}\s*(?!\{)", " "),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}\s*" + ARGUMENT, _visible),
        (r"\\(?:underline|emph|ensuremath|fbox|boxed)\s*" + ARGUMENT, _visible),
        (r"\\[hv]?phantom\s*" + ARGUMENT, " "),
        (r"\{\s*\\rm\s+([^{}\\]*)\}", r"\\mathrm{\1}"),
        (r"\\(?:bf|it)(?![A-Za-z])\s*|\\(?:mathbf|mathit|boldsymbol|bm)\s+(?=[\w\\])", " "),
        (r"\\(math(?:bf|it|sf|tt|normal)|text(?:bf|it|sf|tt)|boldsymbol|bm|pmb)\s*" + ARGUMENT, _bold),
        # Upright text. math-verify drops the last text in a box as a unit, also the imaginary unit, e and pi.
        (r"\\(?:mathrm|text|textrm|mbox|operatorname)\s*\{\s*(\(?[eixyz]\)?|\\pi|\\infty)\s*\}", r" \1 "),
        (r"\\(?:mathrm|text|textrm|mbox)\s*" + ARGUMENT, _roman),
        (r"\\(?:text|mathrm)\{\s*\\?%\s*\}", r"\\%"),
        (r"\\imath(?![A-Za-z])", " i "),
        # math-verify ignores degrees, but cannot read every way to write them.
        (
            r"(?:\^\s*\{\s*(?:\\circ|\\degree|°)\s*\}|(?:\^\s*)?(?:\\(?:text)?degree(?![A-Za-z])|°)|\^\s*\\circ(?![A-Za-z]))"
            r"(?:\s*[CF]\s*\Z)?",
            " ",
        ),
        # Units with a letter that is no text.
        (
            r"(\A|=\s*)([-+]?[\d.](?>(?:[\d.]|\\times|[×^{}-]|"
            + _BLANK
            + r")*))"
            + _MU
            + r"\s*\\(?:text|mathrm|mbox)\s*\{\s*([msLl])\s*\}\s*\Z",
            r"\1\2\\text{μ\3}",
        ),
        (r"(?<=\d)" + _BLANK + r"*(?:\\AA(?![A-Za-z])|Å)\s*\Z", r"\\text{Å}"),
        # Numbers.
        (r"(?<=\d)\^\s*\{?\s*\\(?:text|mathrm|textrm)\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", " "),
        (
            r"(?<![\d.,_^])[1-9]\d{0,2}(?:(?:" + _BLANK + r"|\{\\?,\}|\\(?:text|mathord|mathpunct)\{,\})+\d{3})+(?!\d)",
            _digits,
        ),
        (r"(?<![\d./\\_^])(\d{1,9})" + _BLANK + r"+(\d{1,9})/(\d{1,9})(?![\d./])", _mixed),
        (r"(?<![\d.])(\d{1,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{(\d{1,20})\}|(\d))(?!\d|\\dot)", _repeating),
        (r"(?<=[\d}])" + _BLANK + r"+(?=\\?%)", ""),
        (r"(?<=\d)\.(?=\s*(?:[/)}\],;]|\\(?:times|cdot)))", ""),
        # LaTeX would read Euler's number in 4.5e33. 58 of Minerva Math's 272 answers are written this way. A name may
        # be before it and a unit after it. With three digits at most powers stay small.
        (
            r"(\A|=\s*)([-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]([-+]?\d{1,3})"
            r"(?=(?:(?:\\[,;: ]|~|\s)*\\(?:text|mathrm|mbox)\{[^{}]*\})?\Z)",
            lambda match: f"{match[1]}{match[2]} \\times 10^{{{int(match[3])}}}",
        ),
        (r"(?<![\d.])10\s*\^\s*([-+]\d{1,3}(?:\.\d+)?)(?!\.?\d|/)", r"10^{\1}"),
        (
            r"(?<![\d.,])(\d+)\.(\d+)" + _BLANK + r"*(?:\\(?:times|cdot)|[×*])" + _BLANK + r"*(?:10|\{10\})\s*\^\s*"
            r"(?:\{\s*([-+]?\d{1,3})\s*\}|(\d)(?!\d))",
            _scientific,
        ),
        (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\[ns](?:ice)?frac(?=\s*\{)", r"\\frac"),
        (r"\\([dt]?binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
        (r"\^\s*" + _PARENTHESES, r"^{\1}"),
        (r"\\?sqrt\s*" + _PARENTHESES, r"\\sqrt{\1}"),
        # A symbol with an index, which the grammar would take for an exponent of ten.
        (r"(\\[A-Za-z]+)|E(?=\s*_)", lambda match: match[1] or r"\text{E}"),
        (
            r"\\(?:(?:operatorname|mathrm|text)\s*\{\s*)?(gcd|lcm)(?:\s*\})?(?>" + _BLANK + r"*)"
            r"(?:\\left)?\(((?>(?:[^()]|\([^()]*\))*))\)",
            _common,
        ),
        # The grammar takes it for the gamma function or for Euler's constant, so that \gamma - 1 is infinite.
        (r"\\gamma(?![A-Za-z])" + _INDEX, lambda match: f"g_{{gamma{match[1] or match[2] or ''}}}"),
        # In sympy the derivative of one symbol by another is 0. Here it is a symbol of its own.
        (
            r"\\[dt]?frac\s*\{\s*(d|\\partial)\s*(" + _SYMBOL + r")\s*\}\s*\{\s*\1\s*(" + _SYMBOL + r")\s*\}",
            _derivative,
        ),
        # The grammar drops primes, and an exponent T, as that of a transposition, of anything but a matrix.
        (
            r"(?<![A-Za-z\\])([A-Za-z])('+|\^\s*\{\s*(?:'|\\prime\s*)+\}|\^\s*\\prime(?![A-Za-z]))" + _INDEX,
            _primed,
        ),
        (r"(?<!matrix\})\^\s*(?:\{\s*T\s*\}|T)", r"^{(T)}"),
        # An argument without braces: a Greek letter, and a digit after the index of a root.
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\sqrt\s*(" + _GREEK + ")", r"\\sqrt{\1}"),
        (r"\\sqrt\s*(\[\d+\])\s*(\d)(?!\d)", r"\\sqrt\1{\2}"),
        (r"\\frac\s*(" + _GREEK + r"|\d)\s*(?=\\|\{|\d)", r"\\frac{\1}"),
        # Again for fractions within each other, the inner one first.
        _BELOW,
        _BELOW,
        _BELOW,
        _BELOW,
        # math-verify would take the first digit after any later brace for the denominator, as in \frac{1}{2} e^{x} 5.
        (r"(?<=\})(?<!,\})\s?(?=\d)", lambda match: "  " if r"\frac" in match.string else match[0]),
        # Braces and blanks.
        (r"\\([lr])brace(?![A-Za-z])", lambda match: "\\{" if match[1] == "l" else "\\}"),
        (r"\\langle([^,\\]*+,(?>(?:(?!\\[lr]angle).)*))\\rangle", r"(\1)"),
        (r"\\varnothing(?![A-Za-z])|∅", r"\\emptyset "),
        (r"~(?!=)", " "),
    )
)


@lru_cache(maxsize=1 << 14)
def rewrite(content: str) -> str:
    """The content of a box in notation that math-verify reads with the same meaning."""
    content = _without_end(plain(content))
    if _INTEGER.fullmatch(content):
        return content
    for pattern, replacement in _REWRITES:
        content = pattern.sub(replacement, content).strip()
    return _without_end(content)


def _without_end(content: str) -> str:
    """A text without blanks around it, and without the period, comma, dollar or line break at its end."""
    end = len(content)
    while end and (content[end - 1] in " \n\t\\" or _is_punctuation(content[max(0, end - 2) : end])):
        end -= 1
    return content[:end].strip()


def _is_punctuation(end: str) -> bool:
    """True for the last two characters of a text whose last is a period, comma or dollar that belongs to a sentence."""
    return (end[-1] == "$" and end[:-1] != "\\") or (end[-1] in ".," and end[:-1] not in (".", "\\"))
