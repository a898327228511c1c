"""What a paper's experiment is made of: cells, grids, and the preset that gives them a scale."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, field_validator, model_validator

from redraft.config.algorithm import Algorithm
from redraft.config.base import Config, Label, Name, PaperName, WordyName, defining, refuse_twice
from redraft.config.data import Benchmark, Data
from redraft.config.decoding import Decoding, Plain
from redraft.config.model import Model
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.trainer import Engine, Evaluation, InProcessEngine, Trainer


def _fraction(value: Any) -> Fraction:
    try:
        factor = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError("must be a number or a fraction such as 5/6") from None
    if factor <= 0:
        raise ValueError("must be above 0")
    return factor


Factor = Annotated[
    Fraction,
    PlainValidator(_fraction),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
"""A positive number, or a fraction as text."""


class Cell(Config):
    """One experiment of a paper, at no particular scale and without a seed."""

    paper: PaperName
    """Folder under experiments/."""
    name: Name
    """Readable name, the labels of its grid joined by `-`."""
    model: Name
    """The paper's model; the preset says what stands for it."""
    data: Name
    """The paper's training data; the preset says what stands for it."""
    algorithm: Algorithm
    """How the policy is updated."""
    reuse: Reuse
    """What rollouts take over from earlier ones."""
    schedule: Schedule | None = None
    """Which prompts are rolled out and which groups are trained on; the algorithm's usual one if empty."""
    decoding: Decoding = Plain()
    """How the engine makes tokens."""
    trainer: dict[str, Any] = {}
    """Fields of the preset's trainer that this cell changes."""
    trainer_factors: dict[str, Factor] = {}
    """Numbers that fields of the preset's trainer are multiplied by, so that a cell changes them at any scale."""

    @property
    def id(self) -> str:
        """`paper/name`, as every command takes it."""
        return f"{self.paper}/{self.name}"


class Exclusion(Config):
    """Combinations of a grid that are not cells, and why."""

    when: dict[str, list[str]]
    """Axis to labels; excluded where all axes match."""
    reason: str = Field(min_length=10)
    """Said to whoever asks for such a cell."""


class Grid(Config):
    """Cells as the product of axes. A label stands in the cell's name, its fragment in the cell's definition."""

    name: str
    """What the grid is for; presets and targets select by it."""
    cell: dict[str, Any]
    """Fields that all cells share."""
    axes: dict[str, dict[Label, dict[str, Any]]]
    """Axis to label to the fields that the label sets. An empty label adds nothing to the name."""
    exclude: list[Exclusion] = []
    """Combinations left out."""
    beyond_paper: bool = False
    """Whether the paper has no such experiment: `snakemake extras` runs it, `snakemake reproduction` does not."""

    @model_validator(mode="after")
    def _names_nothing(self) -> "Grid":
        for fragment in (self.cell, *(fragment for axis in self.axes.values() for fragment in axis.values())):
            for key in ("paper", "name"):
                if key in fragment:
                    raise ValueError(f"{key} ({fragment[key]}) follows from the folder and the labels and is not set")
        return self


class CellFile(Config):
    """`experiments/<paper>/cells.yaml`."""

    title: str
    """The paper's title."""
    source: str
    """Where it is published."""
    grids: list[Grid]
    """All cells of the paper."""


class Preset(Config):
    """`experiments/presets/<name>.yaml`: what changes with scale, never the method."""

    name: Name
    """The file's name, and the folder under results/."""
    description: str
    """One sentence."""
    paper_scale: bool = False
    """Whether models and benchmarks are the papers' own, so that absolute values may be compared with reported ones."""
    seeds: list[int] = Field(min_length=1)
    """Each cell is run once a seed."""
    models: dict[Name, Model]
    """What stands for the papers' models."""
    data: dict[Name, Data]
    """What stands for the papers' training data."""
    trainer: Trainer
    """Training settings of all cells."""
    engine: Engine = InProcessEngine()
    """How runs execute."""
    evaluation: Evaluation = Evaluation()
    """How policies are sampled on benchmarks."""
    protocol: str = ""
    """What policies are evaluated on: a protocol of experiments/benchmarks.yaml, instead of `benchmarks`."""
    benchmarks: dict[WordyName, Benchmark] = {}
    """What policies are evaluated on, if it is no protocol; the benchmarks of the protocol once it is read."""
    default: dict[PaperName, list[str]]
    """Paper to the grids that a bare `snakemake` runs."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        refuse_twice("seed", seeds)
        if min(seeds) < 0:
            raise ValueError("seeds must be >= 0")
        return seeds

    @model_validator(mode="after")
    def _evaluated_once(self) -> "Preset":
        if bool(self.protocol) == bool(self.benchmarks):
            raise ValueError("either protocol or benchmarks must be given")
        return self

    @model_validator(mode="after")
    def _models_of_the_papers(self) -> "Preset":
        made_here = [role for role, model in self.models.items() if model.kind != "pretrained"]
        if self.paper_scale and made_here:
            raise ValueError(f"paper_scale needs the papers' own models; {', '.join(made_here)} is made here")
        return self


class Run(Config):
    """A cell at a preset's scale with one seed: everything that defines one training run."""

    preset: str
    """Name of the preset it was resolved with."""
    paper: str
    """Folder under experiments/."""
    cell: str
    """Name of the cell."""
    seed: int
    """Seed of every random stream of the run."""
    model_role: str
    """The paper's model."""
    data_role: str
    """The paper's training data."""
    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    algorithm: Algorithm
    """How the policy is updated."""
    reuse: Reuse
    """What rollouts take over from earlier ones."""
    schedule: Schedule
    """Which prompts are rolled out and which groups are trained on."""
    decoding: Decoding = Plain()
    """How the engine makes tokens."""
    trainer: Trainer
    """How much is trained."""
    engine: Engine
    """How it executes; not part of the identity."""

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.trainer.steps(self.data.size)

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps done by the policies that are evaluated."""
        return self.trainer.evaluated_steps(self.data.size)

    @property
    def unsupported(self) -> str:
        """Why what trains at this preset cannot train this exactly, or nothing."""
        lacking = sorted(self.reuse.needs - self.engine.capabilities)
        return f"engine.kind {self.engine.kind} cannot do {' or '.join(lacking)}" if lacking else ""

    @property
    def identity(self) -> dict[str, Any]:
        """What defines the experiment, defaults left out, so that a new field with a default changes nothing.

        `reuse` keeps the name that it had first, so that runs of then are those of now.
        """
        fields = {"paper", "cell", "seed", "trainer", "decoding"}
        schedule = {} if self.schedule == self.algorithm.usual_schedule else {"schedule": defining(self.schedule)}
        parts = {"model": self.model, "data": self.data, "algorithm": self.algorithm, "method": self.reuse}
        return (
            self.model_dump(mode="json", include=fields, exclude_defaults=True)
            | schedule
            | {name: defining(part) for name, part in parts.items()}
        )
