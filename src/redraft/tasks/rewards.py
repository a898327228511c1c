"""Rules that turn a training response into a reward: 1 if its answer is right or its instructions are followed, else 0.

SPEC-RL's paper and its release describe different rules, and this project's default is a third one; docs/grading.md
compares them. Evaluation grades by the last box whatever rewards training.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from math_verify import LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException

from redraft.tasks.answers import SECONDS, box, boxed
from redraft.tasks.grading import equal, is_correct, limited, read_latex, read_number

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def release(text: str, answer: str) -> bool:
    """True if what math-verify reads as LaTeX in the whole response equals the answer: SPEC-RL's release.

    Boxes go before formulas, and several boxes are read as one list.
    """
    return _reads(read_latex, text, answer)


def boxed_or_numeric(text: str, answer: str) -> bool:
    """True if the last box holds the answer; without a closed box, if the last number that math-verify reads does.

    SPEC-RL, Appendix A.1: "the final boxed or numeric answer matches the ground truth".
    """
    return _reads(read_number, text, answer) if boxed(text) is None else is_correct(text, answer)


def _reads(read: Callable[[str], list[Any]], text: str, answer: str) -> bool:
    """True if a reading of the text equals the answer; what fails or exceeds a time limit earns nothing."""
    try:
        gold = limited(SECONDS, read_latex, box(answer))
        return limited(SECONDS, equal, gold, limited(SECONDS, read, text))
    except (TimeoutException, Exception):  # a time-out is no Exception; sympy raises exceptions of nearly any type
        return False


REWARDS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "last_box": is_correct,
    "boxed_or_numeric": boxed_or_numeric,
    "release": release,
}
"""Rules by their names in `trainer.reward`. Their time limits need the main thread of a process."""


def rule_of(name: str) -> Callable[[str, str], bool]:
    """The rule of a name: one of `REWARDS`, or `instructions`, of which each must be followed (`Run.reward`)."""
    if name == "instructions":
        from redraft.tasks.instructions import follows  # with NLTK, which no other rule needs

        return follows
    return REWARDS[name]


def rewards_of(texts: Sequence[str], answer: str, rule: str) -> tuple[list[float], float]:
    """1.0 for each text that is right by a rule (`rule_of`), else 0.0; and the processor seconds that this took."""
    right = rule_of(rule)
    began = time.process_time()
    rewards = [float(right(text, answer)) for text in texts]
    return rewards, time.process_time() - began


def anywhere(text: str, answer: str) -> bool:
    """math-verify's default configuration on the whole text: LaTeX or a plain expression, boxed or not."""
    gold = parse(box(answer), extraction_config=[LatexExtractionConfig(boxed_match_priority=0)])
    return bool(verify(gold, parse(text)))


def last_number(text: str, answer: str) -> bool:
    """The last number in the text against the answer's number, as lm-eval's `flexible-extract` of GSM8K."""
    found, wanted = _NUMBER.findall(text), answer.strip().strip("$")
    if not found or not _NUMBER.fullmatch(wanted):
        return False
    return float(found[-1].replace(",", "")) == float(wanted.replace(",", ""))


RULES = {f"`{name}`": rule for name, rule in REWARDS.items()} | {
    "math-verify's default": anywhere,
    "last number": last_number,
}
"""Rules by which papers grade and reward responses, for comparison on the same texts."""
