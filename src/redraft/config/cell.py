"""Configuration of cells, a paper's experiments without scale and seed, and of the grids that list them."""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from redraft.config.algorithm import Algorithm
from redraft.config.base import CellId, Config, Label, Name, PaperName, invalid
from redraft.config.decoding import Decoding, Plain
from redraft.config.figures import Figure
from redraft.config.hyperparameters import TrainerFields
from redraft.config.reuse import Reuse
from redraft.config.schedule import Schedule
from redraft.config.tables import Table

LARGEST_FACTOR = 10**9
# Bounded digits and exponents: `Fraction("1e99999999")` would fill the memory before any check.
_FRACTION = re.compile(r"[+-]?\d{1,20}(/\d{1,20}|(\.\d{0,20})?(e[+-]?\d{1,2})?)", flags=re.ASCII)


def _fraction(value: Any) -> Fraction:
    text = "" if isinstance(value, bool) else str(value) if isinstance(value, int | float | str | Fraction) else ""
    # A denominator of zeros raises ZeroDivisionError, which Pydantic would not turn into a message.
    if not _FRACTION.fullmatch(text) or (text.partition("/")[2].strip("0") == "" and "/" in text):
        raise ValueError("must be a number or a fraction such as 5/6")
    factor = Fraction(text)
    if not Fraction(1, LARGEST_FACTOR) <= factor <= LARGEST_FACTOR:
        raise ValueError(f"must be above 0, from 1/{LARGEST_FACTOR} to {LARGEST_FACTOR}")
    return factor


Factor = Annotated[
    Fraction,
    PlainValidator(_fraction),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
"""Positive number, or the text of a fraction such as 5/6."""


class Cell(Config):
    """Experiment of a paper, without a seed. The preset sets the scale."""

    paper: PaperName
    """Folder under experiments/."""
    name: Name
    """Labels of its grid, joined by `-`."""
    model: Name
    """Model of the paper; the preset says which model is used for it."""
    data: Name
    """Training data of the paper; the preset says which data are used for them."""
    algorithm: Algorithm
    """Algorithm that updates the policy."""
    reuse: Reuse
    """Reuse of earlier rollouts."""
    schedule: Schedule | None = None
    """Selection of prompts and groups; the algorithm's usual schedule if empty."""
    decoding: Decoding = Plain()
    """Generation of tokens by the engine."""
    trainer: TrainerFields = {}
    """Fields of [`TrainerConfig`](#trainerconfig) that this cell replaces, at every scale."""
    trainer_factors: dict[str, Factor] = {}
    """Factors of fields of [`TrainerConfig`](#trainerconfig), for changes that hold at every scale."""
    base: CellId | None = None
    """Cell that this one starts from, set by its grid."""

    @property
    def home(self) -> str:
        """Paper whose hyperparameters and protocol apply: the base's if there is a base, else its own."""
        return self.base.partition("/")[0] if self.base else self.paper

    @property
    def id(self) -> str:
        """`paper/name`, as commands expect it."""
        return f"{self.paper}/{self.name}"


def coordinate(of: Config, axis: str) -> float:
    """The number at a dotted key of a cell or run.

    Raises:
        ValueError: if there is no number at the key.
    """
    value: Any = of
    for part in axis.split("."):
        # A cell's `trainer` is a mapping, its other parts are models.
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    # Factors are fractions.
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ValueError(f"no number at {axis}")
    return float(value)


class Exclusion(Config):
    """Invalid combinations of a grid, with a reason that is shown when someone requests one (`Grid.exclude`).

    An exclusion lists labels, so a label that is added to an axis later is in no exclusion. Add it here too if some of
    its combinations are invalid.
    """

    when: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(min_length=1)
    """Axis to labels. A combination is excluded if its label is listed on every axis named here."""
    reason: str = Field(min_length=10)
    """Reason, shown when someone requests such a cell."""


class Grid(Config):
    """Product of axes. A label becomes part of the cell's name, and its fields part of the cell's definition.

    With a `base`, cells take over every field that they do not set from that cell, and the hyperparameters and the
    protocol from its paper. A part with another `kind` takes over none of its fields. A field that `trainer` sets is
    not multiplied by the base's factor.
    """

    name: str
    """Name by which presets and targets select the grid."""
    base: CellId | None = None
    """Cell, as `paper/cell`, that the cells of the grid start from. It must not have a base itself."""
    cell: dict[str, Any] = {}
    """Fields of all cells of the grid (`Cell`, except `paper`, `name` and `base`)."""
    axes: dict[str, dict[Label, dict[str, Any]]]
    """Axis to label to the fields that the label sets. An empty label adds nothing to the name."""
    exclude: list[Exclusion] = []
    """Invalid combinations."""
    beyond_paper: bool = False
    """True for experiments that the paper lacks; `snakemake extras` runs them, `reproduction` does not."""

    @model_validator(mode="after")
    def _no_derived_fields(self) -> "Grid":
        for fragment in (self.cell, *(fragment for axis in self.axes.values() for fragment in axis.values())):
            for key in ("paper", "name", "base"):
                if key in fragment:
                    raise invalid(
                        f"{key} ({fragment[key]}) follows from the folder, the labels or the grid and cannot be set"
                    )
        return self


class CellFile(Config):
    """`experiments/<paper>/cells.yaml`, or a custom file of cells (`redraft list --cells FILE`, docs/quickstart.md)."""

    title: str
    """Title of the paper."""
    method: str = ""
    """Name of its method, which the report uses for the paper; the folder's name if empty."""
    source: str
    """Publication of the paper."""
    own_page: bool = False
    """True if the report has a separate page of the paper with its claims, tables and figures."""
    runs_from: list[PaperName] = []
    """Papers whose runs this one takes where only the names differ, so that nothing is trained twice
    (docs/adding-a-paper.md)."""
    laboratory: str = ""
    """Cell without reuse whose rollouts the bias laboratory observes (`snakemake laboratory`); none if empty. It also
    shows the acceptance of the other cells."""
    grids: list[Grid]
    """Grids of all cells of the paper."""
    tables: list[Table] = []
    """Tables, if there is no `tables.yaml` next to the file. If there is neither and the grids have a `base`, there is
    one table that compares each cell with its base. Rows name cells of other papers as `paper/cell` if they are
    bases."""
    figures: list[Figure] = []
    """Figures, if there is no `figures.yaml` next to the file."""

    @property
    def bases(self) -> list[str]:
        """Distinct cells that grids start from."""
        return list(dict.fromkeys(grid.base for grid in self.grids if grid.base))
