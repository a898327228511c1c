"""Word problems about sums and comparisons with the answer in a box, for small language models.

A problem is about people who have, get and give away things; its answer is a number or a name. The prompt has solved
examples before the problem and two boxed answers to choose from after it. Without them the smallest models hardly ever
write a box (docs/real-model-tasks.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from redraft.rollout.streams import stream
from redraft.tasks.answers import box
from redraft.tasks.problem_splits import distinct

NAMES = (
    "Ben",
    "Cora",
    "David",
    "Ella",
    "Finn",
    "Grace",
    "Hugo",
    "Lily",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Nora",
    "Oscar",
    "Paul",
    "Rosa",
    "Sam",
    "Tina",
    "Victor",
    "Wendy",
)
THINGS = (
    "apples",
    "balls",
    "books",
    "buttons",
    "cards",
    "coins",
    "cookies",
    "cups",
    "eggs",
    "flowers",
    "hats",
    "keys",
    "marbles",
    "oranges",
    "pencils",
    "shells",
    "spoons",
    "stamps",
    "stickers",
    "toys",
)

Solve = Callable[[tuple[int, ...], tuple[str, ...]], str]
"""Maps the numbers and the people of a story, in the story's order, to the answer."""


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question: its story, with {x}, {y}, {z} for numbers and {a}, {b}, {c} for people, and its solution."""

    story: str
    solve: Solve

    def count(self, fields: str) -> int:
        """Number of these fields, such as `xyz`, in the story."""
        return sum(f"{{{field}}}" in self.story for field in fields)


def _signed_sum(*signs: int) -> Solve:
    """The sum of the numbers with these signs."""
    return lambda numbers, people: str(sum(sign * n for sign, n in zip(signs, numbers, strict=True)))


def _most(numbers: tuple[int, ...], people: tuple[str, ...]) -> str:
    return people[numbers.index(max(numbers))]


QUESTIONS: Final[dict[str, QuestionKind]] = {
    "sum": QuestionKind(
        "{a} has {x} {things}. {b} gives {a} {y} more {things}. How many {things} does {a} have now?", _signed_sum(1, 1)
    ),
    "total": QuestionKind(
        "{a} has {x} {things}, {b} has {y} {things} and {c} has {z} {things}. How many {things} do they have together?",
        _signed_sum(1, 1, 1),
    ),
    "difference": QuestionKind(
        "{a} has {x} {things}. {a} gives {y} {things} to {b}. How many {things} does {a} have left?", _signed_sum(1, -1)
    ),
    "sum_and_difference": QuestionKind(
        "{a} has {x} {things}. {a} finds {y} more {things} and then gives {z} {things} to {b}. How many {things} does "
        "{a} have now?",
        _signed_sum(1, 1, -1),
    ),
    "how_many_more": QuestionKind(
        "{a} has {x} {things} and {b} has {y} {things}. How many more {things} does one of them have than the other?",
        lambda numbers, people: str(max(numbers) - min(numbers)),
    ),
    "who_has_more": QuestionKind("{a} has {x} {things} and {b} has {y} {things}. Who has more {things}?", _most),
    "who_has_most": QuestionKind(
        "{a} has {x} {things}, {b} has {y} {things} and {c} has {z} {things}. Who has the most {things}?", _most
    ),
}
"""Kinds of questions by their names in the configuration."""


@dataclass(frozen=True)
class WordProblem:
    """A story with a question about its numbers.

    Attributes:
        question: a name in `QUESTIONS`.
        numbers: in the order of the story.
        people: different names, in the order of the story.
        things: the counted things, such as apples.
    """

    question: str
    numbers: tuple[int, ...]
    people: tuple[str, ...]
    things: str

    @property
    def text(self) -> str:
        """The story and its question."""
        people, numbers = zip("abc", self.people, strict=False), zip("xyz", self.numbers, strict=False)
        return QUESTIONS[self.question].story.format(things=self.things, **dict(people), **dict(numbers))

    @property
    def answer(self) -> str:
        """The number or name that answers the question."""
        return QUESTIONS[self.question].solve(self.numbers, self.people)

    def wrong(self, rng: np.random.Generator) -> str:
        """A wrong answer that resembles the right one: another name of the story, or a positive number 1 or 2 away."""
        if self.answer.isalpha():
            return str(rng.choice([name for name in self.people if name != self.answer]))
        near = [int(self.answer) + step for step in (-2, -1, 1, 2)]
        return str(rng.choice([number for number in near if number > 0]))

    @property
    def content(self) -> str:
        """The kind of question and its sorted numbers; other names and things do not make a different problem."""
        return f"{self.question} {' '.join(map(str, sorted(self.numbers)))}"


def sample_problems(size: int, questions: Sequence[str], largest: int, split: str, seed: int) -> list[WordProblem]:
    """Sample `size` different problems of one split (`distinct`).

    Args:
        questions: names in `QUESTIONS`, sampled uniformly.
        largest: the largest number in a story.
        split: `train` or `held-out`.
    """
    rng = stream(seed, f"word_problems/{'+'.join(questions)}/{split}", largest)
    return distinct(lambda: sample_problem(rng, questions, largest), lambda problem: problem.content, split, size)


def sample_problem(rng: np.random.Generator, questions: Sequence[str], largest: int) -> WordProblem:
    """Sample one problem, of either split, with different numbers from 2 and an answer that is a name or positive."""
    name = questions[int(rng.integers(len(questions)))]
    question = QUESTIONS[name]
    while True:
        # From 2, since the stories have plurals; without replacement, so that one person has most.
        numbers = tuple(map(int, rng.choice(np.arange(2, largest + 1), question.count("xyz"), replace=False)))
        people = tuple(map(str, rng.choice(NAMES, question.count("abc"), replace=False)))
        problem = WordProblem(name, numbers, people, THINGS[int(rng.integers(len(THINGS)))])
        # Nobody gives away more than they have.
        if problem.answer.isalpha() or int(problem.answer) > 0:
            return problem


def prompts(problems: Sequence[WordProblem], examples: int, options: bool, largest: int, seed: int) -> list[str]:
    """The problems as prompts: each after `examples` solved ones, or after a request for a box if `examples` is 0.

    The examples have the same kind of question with other numbers, and always come from the split `train`. With
    `options`, the right answer and a wrong one follow the question, in boxes and in random order.
    """
    rng = stream(seed, "word_problems/prompts", largest, examples)
    texts = []
    for problem in problems:
        solved = [
            f"{_with_options(each, rng, options)} {box(each.answer)}"
            for each in _examples(rng, problem, examples, largest)
        ]
        request = [] if examples else ["Put your final answer within \\boxed{}."]
        texts.append("\n\n".join([*request, *solved, _with_options(problem, rng, options)]))
    return texts


def _with_options(problem: WordProblem, rng: np.random.Generator, options: bool) -> str:
    # Sampled also without options, so that the examples are the same with and without them.
    pair = rng.permutation([problem.answer, problem.wrong(rng)])
    offered = f" {box(pair[0])} or {box(pair[1])}?" if options else ""
    return f"Question: {problem.text}{offered}\nAnswer:"


def _examples(rng: np.random.Generator, problem: WordProblem, count: int, largest: int) -> list[WordProblem]:
    # Without an end: no problem equals None.
    others = (each for each in iter(lambda: sample_problem(rng, [problem.question], largest), None))
    other = (each for each in others if each.content != problem.content)
    return distinct(lambda: next(other), lambda each: each.content, "train", count)
