"""IFEval's kinds of instructions, in this project's wording and with random arguments.

Each kind has the name of its IFEval checker. A kind samples its text in the prompt and the arguments of its checker.
Texts, topics and words are not IFEval's, so training on them reveals none of its prompts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LANGUAGES = {"es": "Spanish", "fr": "French", "de": "German", "it": "Italian"}

TOPICS = (
    "a bakery that opens before dawn",
    "a beekeeper and her hives",
    "a bicycle with a flat tire",
    "a bookshop cat",
    "a boy who repairs old radios",
    "a bridge between two villages",
    "a broken umbrella",
    "a camping weekend",
    "a chess game in the park",
    "a clockmaker's workshop",
    "a cup of hot chocolate",
    "a day without electricity",
    "a dog that is afraid of thunder",
    "a drawer full of buttons",
    "a farmer's first tractor",
    "a ferry in the fog",
    "a fox in the garden",
    "a grandmother's recipe book",
    "a greenhouse in winter",
    "a hot air balloon",
    "a kite on a windy beach",
    "a lantern festival",
    "a library on a boat",
    "a lighthouse keeper",
    "a long train ride",
    "a lost suitcase",
    "a market on a rainy morning",
    "a message in a bottle",
    "a mountain hut",
    "a moving day",
    "a neighbour who plays the trumpet",
    "a night at the observatory",
    "a pair of red shoes",
    "a parrot that sings",
    "a picnic near the lake",
    "a piano that nobody plays",
    "a power cut during dinner",
    "a sailor's diary",
    "a school trip to the aquarium",
    "a snowman in April",
    "a squirrel and a walnut",
    "a sunflower field",
    "a swimming lesson",
    "a tailor's needle",
    "a tree house",
    "a village choir",
    "a visit to the dentist",
    "a walk along the canal",
    "a watermelon contest",
    "a windmill",
    "an apple orchard",
    "an empty theatre",
    "an old map",
    "an orchestra rehearsal",
    "autumn leaves",
    "baking bread",
    "birds that fly south",
    "brushing teeth",
    "building a raft",
    "carrots and rabbits",
    "clouds",
    "comets",
    "crossing a desert",
    "earthworms",
    "firefighters",
    "frogs in a pond",
    "glass blowing",
    "growing tomatoes",
    "hedgehogs",
    "honey",
    "how a zipper works",
    "icebergs",
    "learning to whistle",
    "lemonade",
    "magnets",
    "making pottery",
    "maple syrup",
    "milk and cheese",
    "morning dew",
    "night trains",
    "owls",
    "paper boats",
    "penguins",
    "pumpkins",
    "rainbows",
    "riding a tram",
    "rivers",
    "roof tiles",
    "sand castles",
    "seahorses",
    "shadows",
    "soap bubbles",
    "spider webs",
    "stamps",
    "the last bus home",
    "the school garden",
    "the smell of rain",
    "tide pools",
    "traffic lights",
    "tunnels",
    "volcanoes",
    "wool",
)

FORMS = (
    "Write a short story about {}.",
    "Write a short poem about {}.",
    "Write a short letter about {}.",
    "Write a short advertisement about {}.",
    "Describe {} to a young child.",
    "Write a diary entry about {}.",
    "Write a few lines about {} for a newsletter.",
    "Write a short speech about {}.",
    "Write a brief description of {}.",
    "Tell me something about {}.",
)

QUESTIONS = (
    "Would {} be a good subject for a painting?",
    "Would {} make a good story?",
    "Should a child learn about {}?",
    "Is it easy to write a song about {}?",
    "Would you like to read a book about {}?",
)
"""Requests that can be answered with yes, no or maybe."""

WORDS = (
    "bridge",
    "candle",
    "winter",
    "garden",
    "silver",
    "window",
    "basket",
    "river",
    "friend",
    "music",
    "forest",
    "morning",
    "letter",
    "bread",
    "shadow",
    "yellow",
    "quiet",
    "journey",
    "stone",
    "smile",
)
"""Words that a response has to contain."""

COMMON = ("and", "of", "it", "is", "in", "with", "for", "this", "that", "are", "was", "they")
"""Words that a response has to avoid."""

ENDINGS = (
    "That is all for today.",
    "Thank you for reading.",
    "And so it goes.",
    "What do you think?",
    "See you soon.",
    "Have a wonderful day!",
    "I hope this helps.",
    "Tomorrow is another day.",
)
"""Last words that a response has to have, without commas."""


SampleInstruction = Callable[[np.random.Generator, str], tuple[str, dict[str, Any]]]
"""Maps a random generator and the request before the instruction to the instruction's text and arguments."""


KINDS: dict[str, SampleInstruction] = {}
"""All of IFEval's kinds of instructions, by the name of the checker."""


def kind(name: str) -> Callable[[SampleInstruction], SampleInstruction]:
    """Register a function in `KINDS`."""
    return lambda sample: KINDS.setdefault(name, sample)


