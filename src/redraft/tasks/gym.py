"""Problems of the package reasoning-gym, and their grades by its scorers.

A scorer reads more of a problem than its answer, and not all of that can be written down. So a problem's reference
answer is a record, from which its generator makes the problem again where a response is graded (`Source`).
"""

import ast
import copy
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from math_verify.errors import TimeoutException

from redraft.config import gym
from redraft.config.gym import GymProblems
from redraft.errors import UserError
from redraft.rollout.streams import stream
from redraft.tasks.answers import SECONDS, GradedAnswer, Outcome, box, extract
from redraft.tasks.grading import limited
from redraft.tasks.problem_splits import distinct

MAX_MISSED_SAMPLES = 2000
"""Consecutive problems without a new question after which a split counts as exhausted; some take 0.1 s to make."""

EVALUATED = {"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"}
"""Tasks whose scorers call `eval` on an answer."""
PARSED = {"countdown", "simple_integration"}
"""Tasks whose scorers let sympy parse an answer, which evaluates it as Python too."""
FUNCTIONS = frozenset(
    "Abs acos asin atan ceiling cos cosh cot csc exp floor ln log pi sec sin sinh sqrt tan tanh".split()  # noqa: SIM905
)
"""Names that an expression may have besides variables."""
_EXPRESSION = re.compile(r"[\w+\-*/^(),.!=\s]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")


def load() -> None:
    """Import the package, which takes a second."""
    gym.tasks()


@dataclass(frozen=True)
class Source:
    """Origin of a problem, as in the JSON text that is its reference answer.

    Attributes:
        reasoning_gym: name of the task.
        answer: the problem's own answer.
        options: of the generator.
        seed: of the generator.
        index: of the problem in the generator.
        question: hash of the question, to notice if the generator makes another problem.
        threshold: smallest score of a right answer.
        scorer_errors: see `GymProblems`.
        version: of the package.
        answer_in: see `GymProblems`.
    """

    reasoning_gym: str
    answer: str
    options: dict[str, Any]
    seed: int
    index: int
    question: str
    threshold: float = 1.0
    scorer_errors: str = "stop"
    version: str = gym.VERSION
    answer_in: str = "box"

    @property
    def key(self) -> str:
        """The problem's name in messages."""
        return f"{self.reasoning_gym}, generator {self.seed}, problem {self.index}"


def source_of(answer: str) -> Source:
    """Read a reference answer.

    Raises:
        UserError: if it is none of a problem of reasoning-gym.
    """
    try:
        source = Source(**json.loads(answer))
        if source.answer_in not in ("box", "first_line"):
            raise ValueError(source.answer_in)
        return source
    except (TypeError, ValueError):
        raise UserError(
            "this answer is no record of a problem of reasoning-gym", key="answer", value=answer[:200]
        ) from None


@dataclass(frozen=True)
class GymProblem:
    """A question and its reference answer; problems are equal if their questions are."""

    question: str
    source: Source = field(compare=False)

    @property
    def answer(self) -> str:
        """The source as JSON."""
        return json.dumps(asdict(self.source))


def sample_problems(data: GymProblems) -> list[GymProblem]:
    """Sample the problems of a data set: distinct questions of one split (`distinct`).

    Raises:
        UserError: if `redraft.config.gym.build` raises one, the generator fails or makes what cannot be graded, the
            split has fewer distinct questions, or the scorer does not accept a problem's own answer.
    """
    return _distinct(data, data.split, data.split, data.size, _examples(data))


def prompts(problems: Iterable[GymProblem], data: GymProblems) -> list[str]:
    """Prompts of a data set's problems, with its solved problems before each question."""

    def prompt(problem: GymProblem) -> str:
        return data.template.replace("{problem}", problem.question)

    solved = [f"{prompt(each)} {_written(each.source)}" for each in _examples(data)]
    return ["\n\n".join([*solved, prompt(each)]) for each in problems]


def _examples(data: GymProblems) -> list[GymProblem]:
    return _distinct(data, "examples", "train", data.examples)


def _distinct(
    data: GymProblems, name: str, split: str, size: int, without: Sequence[GymProblem] = ()
) -> list[GymProblem]:
    """Distinct problems of a split from the random stream of a name, with those in `without` left out."""
    made = _sample(data, name)
    problems = distinct(lambda: next(made), lambda each: each.question, split, size, MAX_MISSED_SAMPLES, without)
    for problem in problems:
        _check_own_answer(problem.source)
    return problems


def _sample(data: GymProblems, name: str) -> Iterator[GymProblem]:
    """Problems of either split, without an end."""
    # Generators with consecutive seeds share all but one of their problems, so each seed is sampled.
    rng = stream(data.seed, f"reasoning_gym/{data.task}/{name}")
    while True:
        seed = int(rng.integers(2**31))
        for index in range(gym.ITEMS):
            entry = _make(data.task, json.dumps(data.options), seed, index)
            question, answer = entry["question"], entry["answer"]
            if not (isinstance(question, str) and question.strip() and isinstance(answer, str) and answer.strip()):
                message = "a problem's question and answer must be text"
                raise _error(message, data.task, seed, index, f"{type(question).__name__}, {type(answer).__name__}")
            source = Source(
                data.task,
                answer,
                data.options,
                seed,
                index,
                _digest(question),
                data.threshold,
                data.scorer_errors,
                data.version,
                data.answer_in,
            )
            yield GymProblem(question, source)


