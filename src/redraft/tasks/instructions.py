"""Verdicts on the instructions of a prompt (IFEval, arXiv 2311.07911), by lm-eval's checkers.

Two checkers use random numbers: the language detector always, and the letter counter if the character to count is not a
letter (`#` and `!`, one prompt each). Both are seeded, so a verdict depends on the response alone. The unchanged letter
counter replaces such a character by a random letter. Here it counts the requested character; the verdicts of the
unchanged checkers are kept as well, for comparison with other harnesses.
"""

import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from redraft.config.data import INSTRUCTION_COLUMNS
from redraft.errors import UserError
from redraft.tasks.instruction_arguments import normalized
from redraft.tasks.sentences import sentence_splitter

SEED = 0
"""Seed of both checkers; workflows/lighteval/tasks.py uses the same."""
LETTERS = "keywords:letter_frequency"
"""Name of the instruction about the frequency of a letter."""


class CheckerError(Exception):
    """A checker failed on a response; for example, Python's JSON parser fails on deep nesting."""


@dataclass(frozen=True)
class Instructions:
    """Verdicts on one response, one per instruction, in the prompt's order.

    Attributes:
        strict: verdicts on the response as it is.
        loose: verdicts on the best of the response and seven variants: without asterisks, first line, last line.
        official: verdicts of the unchanged checkers, for prompts that count a character other than a letter; else None.
    """

    strict: list[bool]
    loose: list[bool]
    official: "Instructions | None" = None


def grade_instructions(prompt: str, text: str, answer: str) -> Instructions:
    """Check a response against its prompt's instructions.

    Args:
        answer: a JSON object with IFEval's columns, `INSTRUCTION_COLUMNS`.

    Raises:
        UserError: if the answer is not such an object.
        CheckerError: if a checker fails on this response.
    """
    record = instructions_of(answer)
    utils = _checkers()
    example = utils.InputExample(prompt=prompt, **record)
    verdicts = _checked(utils, example, text, None)
    if not _counts_another_character(record):
        return verdicts
    with _count_any_character(utils):
        return _checked(utils, example, text, verdicts)


def _checked(utils: Any, example: Any, text: str, official: Instructions | None) -> Instructions:
    strict = _verdicts(utils.test_instruction_following_strict, example, text)
    return Instructions(strict, _verdicts(utils.test_instruction_following_loose, example, text), official)


def _counts_another_character(record: dict[str, Any]) -> bool:
    """True if the unchanged letter counter would replace the character to count by a random letter."""
    named = zip(record["instruction_id_list"], record["kwargs"], strict=True)
    return any(name == LETTERS and not "a" <= (kwargs.get("letter") or "a").lower() <= "z" for name, kwargs in named)


@contextmanager
def _count_any_character(utils: Any) -> Iterator[None]:
    """Have the letter counter count any one character within the block."""
    checkers = utils.instructions_registry.INSTRUCTION_DICT
    unchanged = checkers[LETTERS]

    class AnyCharacter(unchanged):  # type: ignore[misc, valid-type]
        """The letter counter for any one character."""

        def build_description(self, *, letter: str | None = None, **relation: Any) -> Any:
            """Describe the instruction, as the unchanged checker does, and set the character."""
            description = super().build_description(letter=letter, **relation)
            if letter and len(letter) == 1:
                self._letter = letter.lower()
            return description

    # In the registry, since lm-eval's code makes the checkers by their names.
    checkers[LETTERS] = AnyCharacter
    try:
        yield
    finally:
        checkers[LETTERS] = unchanged


def instructions_of(answer: str) -> dict[str, Any]:
    """The instructions of a prompt, parsed from the problem's answer.

    Raises:
        UserError: if the answer is not such an object (`normalized`).
    """
    try:
        record = json.loads(answer)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(
            "this answer does not hold a prompt's instructions",
            key="answer",
            value=answer[:80],
            allowed=INSTRUCTION_COLUMNS,
        )
    return normalized(record)


def conflicts() -> dict[str, set[str]]:
    """For each kind of instruction the kinds that exclude it, including itself, from IFEval's own list."""
    registry = _checkers().instructions_registry
    listed: dict[str, set[str]] = registry.conflict_make(
        {name: set(others) for name, others in registry.INSTRUCTION_CONFLICTS.items()}
    )
    return listed


def follows(text: str, answer: str) -> bool:
    """The reward rule `instructions`: True if a response follows all instructions (IFEval's strict prompt verdict).

    Following some of them earns nothing, so training optimises what evaluation counts. A response on which a checker
    fails earns nothing either. No checker reads the prompt, so it is left empty.

    Raises:
        UserError: if the answer is not an object with IFEval's columns.
    """
    record = instructions_of(answer)
    utils = _checkers()
    example = utils.InputExample(prompt="", **record)
    try:
        with _count_any_character(utils) if _counts_another_character(record) else nullcontext():
            return all(_verdicts(utils.test_instruction_following_strict, example, text))
    except CheckerError:
        return False


def _verdicts(check: Callable[[Any, str], Any], example: Any, text: str) -> list[bool]:
    # The checkers use Python's own generator, which is left as it was.
    state = random.getstate()
    random.seed(SEED)
    try:
        return [bool(verdict) for verdict in check(example, text).follow_instruction_list]
    except Exception as error:
        raise CheckerError(f"prompt {example.key}: {type(error).__name__}: {error}") from error
    finally:
        random.setstate(state)


@cache
def _checkers() -> Any:
    """lm-eval's module of checkers. The sentence splitter is prepared first, since the import would download one."""
    sentence_splitter()
    from langdetect import DetectorFactory
    from lm_eval.tasks.ifeval import utils

    DetectorFactory.seed = SEED
    # The module logs whole responses when it does not recognise their language.
    logging.getLogger(utils.instructions_registry.instructions.__name__).setLevel(logging.CRITICAL)
    return utils
