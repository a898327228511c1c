"""Training data and benchmarks."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from redraft.config.base import Config, HubId, InnerPath, Name, WordyName


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
    """Problems of a data set on the hub, or of a local copy of it, in JSON Lines or Parquet files.

    A column is named by its path: `prompt.-1.content` is the key `content` of the last entry of the column `prompt`.
    Where the files come from is no part of a run's identity: see `redraft.tasks.problems`.
    """

    kind: Literal["hub"] = "hub"
    id: HubId
    """Hub id of the data set."""
    revision: str | None = None
    """Commit of the hub repository; the latest one if it is not known."""
    split: str = ""
    """The split that the files are of, for people."""
    files: list[InnerPath] = Field(min_length=1)
    """Files inside the repository, read one after the other. A name may hold `*` and must then match one file."""
    local: InnerPath | None = None
    """One file with the same columns that is read instead, if the folder of local copies has it."""
    sha256: dict[str, str] = {}
    """Hashes that files must have, by name; others may hold anything that fits."""
    size: int = Field(ge=1)
    """Number of problems taken, the first ones behind those that are skipped."""
    of: int | None = Field(default=None, ge=1)
    """Number of problems that the files must hold; as many as are skipped and taken if empty."""
    skip: int = Field(default=0, ge=0)
    """Number of problems left out at the front."""
    incomplete: dict[int, str] = {}
    """Smaller sizes of copies that lack problems, and what to say of them; they are taken whole."""
    problem: str = "problem"
    """Column of the problem's text."""
    choices: str | None = None
    """Column of a list of options, which get the letters A, B, C and so on; the answer is a letter."""
    template: str = "{problem}"
    """How a problem is put: `{problem}` stands for its text, `{choices}` for the options, a line each."""
    answer: str | list[str] = "answer"
    """Column of the answer; of several columns a JSON object is made."""
    answer_from: Literal["text", "box", "####"] = "text"
    """Where in that column the answer is: the whole text, its last `\\boxed{}`, or what stands behind `####`."""

    @model_validator(mode="after")
    def _consistent(self) -> "HubProblems":
        if self.rows < self.skip + self.size:
            raise ValueError(f"skip and size ({self.skip} + {self.size}) must not exceed of ({self.of})")
        needed = ["{problem}"] if self.choices is None else ["{problem}", "{choices}"]
        if missing := [name for name in needed if name not in self.template]:
            raise ValueError(f"template must hold {missing[0]}")
        return self

    @property
    def rows(self) -> int:
        """Number of problems that the files must hold."""
        return self.of or self.skip + self.size


Data = Annotated[ArithmeticProblems | ProblemFile | HubProblems, Field(discriminator="kind")]


def known_sizes(data: Data) -> set[int]:
    """How many problems a set may have: its size, and those of copies that are known to lack some."""
    return {data.size, *(data.incomplete if isinstance(data, HubProblems) else ())}


Role = Literal["in-distribution", "out-of-distribution"]


class ProblemSet(Config):
    """What a benchmark asks, and how responses are graded, by whatever protocol it is sampled."""

    data: Data
    """The problems."""
    grading: Literal["math", "choice", "instructions"] = "math"
    """What is compared: the last box by math-verify, the letter in it, or instructions checked (IFEval)."""
    role: Role = "in-distribution"
    """Whether it asks for what was trained."""
    description: str = ""
    """One line for the report."""


class Sampling(Config):
    """How a problem is put to the model and sampled."""

    chat: Literal["auto", "required", "never"] = "auto"
    """Whether prompts are messages of the tokenizer's chat template; `auto` takes it where there is one."""

    samples: int = Field(default=1, ge=1)
    """Samples a problem; accuracy is correct of size x samples (avg@samples)."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 takes the most probable token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus sampling."""
    max_new_tokens: int = Field(default=96, ge=1)
    """Longest response, tokens."""


class Benchmark(ProblemSet, Sampling):
    """A set of problems, how it is sampled, and what it stands for."""

    @property
    def denominator(self) -> int:
        """What accuracy counts correct responses of."""
        return self.data.size * self.samples

    @property
    def metric(self) -> str:
        """What accuracy counts."""
        return "prompts with all instructions followed (strict)" if self.grading == "instructions" else "right answers"


class Protocol(Config):
    """How a paper evaluates: benchmarks, and how each is sampled."""

    description: str
    """Whose protocol, and what of it is not known."""
    sampling: Sampling
    """Of all its benchmarks."""
    benchmarks: dict[WordyName, dict[str, Any]] = Field(min_length=1)
    """Benchmarks in the order of the paper's tables, each with the fields of `sampling` that differ."""


class BenchmarkFile(Config):
    """`experiments/benchmarks.yaml`."""

    sets: dict[WordyName, ProblemSet]
    """All problem sets, by the names that tables, claims and commands use."""
    protocols: dict[Name, Protocol]
    """All protocols."""
