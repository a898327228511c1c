"""Training data and benchmarks."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config


class ArithmeticProblems(Config):
    """Problems of the tiny arithmetic task (`redraft.tasks.arithmetic`), drawn from a seed."""

    kind: Literal["arithmetic"] = "arithmetic"
    size: int = Field(default=256, ge=1)
    """Number of different problems."""
    min_terms: int = Field(default=4, ge=2)
    """Fewest terms in a problem."""
    max_terms: int = Field(default=7, ge=2)
    """Most terms in a problem."""
    signs: Literal["both", "minus"] = "both"
    """Whether terms are added and subtracted, or only subtracted."""
    split: Literal["train", "held-out"] = "train"
    """Problems of the two splits never coincide."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draw."""

    @model_validator(mode="after")
    def _ordered(self) -> "ArithmeticProblems":
        if self.min_terms > self.max_terms:
            raise ValueError(f"min_terms ({self.min_terms}) must not exceed max_terms ({self.max_terms})")
        return self


class ProblemFile(Config):
    """Problems in a JSON Lines file with the keys `problem` and `answer`."""

    kind: Literal["file"] = "file"
    path: str
    """The file, relative to the repository's root or absolute."""
    size: int = Field(ge=1)
    """Number of problems it must hold."""


Data = Annotated[ArithmeticProblems | ProblemFile, Field(discriminator="kind")]


class Benchmark(Config):
    """A set of problems, how often each is sampled, and what it stands for."""

    data: Data
    """The problems."""
    samples: int = Field(default=1, ge=1)
    """Samples a problem; accuracy is correct of size x samples (avg@samples)."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; the paper evaluates at 1.0."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus sampling; the paper evaluates at 0.95."""
    max_new_tokens: int = Field(default=96, ge=1)
    """Longest response, tokens."""
    role: Literal["in-distribution", "out-of-distribution"] = "in-distribution"
    """Whether it asks for what was trained."""
    description: str = ""
    """One line for the report."""
