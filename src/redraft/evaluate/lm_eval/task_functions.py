"""Functions that lm-eval's task files call: problems as documents, and this project's grader as metrics."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter

from redraft.config.data import Data
from redraft.tasks.answers import GradedAnswer, Outcome, grade_choice
from redraft.tasks.grading import grade
from redraft.tasks.problems import load_problems

SPLIT = "test"
Document = dict[str, Any]


def documents(benchmark: str, data: dict[str, Any], chat: str, **_: Any) -> Any:
    """A data set as lm-eval's `custom_dataset`; `load_problems` reads it and checks its size and hashes.

    Args:
        benchmark: the benchmark's name, which is part of the names of random streams.
        data: fields of `redraft.config.data.Data`.
        chat: use of the chat template, see `redraft.config.data.Sampling`.

    Returns:
        A `DatasetDict` whose split `test` has one row per problem.

    Raises:
        UserError: in the same cases as `load_problems`.
    """
    from datasets import Dataset, DatasetDict

    problems = load_problems(TypeAdapter(Data).validate_python(data))
    rows = [
        {"benchmark": benchmark, "problem": i, "chat": chat, "prompt": problem.prompt, "answer": problem.answer}
        for i, problem in enumerate(problems)
    ]
    return DatasetDict({SPLIT: Dataset.from_list(rows)})


def score_math(document: Document, results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Share of a problem's samples that math-verify accepts."""
    return _accuracy(grade, document, results)


def score_choice(document: Document, results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Share of a problem's samples that name the right letter."""
    return _accuracy(grade_choice, document, results)


def score_reasoning_gym(document: Document, results: Sequence[Sequence[str]]) -> dict[str, float]:
    """Share of a problem's samples that reasoning-gym's scorer accepts."""
    from redraft.tasks import gym

    return _accuracy(gym.grade, document, results)


def _accuracy(
    grader: Callable[[str, str], GradedAnswer], document: Document, results: Sequence[Sequence[str]]
) -> dict[str, float]:
    (samples,) = results
    right = [grader(text, document["answer"]).outcome is Outcome.CORRECT for text in samples]
    return {"accuracy": sum(right) / len(right)}


def score_instructions(document: Document, results: Sequence[Sequence[str]]) -> dict[str, Any]:
    """IFEval's four metrics for one prompt.

    Prompt-level metrics are the share of its samples. Instruction-level metrics list the verdicts of all its samples.
    """
    from redraft.tasks.instructions import CheckerError, Instructions, grade_instructions, instructions_of

    (samples,) = results
    grades = []
    for text in samples:
        try:
            grades.append(grade_instructions(document["prompt"], text, document["answer"]))
        except CheckerError:  # counts as no instruction followed
            none = [False] * len(instructions_of(document["answer"])["instruction_id_list"])
            grades.append(Instructions(strict=none, loose=none))
    scores: dict[str, Any] = {}
    for kind in ("strict", "loose"):
        followed = [getattr(grade, kind) for grade in grades]
        scores[f"prompt_level_{kind}_acc"] = sum(map(all, followed)) / len(followed)
        scores[f"inst_level_{kind}_acc"] = [one for sample in followed for one in sample]
    return scores


UNGRADED = [{"metric": "samples", "aggregation": "mean", "higher_is_better": True}]


def ungraded(document: Document, results: Sequence[Sequence[str]]) -> dict[str, float]:
    """The number of samples instead of a grade: saved generations are graded later."""
    (samples,) = results
    return {"samples": float(len(samples))}


def share(prompts: Sequence[Sequence[bool]]) -> float:
    """Share of all prompts' instructions that are followed."""
    followed = [one for prompt in prompts for one in prompt]
    return sum(followed) / len(followed)
