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


class HubProblems(Config):
    """Problems of a data set on the hub, in JSON Lines or Parquet files.

    A column is named by its path: `prompt.-1.content` is the key `content` of the last entry of the column `prompt`.
    Where the files come from is no part of this: see `redraft.tasks.problems`.
    """

    kind: Literal["hub"] = "hub"
    id: str
    """Hub id of the data set."""
    revision: str | None = None
    """Commit of the hub repository; the latest one if it is not known."""
    files: list[str] = Field(min_length=1)
    """Files inside the repository, read one after the other. A name may hold `*` and must then match one file."""
    size: int = Field(ge=1)
    """Number of problems taken, the first ones."""
    of: int | None = Field(default=None, ge=1)
    """Number of problems that the files must hold; as many as are taken if empty."""
    problem: str = "problem"
    """Column of the problem's text."""
    choices: str | None = None
    """Column of a list of options, which are put below the problem as A, B, C and so on; the answer is a letter."""
    answer: str | None = "answer"
    """Column of the answer; nothing if the problems are not graded against an answer."""
    answer_in_box: bool = False
    """Whether the answer is what the last `\\boxed{}` in that column holds."""
    instruction: str = ""
    """Put below each problem."""

    @model_validator(mode="after")
    def _enough(self) -> "HubProblems":
        if self.rows < self.size:
            raise ValueError(f"size ({self.size}) must not exceed of ({self.of})")
        return self

    @property
    def rows(self) -> int:
        """Number of problems that the files must hold."""
        return self.of or self.size


Data = Annotated[ArithmeticProblems | ProblemFile | HubProblems, Field(discriminator="kind")]


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
