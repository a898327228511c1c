"""What is made of the runs: tables, figures and claims of a paper."""

from typing import Annotated, Literal

from pydantic import Field

from redraft.config.base import Config

Quantity = str
"""Name of a quantity of a run, one of `analysis.quantities.QUANTITIES` or `accuracy:<benchmark or role>`."""


class Column(Config):
    """One column of a table."""

    name: str
    """Header in the CSV file."""
    title: str
    """Header for people."""
    quantity: Quantity
    """What is measured in each run."""
    relative: Literal["ratio", "speedup", "difference"] | None = None
    """How the value relates to the table's baseline: x/baseline, baseline/x, x-baseline; absolute if empty."""
    reported: list[str] = []
    """Columns of the reported table whose mean is the paper's value."""
    printed_relative: bool = False
    """Whether the paper prints these columns relative to its baseline already, as it does speedups."""
    decimals: int = Field(default=2, ge=0)
    """Decimals shown to people."""
    scale: float = 1.0
    """Factor from the quantity's unit to the column's."""


class Row(Config):
    """One row of a table: a cell, or the model before training."""

    label: str
    """As the paper names it."""
    cell: str
    """Name of the cell."""
    reported: dict[str, str] = {}
    """Fields that select the paper's row where they differ from the cell's own."""


class Table(Config):
    """A table of the paper, regenerated."""

    number: int = Field(ge=1)
    """The paper's number."""
    title: str
    """What it shows."""
    baseline: str
    """Cell that relative columns refer to."""
    columns: list[Column]
    """Columns in order."""
    rows: list[Row]
    """Rows in order."""


class Panel(Config):
    """One diagram of a figure."""

    quantity: Quantity
    """A quantity of a step or an epoch."""
    title: str
    """Title, with the unit."""
    cells: list[str]
    """One line a cell."""
    reported: dict[str, float] = {}
    """Values read from the paper's figure, by what they are."""


class Figure(Config):
    """A figure of the paper, regenerated."""

    number: int = Field(ge=1)
    """The paper's number."""
    title: str
    """What it shows."""
    x: Literal["step", "epoch"]
    """The horizontal axis."""
    panels: list[Panel]
    """Diagrams from left to right."""


class Compare(Config):
    """The paired difference (or ratio) between two cells lies beyond a threshold."""

    kind: Literal["compare"] = "compare"
    quantity: Quantity
    """What is compared."""
    cell: str
    """The cell the claim is about."""
    baseline: str
    """What it is compared with."""
    relative: Literal["ratio", "difference"] = "difference"
    """cell/baseline or cell-baseline, by seed."""
    expected: Literal["above", "below", "within"]
    """Which side of the threshold the paper asserts; `within` means at most so far from the neutral value."""
    threshold: float
    """In the quantity's unit, or a ratio."""


class Monotone(Config):
    """A quantity rises or falls along a sequence of cells."""

    kind: Literal["monotone"] = "monotone"
    quantity: Quantity
    """What is compared."""
    cells: list[str] = Field(min_length=2)
    """In the order in which the quantity should rise or fall."""
    expected: Literal["rises", "falls"]
    """Direction along `cells`."""


class Bound(Config):
    """A quantity of one cell stays on one side of a value."""

    kind: Literal["bound"] = "bound"
    quantity: Quantity
    """What is bounded."""
    cell: str
    """The cell."""
    expected: Literal["above", "below"]
    """Which side."""
    threshold: float
    """In the quantity's unit."""


class Claim(Config):
    """A sentence of the paper that asserts a direction or a number, as a test."""

    id: str
    """Short name."""
    quotation: str
    """The paper's words, shortened to the assertion."""
    section: str
    """Where they stand."""
    test: Annotated[Compare | Monotone | Bound, Field(discriminator="kind")]
    """The statistic and its threshold."""
    note: str = ""
    """What the test leaves out, or why its threshold is what it is."""


class TableFile(Config):
    """`experiments/<paper>/tables.yaml`."""

    tables: list[Table]
    """All regenerated tables."""


class FigureFile(Config):
    """`experiments/<paper>/figures.yaml`."""

    figures: list[Figure]
    """All regenerated figures."""


class ClaimFile(Config):
    """`experiments/<paper>/claims.yaml`."""

    claims: list[Claim]
    """All claims."""
