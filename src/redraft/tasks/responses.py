"""What a worker does with the responses of an evaluation or a step.

The module is light: a worker is forked from a process that has loaded the grader, and would load anything else anew.
"""

from redraft.tasks.answers import Outcome

Instructed = tuple[Outcome, list[bool], list[bool], list[bool] | None, list[bool] | None]
"""An outcome, and the verdicts on each instruction: strict, loose, and both of the unchanged checkers."""


def compare_answers(pair: tuple[str, str]) -> Outcome:
    """Compare the content of a box with the answer."""
    from redraft.tasks.grading import compare  # in a worker; whoever asks for one needs no grader itself

    return compare(*pair)


def reward(texts: list[str], answer: str, rule: str) -> tuple[list[float], float]:
    """`redraft.tasks.rewards.rewards_of` in a worker, which alone loads the grader."""
    from redraft.tasks.rewards import rewards_of

    return rewards_of(texts, answer, rule)


def check_instructions(item: tuple[str, str, str]) -> Instructed:
    """Check the instructions of a response.

    Args:
        item: prompt, response and the problem's answer, which names the instructions.

    Raises:
        UserError: for an answer that names no known instructions.
    """
    from redraft.tasks.instructions import grade_instructions

    prompt, text, answer = item
    verdicts = grade_instructions(prompt, text, answer)
    right = Outcome.CORRECT if all(verdicts.strict) else Outcome.WRONG
    official = verdicts.official
    beside = (official.strict, official.loose) if official else (None, None)
    return right if text.strip() else Outcome.EMPTY, verdicts.strict, verdicts.loose, *beside
