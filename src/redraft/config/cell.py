"""Cells: a paper's experiments, and the grids that list them."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from redraft.config.algorithm import Algorithm
from redraft.config.base import Config, Label, Name, PaperName
from redraft.config.decoding import Decoding, Plain
from redraft.config.hyperparameters import TrainerFields
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule


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
    trainer: TrainerFields = {}
    """Fields of `Trainer` that are other for this cell, at every scale."""
    trainer_factors: dict[str, Factor] = {}
    """Numbers that fields of `Trainer` are multiplied by, so that a cell changes them at any scale."""

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
