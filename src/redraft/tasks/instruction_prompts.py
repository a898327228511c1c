"""Prompts with instructions that programs check, made here as IFEval's are (arXiv 2311.07911).

A prompt is a request about a topic and one to three instructions that do not exclude each other. Its answer is what
IFEval's checkers ask for, so that `redraft.tasks.instructions` grades it like a prompt of IFEval. None of the texts is
IFEval's.
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
        # too few words for so many sentences, a letter that is wanted and unwanted, an unwanted word in the last ones
        ("length_constraints:number_words", "length_constraints:number_sentences"),
        *product([_LETTERS], ["keywords:existence", "keywords:frequency", "startend:end_checker"]),
        (_LETTERS, "length_constraints:nth_paragraph_first_word"),
        ("keywords:forbidden_words", "startend:end_checker"),
        # a section's heading counts only as it is written
        *product(_CASES, ["detectable_format:multiple_sections"]),
    )
)
"""Pairs that can exclude each other with the arguments drawn here, beyond those that IFEval's authors exclude."""


@dataclass(frozen=True)
class InstructionPrompt:
    """A prompt about a topic, and the answer that `redraft.tasks.instructions` grades responses against."""

    topic: str
    prompt: str
    answer: str


def sample_problems(size: int, names: Sequence[str], most: int, split: str, seed: int) -> list[InstructionPrompt]:
    """Draw `size` different prompts, whose topics are those of one split (`distinct`).

    Args:
        names: kinds of instructions, names in `KINDS`, each as probable as the others to be a prompt's first.
        most: the largest number of instructions in a prompt; each number up to it is as probable, where so many kinds
            fit together.
        split: `train` or `held-out`.
    """
    rng = stream(seed, f"instructions/{'+'.join(names)}/{split}", most)
    apart = conflicts()
    return distinct(lambda: sample_problem(rng, names, most, apart), lambda prompt: prompt.topic, split, size)


def sample_problem(
    rng: np.random.Generator, names: Sequence[str], most: int, apart: Mapping[str, Set[str]]
) -> InstructionPrompt:
    """Draw one prompt, of either split; `apart` has the kinds that exclude each kind."""
    chosen = choose(rng, names, number(rng, 1, most), apart)
    topic = one_of(rng, TOPICS)
    text = one_of(rng, QUESTIONS if YES_OR_NO in chosen else FORMS).format(topic)
    arguments = {}
    for name in sorted(chosen, key=lambda name: name == COPY):  # what is copied stands before
        words, arguments[name] = KINDS[name](rng, text)
        text += ("\n" if name == COPY else " ") + words
    # What IFEval's checkers need; the key is a hash of the prompt.
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
    answer = {"key": key, "instruction_id_list": list(arguments), "kwargs": list(arguments.values())}
    return InstructionPrompt(topic, text, json.dumps(answer))


def choose(rng: np.random.Generator, names: Sequence[str], count: int, apart: Mapping[str, Set[str]]) -> list[str]:
    """So many kinds that fit together in the order of their draw; fewer if no more fit to those drawn first."""
    chosen: list[str] = [one_of(rng, names)]
    while len(chosen) < count and (fitting := [name for name in names if fits(name, chosen, apart)]):
        chosen.append(one_of(rng, fitting))
    return chosen


def fits(name: str, chosen: Iterable[str], apart: Mapping[str, Set[str]]) -> bool:
    """True if a kind excludes none of those chosen, itself among them."""
    return all(other not in apart[name] and frozenset((name, other)) not in OWN_CONFLICTS for other in chosen)
