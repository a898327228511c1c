"""Rules that turn a training response into a reward: 1 if its answer is right or its instructions are followed, else 0.

SPEC-RL's paper and its release describe different rules, and this project's default is a third; docs/grading.md
compares them. Evaluation always grades by the last box, independently of the training reward.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException

from redraft.tasks.answers import SECONDS, Outcome, box, boxed, grade_choice
from redraft.tasks.grading import equal, is_correct, limited, read, read_number

logging.getLogger("math_verify").setLevel(logging.ERROR)  # a time-out is a verdict, not a warning for each response


RELEASE: Final = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all", equations=False
    ),
)
r"""How SPEC-RL's release reads a response: `\frac12` stays as it is, which math-verify parses as nothing."""


def release(text: str, answer: str) -> bool:
    """SPEC-RL's release: True if LaTeX that math-verify parses anywhere in the response equals the answer.

    Boxes take precedence over formulas, and several boxes are read as one list. The settings are the release's
    (`custom_reward/verl_math_verify.py`), and none of this project's corrections apply. Of its time limits, one for
    each pair of parsed forms, only the sum is kept.
    """
    try:
        gold = limited(SECONDS, _parse, box(answer), LatexExtractionConfig())
        found = limited(SECONDS, _parse, text, RELEASE)
        return limited(SECONDS, partial(verify, timeout_seconds=None), gold, found)
    except (TimeoutException, Exception):  # a time-out is no Exception; sympy raises exceptions of nearly any type
        return False


def _parse(text: str, config: LatexExtractionConfig) -> list[Any]:
    return parse(text, extraction_config=[config], parsing_timeout=None)


def boxed_or_numeric(text: str, answer: str) -> bool:
    """True if the last box contains the answer; without a closed box, if math-verify's last number equals it.

    SPEC-RL, Appendix A.1: "the final boxed or numeric answer matches the ground truth".
    """
    if boxed(text) is not None:
        return is_correct(text, answer)
    try:
        return limited(SECONDS, equal, read(answer), limited(SECONDS, read_number, text))
    except (TimeoutException, Exception):  # as in `release`
        return False


REWARDS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "last_box": is_correct,
    "boxed_or_numeric": boxed_or_numeric,
    "release": release,
}
"""Rules by their names in `trainer.reward`. Time limits are alarms, so they need the main thread of a process."""


def rule_of(name: str) -> Callable[[str, str], bool]:
    """The rule of a name in `REWARDS`, or of the data (`Run.reward`).

    The latter are `choice`, the letter in the last box, `instructions`: all of them must be followed, and
    `reasoning_gym`, the scorer of the problem.
    """
    if name == "reasoning_gym":
        from redraft.tasks import gym

        gym.load()  # must not count as the first response's time
        return gym.is_right
    if name == "instructions":
        from redraft.tasks.instructions import follows  # imports NLTK, which no other rule needs

        return follows
    if name == "choice":
        return lambda text, answer: grade_choice(text, answer).outcome is Outcome.CORRECT
    return REWARDS[name]


def rewards_of(texts: Sequence[str], answer: str, rule: str) -> tuple[list[float], float]:
    """Reward of each text by a rule (`rule_of`), 1.0 or 0.0, and the CPU time of grading in seconds."""
    right = rule_of(rule)
    # CPU time: several graders share the cores, and wall time would count their waits.
    began = time.process_time()
    rewards = [float(right(text, answer)) for text in texts]
    return rewards, time.process_time() - began
