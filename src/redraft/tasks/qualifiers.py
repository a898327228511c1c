r"""Words beside a number that change what it says: the half of a day, units, directions, bounds.

math-verify drops text beside a number, so that `12:00\text{ PM}` would equal `12:00\text{ AM}`. Here two answers
contradict each other if both have words of one group and none in common (`5\text{ cm}` and `5\text{ m}`), or both have
units and none in common (`5\text{ cm}` and `5\text{ s}`). Words in one of the two alone say nothing, since the problem
may name the unit that the other leaves out.
"""

import re
from collections import defaultdict
from functools import lru_cache

from redraft.tasks.characters import plain

WORDS = {
    "half of the day": "am morning midnight | pm afternoon evening noon",
    "day": "monday | tuesday | wednesday | thursday | friday | saturday | sunday",
    "month": "january | february | march | april | may | june | july | august | september | october | november"
    " | december",
    "era": "bc bce | ad ce",
    "parity": "even | odd",
    "sign": "positive | negative",
    "truth": "yes true | no false",
    "points of the compass": "north | south | east | west | northeast | northwest | southeast | southwest",
    "side": "left | right",
    "height": "up upward | down downward",
    "turn": "clockwise | counterclockwise anticlockwise",
    "bound": "more least above over greater | less fewer most below under smaller",
    "extremum": "maximum | minimum",
    "change": "increase increased rise gain profit | decrease decreased reduction loss",
    "scale": "hundred | thousand | million | billion | trillion | dozen",
    "length": "meter metre | millimeter millimetre | centimeter centimetre | kilometer kilometre | inch inches"
    " | angstrom | foot feet | yard | mile",
    "time": "second | minute | hour | day | week | month | year",
    "mass": "gram | kilogram | milligram | pound | ounce | ton | tonne",
    "volume": "liter litre | milliliter millilitre | gallon | quart | pint | cup",
    "money": "dollar | cent | euro",
    "angle": "degree | radian",
    "temperature": "celsius | fahrenheit | kelvin",
}
"""Words by groups, without the s of a plural. Within a group, words between bars mean the same."""
SYMBOLS = {
    "length": {"m": "meter", "mm": "millimeter", "cm": "centimeter", "km": "kilometer", "in": "inch", "ft": "foot"}
    | {"yd": "yard", "mi": "mile", "nm": "nanometer", "pm": "picometer", "um": "micrometer"},
    "time": {"s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "hrs": "hour"}
    | {"ms": "millisecond", "us": "microsecond", "yr": "year", "yrs": "year"},
    "mass": {"g": "gram", "kg": "kilogram", "mg": "milligram", "ug": "microgram"}
    | {"lb": "pound", "lbs": "pound", "oz": "ounce"},
    "volume": {
        "L": "liter",
        "l": "liter",
        "mL": "milliliter",
        "ml": "milliliter",
        "uL": "microliter",
        "ul": "microliter",
    },
    "angle": {"deg": "degree", "rad": "radian"},
    "energy": {symbol: symbol for symbol in ("uJ", "J", "kJ", "MJ", "eV", "keV", "MeV", "GeV", "cal", "kcal")},
    "power": {symbol: symbol for symbol in ("mW", "W", "kW", "MW", "GW")},
    "frequency": {symbol: symbol for symbol in ("Hz", "kHz", "MHz", "GHz")},
}
"""Symbols of units, which are also words or letters of formulas, with the word of the unit."""
UNITS = {*SYMBOLS, "money", "temperature"}
"""Groups of units."""
_OF_WORDS: dict[str, list[tuple[str, str]]] = defaultdict(list)
for _group, _words in WORDS.items():
    for _same in _words.split(" | "):
        for _word in _same.split():
            _OF_WORDS[_word].append((_group, _same.split()[0]))
_OF_SYMBOLS: dict[str, list[tuple[str, str]]] = defaultdict(list)
for _group, _symbols in SYMBOLS.items():
    for _symbol, _word in _symbols.items():
        _OF_SYMBOLS[_symbol].append((_group, _word))

_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_HALF_OF_DAY = re.compile(r"\b([AaPp])\.\s?([Mm])\b\.?")
_DEGREES = re.compile(r"(?:\\circ|\\degree|°)\s*\}?\s*(?:\\(?:text|mathrm)\s*\{[\s~]*)?([CF](?![A-Za-z]))?")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_MICRO = re.compile(
    r"(?:\\mu(?![A-Za-z])|[μµ])\s*\\(?:text|mathrm|mbox)\s*\{\s*|[μµ](?=[msLlgJWN]\b)|\\mu\s+(?=[msLlgJW]\s*\})"
)
_ANGSTROM = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*(?:\\AA|Å)\s*\}|\\AA(?![A-Za-z])|Å")
_DOLLARS = re.compile(r"\\\$\s*\d")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z\s./,-]*")
_WORD = re.compile(r"[A-Za-z]+")
_NEGATIONS = {"no", "not", "nor", "never", "neither", "non"}


def contradict(content: str, answer: str) -> bool:
    """True if the content of a box and an answer cannot say the same because of their words.

    Zero is zero in any unit.
    """
    ours, theirs = meanings(content), meanings(answer)
    differ = any(ours[group].isdisjoint(theirs[group]) for group in ours.keys() & theirs.keys())
    if not (differ or (ours.keys() & UNITS and theirs.keys() & UNITS and not ours.keys() & theirs.keys() & UNITS)):
        return False
    return bool(re.search("[1-9]", content)) or not re.search("[0-9]", content)


@lru_cache(maxsize=1 << 14)
def meanings(content: str) -> dict[str, set[str]]:
    """Meanings of the words in the content of a box or in an answer, by their groups."""
    content, found = plain(content), defaultdict(set)
    for match in _DEGREES.finditer(content):
        found["angle"].add("degree")
        if match[1]:
            found["temperature"].add({"C": "celsius", "F": "fahrenheit"}[match[1]])
    if _DOLLARS.search(content):
        found["money"].add("dollar")
    content = _MICRO.sub(lambda match: r"\text{u" if match[0].endswith("{") else "u", content)
    content = _ANGSTROM.sub(r"\\text{angstrom}", _HALF_OF_DAY.sub(r"\1\2", content))
    for phrase in [match[1] for match in _TEXT.finditer(content)]:
        _add(phrase, found, letters=True)
    for phrase in _PHRASE.findall(_COMMAND.sub(" ", _TEXT.sub(" ", content))):
        _add(phrase, found, letters=False)  # m is a variable as well
    return found


def _add(phrase: str, found: dict[str, set[str]], letters: bool) -> None:
    """Add the meanings of a phrase's words, unless it negates them.

    Letters and "in" are units only in a phrase without other words.
    """
    words = _WORD.findall(phrase)
    if len(words) > 1 and _NEGATIONS.intersection(word.lower() for word in words):
        return
    listed = {word: _listed(word) for word in words}
    alone = all(word in _OF_SYMBOLS or listed[word] for word in words)
    for word in words:
        unit = (alone and letters) if len(word) == 1 else (alone or word != "in")
        for group, meaning in [*listed[word], *(_OF_SYMBOLS.get(word, ()) if unit else ())]:
            found[group].add(meaning)


def _listed(word: str) -> list[tuple[str, str]]:
    word = word.lower()
    return _OF_WORDS.get(word) or _OF_WORDS.get(word.removesuffix("s"), [])
