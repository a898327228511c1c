"""Generated prompts with verifiable instructions, in the style of IFEval (arXiv 2311.07911).

A prompt is a request about a topic plus one to three instructions that do not exclude each other. Its answer has
IFEval's columns, so `redraft.tasks.instructions` grades it like a prompt of IFEval. No text is copied from IFEval.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product

import numpy as np

from redraft.rollout.streams import stream
from redraft.tasks.instruction_kinds import FORMS, KINDS, QUESTIONS, TOPICS, number, one_of
from redraft.tasks.instructions import conflicts
from redraft.tasks.problem_splits import distinct

YES_OR_NO, COPY = "detectable_format:constrained_response", "combination:repeat_prompt"

_LETTERS = "keywords:letter_frequency"
_CASES = ("change_case:english_capital", "change_case:english_lowercase")
OWN_CONFLICTS: frozenset[frozenset[str]] = frozenset(
    frozenset(pair)
    for pair in (
        # few words for many sentences; one letter both required and limited; a forbidden word in the required ending
        ("length_constraints:number_words", "length_constraints:number_sentences"),
        *product([_LETTERS], ["keywords:existence", "keywords:frequency", "startend:end_checker"]),
        (_LETTERS, "length_constraints:nth_paragraph_first_word"),
        # P.P.S and "Part 1" have the letter p, which may be limited
        *product([_LETTERS], ["detectable_content:postscript", "detectable_format:multiple_sections"]),
        ("keywords:forbidden_words", "startend:end_checker"),
        # a section's heading counts only in its exact case
        *product(_CASES, ["detectable_format:multiple_sections"]),
    )
)
"""Pairs that can exclude each other with the arguments sampled here, in addition to the pairs that IFEval excludes."""


@dataclass(frozen=True)
class InstructionPrompt:
    """A prompt about a topic, and the answer that `redraft.tasks.instructions` grades responses against."""

    topic: str
    prompt: str
    answer: str


def sample_problems(size: int, names: Sequence[str], most: int, split: str, seed: int) -> list[InstructionPrompt]:
    """Sample `size` different prompts with topics of one split (`distinct`).

    Args:
        names: kinds of instructions, names in `KINDS`; a prompt's first kind is uniform over them.
        most: largest number of instructions in a prompt; the number is uniform from 1, and lower where no more kinds
            fit together.
        split: `train` or `held-out`.
    """
    rng = stream(seed, f"instructions/{'+'.join(names)}/{split}", most)
    apart = conflicts()
    return distinct(lambda: sample_problem(rng, names, most, apart), lambda prompt: prompt.topic, split, size)


def sample_problem(
    rng: np.random.Generator, names: Sequence[str], most: int, apart: Mapping[str, Set[str]]
) -> InstructionPrompt:
    """Sample one prompt, of either split; `apart` maps each kind to the kinds that exclude it."""
    chosen = choose(rng, names, number(rng, 1, most), apart)
    topic = one_of(rng, TOPICS)
    text = one_of(rng, QUESTIONS if YES_OR_NO in chosen else FORMS).format(topic)
    arguments = {}
    for name in sorted(chosen, key=lambda name: name == COPY):  # last, since it copies the text before it
        words, arguments[name] = KINDS[name](rng, text)
        text += ("\n" if name == COPY else " ") + words
    # The columns that IFEval's checkers need; the key is a hash of the prompt.
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
    answer = {"key": key, "instruction_id_list": list(arguments), "kwargs": list(arguments.values())}
    return InstructionPrompt(topic, text, json.dumps(answer))


def choose(rng: np.random.Generator, names: Sequence[str], count: int, apart: Mapping[str, Set[str]]) -> list[str]:
    """Sample `count` kinds that do not exclude each other; fewer if no further kind fits."""
    chosen: list[str] = [one_of(rng, names)]
    while len(chosen) < count and (fitting := [name for name in names if fits(name, chosen, apart)]):
        chosen.append(one_of(rng, fitting))
    return chosen


def fits(name: str, chosen: Iterable[str], apart: Mapping[str, Set[str]]) -> bool:
    """True if a kind is not chosen yet and excludes none of the chosen kinds."""
    return all(other not in apart[name] and frozenset((name, other)) not in OWN_CONFLICTS for other in chosen)
