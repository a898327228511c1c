"""Characters of answers: those that cannot be seen, and those that are another way to write an ASCII character."""

import re
import unicodedata

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0]")
"""Characters that are not of Unicode's category of invisible ones (Cf), but show nothing."""
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁿⁱ]+")
_LOWERED = re.compile("[₀-₉₊₋₍₎]+")


class _Characters(dict[int, str]):
    """Table for `str.translate`, filled as characters occur."""

    def __missing__(self, code: int) -> str:
        self[code] = _plain(chr(code))
        return self[code]


_TABLE = _Characters()


def plain(text: str) -> str:
    r"""A text without invisible characters, and with those in ASCII whose meaning is certain.

    These are digits of all scripts, full-width characters, mathematical letters and digits, blanks, hyphens and the
    minus sign. Fractions become `\frac{1}{2}`, raised and lowered characters `^{…}` and `_{…}`.
    """
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    return text.translate(_TABLE)


def _plain(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" or _BLANK.fullmatch(character):
        return ""
    if kind == "Zs":
        return " "
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    if "\u2010" <= character <= "\u2013" or character == "\u2212":  # hyphens, figure dash, en dash, minus sign
        return "-"
    if "\uff01" <= character <= "\uff5e" or "\U0001d400" <= character <= "\U0001d7ff":
        return unicodedata.normalize("NFKC", character)
    if unicodedata.decomposition(character).startswith("<fraction>"):
        upper, _, lower = unicodedata.normalize("NFKC", character).partition("\u2044")
        return f"\\frac{{{upper}}}{{{lower}}}" if lower else character
    return character