def _error(message: str, task: str, seed: int, index: int, value: Any) -> UserError:
    return UserError(message, key=f"reasoning-gym's {task}, generator {seed}, problem {index}", value=value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _generator(task: str, options: str, seed: int) -> Any:
    generator = gym.build(task, json.loads(options), seed)
    if task in EVALUATED:
        # The name in the scorer's module comes before Python's own.
        vars(sys.modules[type(generator).__module__])["eval"] = ast.literal_eval
    return generator


@lru_cache(maxsize=1 << 12)
def _make(task: str, options: str, seed: int, index: int) -> dict[str, Any]:
    """A problem as its generator makes it; the mapping is cached, so callers must not modify it."""
    try:
        with redirect_stdout(io.StringIO()):  # `bf` prints dots
            entry: dict[str, Any] = _generator(task, options, seed)[index]
    except UserError:
        raise
    except Exception as error:
        message = f"this generator fails ({type(error).__name__}: {error}); other options may help"
        raise _error(message, task, seed, index, options) from error
    return entry


def extract_answer(text: str, answer: str) -> GradedAnswer | str:
    """The part of a response that the scorer of a problem gets, stripped, or the graded answer if it is empty.

    Raises:
        UserError: if `answer` is no record of a problem of reasoning-gym.
    """
    return _extract(text, source_of(answer))


def _extract(text: str, source: Source) -> GradedAnswer | str:
    if source.answer_in == "box":
        return extract(text)
    return text.strip().split("\n", 1)[0].strip() or GradedAnswer(Outcome.EMPTY)


def _written(source: Source) -> str:
    """A problem's own answer as a response."""
    return box(source.answer) if source.answer_in == "box" else source.answer


def _check_own_answer(source: Source) -> None:
    content = _extract(_written(source), source)
    if content == source.answer.strip():
        try:
            if score(content, source) >= source.threshold:
                return
        except UserError:
            raise
        except Exception as error:
            raise _failed(source, source.answer, error) from error
    raise UserError(
        f"a response with a problem's own answer in its {source.answer_in.replace('_', ' ')} earns nothing",
        key=f"reasoning-gym's {source.key}",
        value=source.answer[:200],
        hint="other options of the task may have answers that can be there",
    )


def score(content: str, source: Source) -> float:
    """The score of an extracted answer, 0 to 1, by the scorer of a problem's generator.

    Answers that the scorer would evaluate as Python get 0 unless they are literals or mathematical expressions.

    Raises:
        UserError: if the generator makes another problem than it made when the problem was sampled, or the scorer
            returns no number from 0 to 1.
        Exception: of any type, if the scorer fails.
    """
    entry = _entry(source)
    if source.reasoning_gym in PARSED and not is_expression(content):
        return 0.0
    generator = _generator(source.reasoning_gym, json.dumps(source.options), source.seed)
    # A copy, since a scorer that changes the problem would change later scores.
    scored = generator.score_answer(content, copy.deepcopy(entry))
    try:
        value = float(scored)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value <= 1:
        raise _error(
            "the scorer's result is no number from 0 to 1",
            source.reasoning_gym,
            source.seed,
            source.index,
            f"{scored!r} for {content[:200]!r}",
        )
    return value


def _entry(source: Source) -> dict[str, Any]:
    """The problem, made again by its generator; a UserError if it is another one."""
    entry = _make(source.reasoning_gym, json.dumps(source.options), source.seed, source.index)
    if source.version != gym.VERSION or (_digest(entry["question"]), entry["answer"]) != (
        source.question,
        source.answer,
    ):
        raise UserError(
            "reasoning-gym makes another problem than the one that the response answers",
            key=f"reasoning-gym's {source.key}, version {source.version}",
            value=entry["question"][:200],
        )
    return entry


def is_expression(text: str) -> bool:
    """True if a text has only numbers, operators, variables of one letter and the names in `FUNCTIONS`."""
    names = all(len(name) == 1 or name in FUNCTIONS for name in _NAME.findall(text))
    return bool(_EXPRESSION.fullmatch(text)) and names and "__" not in text and not _ATTRIBUTE.search(text)


def compare(content: str, answer: str) -> Outcome:
    """Compare an extracted answer with a problem's reference answer, in at most `SECONDS`.

    Raises:
        UserError: as `score`, or if the scorer fails and the problem's `scorer_errors` is `stop`.
        MemoryError: if the worker's limit is exceeded.
    """
    source = source_of(answer)
    _entry(source)  # kept; the time that it takes, with the package's import, must not count
    try:
        scored = limited(SECONDS, score, content, source)
    except TimeoutException:
        return Outcome.TIMEOUT
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of nearly any type: each scorer has its own
        if source.scorer_errors == "wrong":
            return Outcome.ERROR
        raise _failed(source, content, error) from error
    return Outcome.CORRECT if scored >= source.threshold else Outcome.WRONG


def _failed(source: Source, content: str, error: Exception) -> UserError:
    return UserError(
        f"reasoning-gym's scorer fails ({type(error).__name__}: {error})",
        key=f"reasoning-gym's {source.key}",
        value=content[:200],
        hint="`scorer_errors: wrong`, next to `task`, counts such answers as wrong",
    )


def grade(text: str, answer: str) -> GradedAnswer:
    """Grade the last box or the first line of a response; raises what `compare` raises."""
    content = extract_answer(text, answer)
    return content if isinstance(content, GradedAnswer) else GradedAnswer(compare(content, answer), content)


def is_right(text: str, answer: str) -> bool:
    """True if the last box or the first line of a response is a right answer."""
    return grade(text, answer).outcome is Outcome.CORRECT
