"""Configuration of training data and benchmarks."""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from redraft.config.base import (
    MOST_PROBLEMS,
    MOST_RESPONSES,
    MOST_TOKENS,
    Config,
    HubId,
    InnerPath,
    Name,
    WordyName,
    invalid,
)
from redraft.config.generated import BOX, ArithmeticProblems, Generated, Grading, InstructionPrompts, WordProblems
from redraft.config.gym import GymProblems

LETTER = "{problem}\nPlease reason step by step, and put the letter of your final answer within \\boxed{}."
CHOICES = LETTER.replace("{problem}", "{problem}\n{choices}")
"""Prompt templates that ask for a letter. They are SPEC-RL's words."""
INSTRUCTION_COLUMNS = ("key", "instruction_id_list", "kwargs")
"""IFEval's columns, which its checkers need."""


def _template(fields: dict[str, Any]) -> str:
    """Template of listed problems that state none."""
    if isinstance(fields["answer"], list):
        return "{problem}"
    # Fields before `template` in the class are validated already.
    return BOX if fields["choices"] is None else CHOICES


class ListedProblems(Config):
    """Problems in JSON Lines or Parquet files.

    A column is named by its path: `prompt.-1.content` is the key `content` of the last entry of the column `prompt`.
    """

    problem: str = "problem"
    """Column of the problem text."""
    choices: str | None = None
    """Column with the options: a list, an object from labels to options, or an object with the lists `text` and `label`
    (ARC). They get the letters A, B, C and so on, and the answer becomes a letter. It names an option by its label, or
    by a number that counts from 0."""
    answer: str | list[str] = "answer"
    """Column of the answer, text or a number; or IFEval's three columns `key`, `instruction_id_list`, `kwargs`."""
    answer_from: Literal["text", "box", "####"] = "text"
    """Part of that column that is the answer: all text, its last `\\boxed{}`, or the text after `####`."""
    # A factory, so that fingerprints contain the template: runs with and without a request for a box differ.
    template: str = Field(default_factory=_template)
    """Prompt template. `{problem}` is replaced by the text, `{choices}` by the options, one per line. By default the
    problem and a request for the answer, or with options for its letter, in `\\boxed{}`. `"{problem}"` is the problem
    alone, the default for instructions."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for field, needed in (("{problem}", True), ("{choices}", self.choices is not None)):
            if needed and field not in self.template:
                raise invalid(f"template must contain {field}", at=("template",))
        if self.choices is None and "{choices}" in self.template:
            raise invalid("template contains {choices}, so choices must name their column", at=("choices",))
        if isinstance(self.answer, list):
            # Columns may be nested: the last part of a path is the name.
            columns = sorted(path.rpartition(".")[2] for path in self.answer)
            if columns != sorted(INSTRUCTION_COLUMNS) or self.choices is not None:
                raise invalid(
                    "several columns are key, instruction_id_list and kwargs, without choices", at=("answer",)
                )
        return self


class ProblemFile(ListedProblems):
    """File of problems, JSON Lines or Parquet, by default with the keys `problem` and `answer`."""

    kind: Literal["file"] = "file"
    path: str
    """Path, absolute or relative to the repository's root."""
    size: int = Field(ge=1, le=MOST_PROBLEMS)
    """Number of problems that the file must have."""