def one_of(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """One of the options, uniformly."""
    return options[int(rng.integers(len(options)))]


def number(rng: np.random.Generator, low: int, high: int, step: int = 1) -> int:
    """One of `low`, `low + step`, ... up to `high`, uniformly."""
    return int(low + step * rng.integers((high - low) // step + 1))


def some_of(rng: np.random.Generator, words: tuple[str, ...], count: int) -> list[str]:
    """`count` different words."""
    return [str(word) for word in rng.choice(words, count, replace=False)]


def fixed(name: str, *texts: str) -> None:
    """Register a kind without arguments, in one of several wordings."""
    KINDS[name] = lambda rng, request: (one_of(rng, texts), {})


@kind("keywords:existence")
def _existence(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    words = some_of(rng, WORDS, number(rng, 1, 3))
    listed = " and ".join(f'"{word}"' for word in words)
    text = one_of(rng, (f"Use {listed} somewhere in the text.", f"The text has to mention {listed}."))
    return text, {"keywords": words}


@kind("keywords:frequency")
def _frequency(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    word, count = one_of(rng, WORDS), number(rng, 2, 4)
    text = f'Use the word "{word}" {count} times or more.'
    return text, {"keyword": word, "frequency": count, "relation": "at least"}


@kind("keywords:forbidden_words")
def _forbidden(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    words = some_of(rng, COMMON, number(rng, 1, 2))
    listed = " or ".join(f'"{word}"' for word in words)
    return f"Never use {listed}.", {"forbidden_words": words}


@kind("keywords:letter_frequency")
def _letters(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        letter, count = one_of(rng, tuple("gbmpw")), number(rng, 2, 5)
        text = f'The letter "{letter}" may occur fewer than {count} times in total.'
        return text, {"letter": letter, "let_frequency": count, "let_relation": "less than"}
    letter, count = one_of(rng, tuple("kvj")), number(rng, 3, 8)
    text = f'The letter "{letter}" has to occur {count} times or more.'
    return text, {"letter": letter, "let_frequency": count, "let_relation": "at least"}


@kind("language:response_language")
def _language(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    code = one_of(rng, tuple(LANGUAGES))
    return f"Write everything in {LANGUAGES[code]}.", {"language": code}


@kind("length_constraints:number_sentences")
def _sentences(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        count = number(rng, 3, 6)
        return f"Use fewer than {count} sentences.", {"num_sentences": count, "relation": "less than"}
    count = number(rng, 6, 10)
    return f"Use {count} sentences or more.", {"num_sentences": count, "relation": "at least"}


@kind("length_constraints:number_paragraphs")
def _paragraphs(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 3)
    # IFEval's checker splits at `***` here, and at empty lines where a paragraph has a first word.
    text = f"Divide the text into {count} paragraphs with a line of three asterisks (***) between them."
    return text, {"num_paragraphs": count}


@kind("length_constraints:number_words")
def _words(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        count = number(rng, 30, 60, 5)
        return f"Keep it under {count} words.", {"num_words": count, "relation": "less than"}
    count = number(rng, 80, 110, 5)
    return f"Write no fewer than {count} words.", {"num_words": count, "relation": "at least"}


@kind("length_constraints:nth_paragraph_first_word")
def _first_word(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count, word = number(rng, 2, 3), one_of(rng, WORDS)
    nth = number(rng, 1, count)
    text = f'Write {count} paragraphs with an empty line between them. The first word of paragraph {nth} is "{word}".'
    return text, {"num_paragraphs": count, "nth_paragraph": nth, "first_word": word}


@kind("detectable_content:number_placeholders")
def _placeholders(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 1, 3)
    example = one_of(rng, ("[city]", "[price]", "[colour]", "[weekday]"))
    text = f"Leave {count} or more blanks in square brackets to be filled in later, like {example}."
    return text, {"num_placeholders": count}


@kind("detectable_content:postscript")
def _postscript(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    # IFEval's two markers, which its checker knows by patterns.
    marker = one_of(rng, ("P.S.", "P.P.S"))
    return f'Add a postscript that begins with "{marker}" at the end.', {"postscript_marker": marker}


@kind("detectable_format:number_bullet_lists")
def _bullets(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 5)
    text = f"Answer as a list of exactly {count} items, each on a line that begins with * and a space."
    return text, {"num_bullets": count}


fixed("detectable_format:constrained_response", 'Choose yes or no or maybe and complete this: "My answer is ____."')


@kind("detectable_format:number_highlighted_sections")
def _highlights(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 1, 4)
    return f"Emphasize {count} or more phrases with asterisks, *like this*.", {"num_highlights": count}


@kind("detectable_format:multiple_sections")
def _sections(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count, word = number(rng, 2, 3), one_of(rng, ("Part", "Chapter", "Section"))
    text = f"Split it into {count} numbered parts headed {word} 1, {word} 2 and so on."
    return text, {"section_spliter": word, "num_sections": count}


fixed("detectable_format:json_format", "Give the whole answer as one JSON object.", "Answer in valid JSON only.")
fixed("detectable_format:title", "Put a title such as <<A Day>> in front.", "Give it a title like <<My Day>>.")
fixed("combination:two_responses", "Write two versions, with a line of six asterisks (******) between them.")


@kind("combination:repeat_prompt")
def _repeat(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    text = "Begin your answer by copying the request above exactly as it is, then carry it out."
    return text, {"prompt_to_repeat": request}


@kind("startend:end_checker")
def _ending(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    phrase = one_of(rng, ENDINGS)
    return f'Let "{phrase}" be the last words and add nothing to them.', {"end_phrase": phrase}


fixed("startend:quotation", 'Start and end the whole answer with a double quote (").')


@kind("change_case:capital_word_frequency")
def _capital_words(rng: np.random.Generator, request: str) -> tuple[str, dict[str, Any]]:
    count = number(rng, 2, 5)
    text = f"Write {count} or more of the words in CAPITALS."
    return text, {"capital_frequency": count, "capital_relation": "at least"}


fixed("change_case:english_capital", "USE CAPITAL LETTERS ONLY.", "Write everything in capital letters.")
fixed("change_case:english_lowercase", "use small letters only.", "Write everything in lowercase letters.")
fixed("punctuation:no_comma", "Avoid commas.", "Do without commas.")
