"""The tiny task: sums modulo 100, worked out term by term.

A problem reads `75a+6b-2c+8=`. Letters tag the terms, so that each step of the solution names the term that it adds.
The solution is `75;a+6=81;b-2=79;c+8=87;\\boxed{87}`. A model of 250,000 parameters learns the task in minutes, and its
responses are long enough for prefix reuse to save time.
"""

from dataclasses import dataclass

import numpy as np

from redraft.rollout.streams import stream
from redraft.tasks.answers import box
from redraft.tasks.problem_splits import distinct

MODULUS = 100
TAGS = "abcdefghijklmnop"


@dataclass(frozen=True)
class Sum:
    """A first value, 0 to 99, and signed terms, whose absolute values are 1 to 9."""

    first: int
    terms: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The problem's text, as the model gets it."""
        tagged = "".join(f"{TAGS[i]}{term:+d}" for i, term in enumerate(self.terms))
        return f"{self.first}{tagged}="

    @property
    def answer(self) -> int:
        """The sum, 0 to 99."""
        return (self.first + sum(self.terms)) % MODULUS

    def working(self, slips: dict[int, int] | None = None) -> str:
        """The solution with its working; it is right without slips.

        Args:
            slips: index of a step to error added to its value; later steps continue with the wrong value.
        """
        value, steps = self.first, [str(self.first)]
        for i, term in enumerate(self.terms):
            value = (value + term + (slips or {}).get(i, 0)) % MODULUS
            steps.append(f"{TAGS[i]}{term:+d}={value}")
        return ";".join(steps) + f";{box(value)}"


def sample_problems(size: int, min_terms: int, max_terms: int, signs: str, split: str, seed: int) -> list[Sum]:
    """Sample `size` different problems of one split (`distinct`). Numbers of terms include the first value."""
    rng = stream(seed, f"arithmetic/{signs}/{split}", min_terms, max_terms)
    return distinct(lambda: sample_problem(rng, min_terms, max_terms, signs), lambda each: each.prompt, split, size)


def sample_problem(rng: np.random.Generator, min_terms: int, max_terms: int, signs: str) -> Sum:
    """Sample one problem, of either split."""
    count = int(rng.integers(min_terms, max_terms + 1)) - 1
    terms = rng.integers(1, 10, count) * rng.choice((-1, 1) if signs == "both" else (-1,), count)
    return Sum(int(rng.integers(MODULUS)), tuple(map(int, terms)))