class HubProblems(ListedProblems):
    """Problems of a data set on the hub or of its local copy, in JSON Lines or Parquet files.

    The origin of the files is not part of a run's identity (`redraft.tasks.problems`).
    """

    first_defaults: ClassVar[Mapping[str, Any]] = {"template": "{problem}"}

    kind: Literal["hub"] = "hub"
    id: HubId
    """Hub id of the data set."""
    revision: str | None = None
    """Commit of the hub repository; the latest if empty."""
    split: str = ""
    """Split of the files; documentation only."""
    files: list[InnerPath] = Field(min_length=1)
    """Files in the repository, read in this order. A name with `*` must match exactly one file."""
    local: InnerPath | None = None
    """File with the same columns that is read instead if it is in the folder of local copies."""
    sha256: dict[str, Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = {}
    """Required SHA-256 hashes by file name, without `*`; other files are not checked."""
    size: int = Field(ge=1, le=MOST_PROBLEMS)
    """Number of problems that are used, from the first one after `skip`."""
    of: int | None = Field(default=None, ge=1, le=MOST_PROBLEMS)
    """Number of problems that the files must have; `skip` + `size` if empty."""
    skip: int = Field(default=0, ge=0, le=MOST_PROBLEMS)
    """Number of problems that are skipped at the front."""
    incomplete: dict[int, str] = {}
    """Sizes of known incomplete copies, each with a note on the missing problems. All problems of such a copy are
    used."""

    @model_validator(mode="after")
    def _consistent(self) -> "HubProblems":
        if self.rows < self.skip + self.size:
            raise invalid(f"skip and size ({self.skip} + {self.size}) must not exceed of ({self.of})", at=("size",))
        for name in self.sha256:
            local = self.local and PurePosixPath(self.local).as_posix()  # as its hash is looked up
            if "*" in name or (name != local and not any(fnmatch(name, pattern) for pattern in self.files)):
                read = ", ".join([*self.files, *([self.local] if self.local else [])])
                raise invalid(f"no file {name} is read, so its hash would not be checked", read, ("sha256", name))
        return self

    @property
    def rows(self) -> int:
        """Number of problems that the files must have."""
        # Without `of` the files end with the last problem that is used.
        return self.of or self.skip + self.size


Data = Annotated[
    ArithmeticProblems | WordProblems | InstructionPrompts | GymProblems | ProblemFile | HubProblems,
    Field(discriminator="kind"),
]


def problem_file(data: Data) -> str | None:
    """The user's file of problems; None for other data."""
    return data.path if isinstance(data, ProblemFile) else None


def known_sizes(data: Data) -> set[int]:
    """Permitted sizes of a data set: its full size and those of known incomplete copies."""
    return {data.size, *(data.incomplete if isinstance(data, HubProblems) else ())}


Role = Literal["in-distribution", "out-of-distribution"]


class ProblemSet(Config):
    """Problems of a benchmark and the grading of responses, under every protocol."""

    data: Data
    """The problems."""
    grading: Grading = "math"
    """Grader: the last box by math-verify, the letter in it, checkers of instructions (IFEval), or reasoning-gym's
    scorer, which only its problems have."""
    role: Role = "in-distribution"
    """Relation of the problems to the training data."""
    description: str = ""
    """One line for the report."""

    @model_validator(mode="before")
    @classmethod
    def _template_of_the_grader(cls, fields: Any) -> Any:
        """Give listed problems without a template and options the one that their grader needs."""
        # Before validation: afterwards a template that was given cannot be distinguished from the default.
        data, grading = (fields.get("data"), fields.get("grading")) if isinstance(fields, dict) else (None, None)
        usual = {"choice": LETTER, "instructions": "{problem}"}.get(str(grading))
        if not usual or not isinstance(data, dict) or data.get("kind") not in ("file", "hub"):
            return fields
        return fields if {"template", "choices"} & data.keys() else fields | {"data": data | {"template": usual}}

    @model_validator(mode="after")
    def _graded_by_its_grader(self) -> Self:
        needed: Grading | None = None
        if isinstance(self.data, Generated):
            needed = self.data.grading
        elif isinstance(self.data.answer, list):
            needed = "instructions"
        elif self.data.choices is not None:
            needed = "choice"
        # Answers as plain text fit every grader; each checks them before anything is sampled.
        if needed not in (None, self.grading):
            message = f"problems of kind {self.data.kind} with these columns need grading: {needed}"
            raise invalid(message, at=("grading",))
        return self


class Sampling(Config):
    """Prompt format and sampling of a benchmark."""

    chat: Literal["auto", "required", "never"] = "auto"
    """Use of the tokenizer's chat template; `auto` applies it if there is one."""

    samples: int = Field(default=1, ge=1, le=MOST_RESPONSES)
    """Samples per problem; accuracy is the correct share of size × samples (avg@samples)."""
    temperature: float = Field(default=1.0, ge=0, le=1000)
    """Sampling temperature; 0 selects the most probable token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Probability mass of nucleus sampling."""
    max_new_tokens: int = Field(default=96, ge=1, le=MOST_TOKENS)
    """Maximum response length, tokens."""

    @model_validator(mode="after")
    def _different_samples(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise invalid("all samples of a problem are equal at temperature 0", "1", ("samples",))
        return self


class Benchmark(ProblemSet, Sampling):
    """Problem set with its sampling."""

    @property
    def denominator(self) -> int:
        """Number of responses in the denominator of accuracy: problems × samples."""
        return self.data.size * self.samples

    @property
    def metric(self) -> str:
        """Unit that accuracy counts."""
        return "prompts with all instructions followed (strict)" if self.grading == "instructions" else "right answers"


class Protocol(Config):
    """Evaluation protocol of a paper: its benchmarks and their sampling."""

    description: str
    """Origin of the protocol, and the settings that its source does not state."""
    sampling: Sampling
    """Sampling of all benchmarks; each may replace fields."""
    benchmarks: dict[WordyName, dict[str, Any]] = Field(min_length=1)
    """Benchmarks in the order of the paper's tables, each with its fields that differ from `sampling`."""


class BenchmarkFile(Config):
    """`experiments/benchmarks.yaml`."""

    sets: dict[WordyName, ProblemSet]
    """Problem sets by the names that tables, claims and commands use."""
    default: Name
    """Protocol for models that do not come from a run."""
    protocols: dict[Name, Protocol]
    """Protocols by name."""
