"""IFEval's kinds of instructions as this project asks for them: own words, and arguments drawn at random.

Each kind has the name that IFEval's checkers know it by. A kind draws the text that stands in the prompt and the
arguments that its checker gets. The texts are not IFEval's, so that training on them shows none of its prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redraft.tasks.topics import COMMON, ENDINGS, WORDS

LANGUAGES = {"es": "Spanish", "fr": "French", "de": "German", "it": "Italian"}


@dataclass(frozen=True)
class Instruction:
    """An instruction in words, and the name and the arguments of its checker."""

    name: str
    text: str
    arguments: dict[str, Any]


Draw = Callable[[np.random.Generator, str], tuple[str, dict[str, Any]]]
"""From random numbers and the request before the instruction, the instruction's text and arguments."""


def one_of(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """One of the options, each with the same chance."""
    return options[int(rng.integers(len(options)))]


def number(rng: np.random.Generator, low: int, high: int, step: int = 1) -> int:
    """A multiple of `step` above `low`, at most `high`, or `low` itself."""
    return int(low + step * rng.integers((high - low) // step + 1))


def some_of(rng: np.random.Generator, words: tuple[str, ...], count: int) -> list[str]:
    """So many different words."""
    return [str(word) for word in rng.choice(words, count, replace=False)]


def fixed(*texts: str) -> Draw:
    """A kind without arguments, in one of several wordings."""
    return lambda rng, request: (one_of(rng, texts), {})


def _existence(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    words = some_of(rng, WORDS, number(rng, 1, 3))
    listed = " and ".join(f'"{word}"' for word in words)
    text = one_of(rng, (f"Use {listed} somewhere in the text.", f"The text has to mention {listed}."))
    return text, {"keywords": words}


def _frequency(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    word, count = one_of(rng, WORDS), number(rng, 2, 4)
    text = f'Use the word "{word}" {count} times or more.'
    return text, {"keyword": word, "frequency": count, "relation": "at least"}


def _forbidden(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    words = some_of(rng, COMMON, number(rng, 1, 2))
    listed = " or ".join(f'"{word}"' for word in words)
    return f"Never use {listed}.", {"forbidden_words": words}


def _letters(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        letter, count = one_of(rng, tuple("gbmpw")), number(rng, 2, 5)
        text = f'The letter "{letter}" may occur fewer than {count} times in total.'
        return text, {"letter": letter, "let_frequency": count, "let_relation": "less than"}
    letter, count = one_of(rng, tuple("kvj")), number(rng, 3, 8)
    text = f'The letter "{letter}" has to occur {count} times or more.'
    return text, {"letter": letter, "let_frequency": count, "let_relation": "at least"}


def _language(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    code = one_of(rng, tuple(LANGUAGES))
    return f"Write everything in {LANGUAGES[code]}.", {"language": code}


def _sentences(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        count = number(rng, 3, 6)
        return f"Use fewer than {count} sentences.", {"num_sentences": count, "relation": "less than"}
    count = number(rng, 6, 10)
    return f"Use {count} sentences or more.", {"num_sentences": count, "relation": "at least"}


def _words(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        count = number(rng, 30, 60, 5)
        return f"Keep it under {count} words.", {"num_words": count, "relation": "less than"}
    count = number(rng, 80, 110, 5)
    return f"Write no fewer than {count} words.", {"num_words": count, "relation": "at least"}


def _paragraphs(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 3)
    text = f"Divide the text into {count} paragraphs with a line of three asterisks (***) between them."
    return text, {"num_paragraphs": count}


def _first_word(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count, word = number(rng, 2, 3), one_of(rng, WORDS)
    nth = number(rng, 1, count)
    text = f'Write {count} paragraphs with an empty line between them. The first word of paragraph {nth} is "{word}".'
    return text, {"num_paragraphs": count, "nth_paragraph": nth, "first_word": word}


def _placeholders(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 1, 3)
    example = one_of(rng, ("[city]", "[price]", "[colour]", "[weekday]"))
    text = f"Leave {count} or more blanks in square brackets to be filled in later, like {example}."
    return text, {"num_placeholders": count}


def _postscript(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    marker = one_of(rng, ("P.S.", "P.P.S"))
    return f'Add a postscript that begins with "{marker}" at the end.', {"postscript_marker": marker}


def _bullets(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 5)
    text = f"Answer as a list of exactly {count} items, each on a line that begins with * and a space."
    return text, {"num_bullets": count}


def _highlights(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 1, 4)
    return f"Emphasize {count} or more phrases with asterisks, *like this*.", {"num_highlights": count}


def _sections(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count, word = number(rng, 2, 3), one_of(rng, ("Part", "Chapter", "Section"))
    text = f"Split it into {count} numbered parts headed {word} 1, {word} 2 and so on."
    return text, {"section_spliter": word, "num_sections": count}


def _repeat(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    text = "Begin your answer by copying the request above exactly as it is, then carry it out."
    return text, {"prompt_to_repeat": request}


def _ending(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    phrase = one_of(rng, ENDINGS)
    return f'Let "{phrase}" be the last words and add nothing to them.', {"end_phrase": phrase}


def _capital_words(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 5)
    text = f"Write {count} or more of the words in CAPITALS."
    return text, {"capital_frequency": count, "capital_relation": "at least"}


KINDS: dict[str, Draw] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": fixed(
        'Choose yes or no or maybe and complete this: "My answer is ____."'
    ),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": fixed("Give the whole answer as one JSON object.", "Answer in valid JSON only."),
    "detectable_format:title": fixed("Put a title such as <<A Day>> in front.", "Give it a title like <<My Day>>."),
    "combination:two_responses": fixed("Write two versions, with a line of six asterisks (******) between them."),
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _ending,
    "startend:quotation": fixed('Start and end the whole answer with a double quote (").'),
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": fixed("USE CAPITAL LETTERS ONLY.", "Write everything in capital letters."),
    "change_case:english_lowercase": fixed("use small letters only.", "Write everything in lowercase letters."),
    "punctuation:no_comma": fixed("Avoid commas.", "Do without commas."),
}
"""Every kind of instruction that IFEval has, by the name of its checker."""
