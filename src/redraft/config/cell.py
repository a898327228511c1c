"""Cells: experiments of a paper without scale and seed, and the grids that list them."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from redraft.config.algorithm import Algorithm
from redraft.config.base import CellId, Config, Label, Name, PaperName
from redraft.config.decoding import Decoding, Plain
from redraft.config.figures import Figure
from redraft.config.hyperparameters import TrainerFields
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.tables import Table


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
"""Positive number, or a fraction as text such as 5/6."""


class Cell(Config):
    """Experiment of a paper. The scale is the preset's, and seeds come last."""

    paper: PaperName
    """Folder under experiments/."""
    name: Name
    """Readable name: the labels of its grid, joined by `-`."""
    model: Name
    """Model of the paper; the preset says which model stands for it."""
    data: Name
    """Training data of the paper; the preset says which data stand for them."""
    algorithm: Algorithm
    """Algorithm that updates the policy."""
    reuse: Reuse
    """Reuse of earlier rollouts."""
    schedule: Schedule | None = None
    """Selection of prompts and groups; the algorithm's usual schedule if empty."""
    decoding: Decoding = Plain()
    """Generation of tokens by the engine."""
    trainer: TrainerFields = {}
    """Fields of [`Trainer`](#trainer) that this cell replaces, at every scale."""
    trainer_factors: dict[str, Factor] = {}
    """Factors of fields of [`Trainer`](#trainer), for changes that hold at every scale."""
    base: CellId | None = None
    """Cell that this one starts from; its grid says so."""

    @property
    def home(self) -> str:
        """Paper whose hyperparameters and protocol hold: the base's, or its own."""
        return self.base.partition("/")[0] if self.base else self.paper

    @property
    def id(self) -> str:
        """`paper/name`, the form in which commands take a cell."""
        return f"{self.paper}/{self.name}"


class Exclusion(Config):
    """Combinations of a grid that are not cells, with the reason (`Grid.exclude`).

    A label that an axis gets later belongs to no exclusion: whoever adds one adds it here too, where its combinations
    make no sense.
    """

    when: dict[str, list[str]]
    """Axis to labels; a combination is excluded if all axes match."""
    reason: str = Field(min_length=10)
    """Reason, which is the message to anyone who asks for such a cell."""


class Grid(Config):
    """Product of axes. A label becomes part of the cell's name, and its fields part of the cell's definition.

    With a `base` the grid's cells have all that it has and they do not state: its definition, and the hyperparameters
    and the protocol of its paper. A part of another `kind` starts anew, and a field that `trainer` states is not
    multiplied by the base's factor.
    """

    name: str
    """Name by which presets and targets select the grid."""
    base: CellId | None = None
    """Cell, as `paper/cell`, that the cells of the grid start from; one of a paper, which has no base itself."""
    cell: dict[str, Any] = {}
    """Fields of all cells of the grid (`Cell`, except `paper`, `name` and `base`)."""
    axes: dict[str, dict[Label, dict[str, Any]]]
    """Axis to label to the fields that the label sets. An empty label adds nothing to the name."""
    exclude: list[Exclusion] = []
    """Combinations that are left out."""
    beyond_paper: bool = False
    """Mark experiments that the paper does not have; `snakemake extras` runs them, `reproduction` does not."""

    @model_validator(mode="after")
    def _names_nothing(self) -> "Grid":
        for fragment in (self.cell, *(fragment for axis in self.axes.values() for fragment in axis.values())):
            for key in ("paper", "name", "base"):
                if key in fragment:
                    raise ValueError(
                        f"{key} ({fragment[key]}) follows from the folder, the labels or the grid and is not set"
                    )
        return self


class CellFile(Config):
    """`experiments/<paper>/cells.yaml`, or a file of one's own (`redraft list --cells FILE`, docs/quickstart.md)."""

    title: str
    """Title of the paper."""
    method: str = ""
    """Name of its method, by which a report calls the paper; the folder's name if empty."""
    source: str
    """Publication of the paper."""
    own_page: bool = False
    """The report has a page with all of it: claims, tables and figures."""
    laboratory: str = ""
    """Cell without reuse whose rollouts the bias laboratory observes, beside the other cells' acceptance (`snakemake
    laboratory`); none if empty."""
    grids: list[Grid]
    """Grids of all cells of the paper."""
    tables: list[Table] = []
    """Tables, where no `tables.yaml` stands beside the file. A file whose grids have a `base` and that has neither gets
    one table, of each cell beside its base. Rows name other papers' cells as `paper/cell`, if they are bases."""
    figures: list[Figure] = []
    """Figures, where no `figures.yaml` stands beside the file."""

    @property
    def bases(self) -> list[str]:
        """Cells that grids start from, each once."""
        return list(dict.fromkeys(grid.base for grid in self.grids if grid.base))
