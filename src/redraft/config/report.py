"""What is made of the runs: tables, figures and claims of a paper."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from redraft.config.base import Config, near, refuse_twice


def _known(name: str, info: ValidationInfo) -> str:
    """The name, if it is among the cells of the context; without a context nothing is known."""
    cells = (info.context or {}).get("cells", [name])
    if name not in cells:
        raise PydanticCustomError("no_such_cell", "no such cell", {"expected": ", ".join(near(name, cells))})
    return name


CellName = Annotated[str, AfterValidator(_known)]
"""Name of a cell of the same paper."""

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
    """One row of a table."""

    label: str
    """As the paper names it."""
    cell: CellName
    """Name of the cell."""
    reported: dict[str, str] = {}
    """Fields that select the paper's row where they differ from the cell's own."""


class Table(Config):
    """A table of the paper, regenerated."""

    number: int = Field(ge=1)
    """The paper's number."""
    title: str
    """What it shows."""
    baseline: CellName
    """Cell that relative columns refer to."""
    columns: list[Column]
    """Columns in order."""
    rows: list[Row]
    """Rows in order."""
    note: str = ""
    """What a reader must know to compare the values."""

    @model_validator(mode="after")
    def _consistent(self) -> "Table":
        refuse_twice("column", [column.name for column in self.columns])
        refuse_twice("row", [row.label for row in self.rows])
        if self.baseline not in (cells := [row.cell for row in self.rows]):
            raise ValueError(f"the baseline ({self.baseline}) must be the cell of a row ({', '.join(cells)})")
        return self


class Panel(Config):
    """One diagram of a figure."""

    quantity: Quantity
    """A quantity of a step or an epoch."""
    title: str
    """Title, with the unit."""
    cells: list[CellName]
    """One line a cell."""
    reported: dict[Literal["first", "last"], float] = {}
    """Values read off the paper's figure at its first and last point; shown at the paper's scale only."""


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
    cell: CellName
    """The cell the claim is about."""
    baseline: CellName
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
    cells: list[CellName] = Field(min_length=2)
    """In the order in which the quantity should rise or fall."""
    expected: Literal["rises", "falls"]
    """Direction along `cells`."""


class Bound(Config):
    """A quantity of one cell stays on one side of a value."""

    kind: Literal["bound"] = "bound"
    quantity: Quantity
    """What is bounded."""
    cell: CellName
    """The cell."""
    expected: Literal["above", "below"]
    """Which side."""
    threshold: float
    """In the quantity's unit."""


class Peak(Config):
    """A quantity is highest in one cell of several."""

    kind: Literal["peak"] = "peak"
    quantity: Quantity
    """What is compared."""
    cell: CellName
    """The cell that should be highest."""
    others: list[CellName] = Field(min_length=1)
    """The cells it should exceed, each by itself."""


class Claim(Config):
    """A sentence of the paper that asserts a direction or a number, as a test."""

    id: str
    """Short name."""
    quotation: str
    """The paper's words, shortened to the assertion."""
    section: str
    """Where they stand."""
    test: Annotated[Compare | Monotone | Peak | Bound, Field(discriminator="kind")]
    """The statistic and its threshold."""
    scale: Literal["any", "paper"] = "any"
    """Where the test can decide: `paper` if it is about an absolute value, or about something that another model or
    task changes by itself; at any other scale the evidence is shown and the verdict is inconclusive."""
    note: str = ""
    """What the test leaves out, or why its threshold is what it is."""


class TableFile(Config):
    """`experiments/<paper>/tables.yaml`."""

    tables: list[Table]
    """All regenerated tables."""

    @field_validator("tables")
    @classmethod
    def _distinct(cls, tables: list[Table]) -> list[Table]:
        refuse_twice("table", [table.number for table in tables])
        return tables


class FigureFile(Config):
    """`experiments/<paper>/figures.yaml`."""

    figures: list[Figure]
    """All regenerated figures."""

    @field_validator("figures")
    @classmethod
    def _distinct(cls, figures: list[Figure]) -> list[Figure]:
        refuse_twice("figure", [figure.number for figure in figures])
        return figures


class ClaimFile(Config):
    """`experiments/<paper>/claims.yaml`."""

    claims: list[Claim]
    """All claims."""

    @field_validator("claims")
    @classmethod
    def _distinct(cls, claims: list[Claim]) -> list[Claim]:
        refuse_twice("claim", [claim.id for claim in claims])
        return claims
