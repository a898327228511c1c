"""Instructions of IFEval (arXiv 2311.07911) as data: their names, their arguments, and a check of both.

lm-eval's checkers replace an argument that is missing, empty or zero by a random value, and fail on `3.0` where a count
is expected. Both would give a wrong verdict on every response, so they are handled where problems are read.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, get_args

from redraft.config.data import INSTRUCTION_COLUMNS
from redraft.config.generated import InstructionName
from redraft.errors import UserError

RELATIONS = ("less than", "at least")
LANGUAGES = (
    "ar, bg, bn, de, en, es, fa, fi, fr, gu, he, hi, it, ja, kn, ko, ml, mr, ne, pa, pl, pt, ru, sw, ta, te, th, uk, "
    "ur, vi"
)
ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(get_args(InstructionName), ()) | {
    "keywords:existence": ("keywords",),
    "keywords:frequency": ("keyword", "frequency", "relation"),
    "keywords:forbidden_words": ("forbidden_words",),
    "keywords:letter_frequency": ("letter", "let_frequency", "let_relation"),
    "language:response_language": ("language",),
    "length_constraints:number_sentences": ("num_sentences", "relation"),
    "length_constraints:number_paragraphs": ("num_paragraphs",),
    "length_constraints:number_words": ("num_words", "relation"),
    "length_constraints:nth_paragraph_first_word": ("num_paragraphs", "nth_paragraph", "first_word"),
    "detectable_content:number_placeholders": ("num_placeholders",),
    "detectable_content:postscript": ("postscript_marker",),
    "detectable_format:number_bullet_lists": ("num_bullets",),
    "detectable_format:number_highlighted_sections": ("num_highlights",),
    "detectable_format:multiple_sections": ("section_spliter", "num_sections"),
    "combination:repeat_prompt": ("prompt_to_repeat",),
    "startend:end_checker": ("end_phrase",),
    "change_case:capital_word_frequency": ("capital_frequency", "capital_relation"),
}
"""Names of the arguments of each instruction; all are required."""
WORDS = ("keywords", "forbidden_words")
COUNTS = ("frequency", "let_frequency", "capital_frequency", "nth_paragraph")


def normalized(record: Mapping[str, Any]) -> dict[str, Any]:
    """IFEval's columns with whole numbers as integers and without arguments that are null, empty or zero.

    Parquet holds all arguments of the file for every instruction, empty where an instruction has none of that name, and
    some files hold counts as floats.

    Raises:
        UserError: if a column is missing or has another type, or an instruction is unknown or has other arguments.
    """
    if not set(INSTRUCTION_COLUMNS) <= record.keys():
        raise _error("this answer does not hold a prompt's instructions", "answer", list(record), INSTRUCTION_COLUMNS)
    names, kwargs, key = record["instruction_id_list"], record["kwargs"], _whole(record["key"])
    if not isinstance(names, list) or not isinstance(kwargs, list) or not names:
        raise _error("these are not lists of instructions", "instruction_id_list, kwargs", names)
    if not isinstance(key, int | str) or isinstance(key, bool):
        raise _error("this is not the key of a prompt", "key", key, "an integer or text")
    if len(names) != len(kwargs):
        count = f"{len(names)}, {len(kwargs)}"
        raise _error("the numbers of instructions and of their arguments differ", "kwargs", count)
    if unknown := [name for name in names if not isinstance(name, str) or name not in ARGUMENTS]:
        raise _error("unknown instructions", "instruction_id_list", unknown, ARGUMENTS)
    arguments = [_arguments(name, given) for name, given in zip(names, kwargs, strict=True)]
    return {"key": key, "instruction_id_list": names, "kwargs": arguments}


def _arguments(name: str, given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise _error("the arguments of an instruction are not an object", f"kwargs of {name}", given)
    arguments = {key: _whole(value) for key, value in (given or {}).items()}
    arguments = {key: value for key, value in arguments.items() if value}
    if set(arguments) != set(ARGUMENTS[name]):
        message, needed = "an instruction lacks arguments or has those of another one", ", ".join(ARGUMENTS[name])
        raise _error(message, f"kwargs of {name}", ", ".join(arguments), needed or "none")
    for key, value in arguments.items():
        if allowed := _mistake(key, value):
            raise _error("an argument has a wrong value", f"{key} of {name}", value, allowed)
    return arguments


def _error(message: str, key: str, value: Any, allowed: str | Iterable[str] | None = None) -> UserError:
    return UserError(message, key=key, value=str(value)[:80], allowed=allowed)


def _mistake(key: str, value: Any) -> str:
    """What is allowed for an argument if the value is not; else empty."""
    if key in WORDS:
        right = isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)
        return "" if right else "a list of words"
    if key.startswith("num_") or key in COUNTS:
        return "" if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "an integer from 1"
    if key.endswith("relation"):
        return "" if isinstance(value, str) and value in RELATIONS else ", ".join(RELATIONS)
    if key == "language":
        return "" if isinstance(value, str) and value in LANGUAGES.split(", ") else LANGUAGES
    if key == "letter":
        return "" if isinstance(value, str) and len(value) == 1 else "one character"
    return "" if isinstance(value, str) else "text"


def _whole(value: Any) -> Any:
    """An integer for a number without a fraction, None for NaN, and any other value unchanged."""
    if not isinstance(value, float | Decimal) or math.isinf(value):
        return value
    if math.isnan(value):
        return None
    return int(value) if value == int(value) else value
