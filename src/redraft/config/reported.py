"""Configuration of a paper's transcribed tables: the meaning of their columns, and the rows that belong to a cell.

The transcribed values are in `reported/table<NN>.csv`, one per line: key columns, columns with the progress of the run,
`column`, `value`. With `reported.yaml`, nothing in `analysis/` needs to know a paper by name.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from redraft.config.base import BEYOND, Config, Quantity, check_distinct, invalid
from redraft.config.cell import Cell
from redraft.config.quantities import similar
from redraft.config.read import resolved
from redraft.config.tables import SignedScale

Match = dict[str, str]
"""Key columns and values that select rows."""


class KeyColumn(Config):
    """A column of the reported tables that identifies rows."""

    of: str
    """Field of a cell with the value, or a key in it such as `reuse.kind`. A cell without the key has an empty
    value."""
    names: dict[str, str] = {}
    """A cell's value to that of the table. If not empty, the tables have no rows for cells with other values."""

    @field_validator("of")
    @classmethod
    def _of_a_cell(cls, of: str) -> str:
        # Parts of a cell are unions: a key counts if the fields of any kind have it.
        nodes = [schema := _schema_of_cells()]
        for part in of.split("."):
            children: list[dict[str, Any]] = []
            for node in nodes:
                values = node.get("additionalProperties")
                if part in node.get("properties", {}):
                    children.append(node["properties"][part])
                elif values:
                    children.append(values if isinstance(values, dict) else {})
            nodes = [variant for child in children for variant in _variants(schema, child)]
        if not nodes:
            fields = ", ".join(Cell.model_fields)
            raise ValueError(f"no cell has {of}; allowed are fields of cells ({fields}) and keys in them")
        return of


_schema_of_cells = cache(Cell.model_json_schema)


def _variants(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a node of a JSON schema, each resolved."""
    node = resolved(schema, node)
    options = [*node.get("anyOf", []), *node.get("oneOf", [])]
    # A node without alternatives is its own only variant.
    return [variant for option in options for variant in _variants(schema, option)] or [node]


class ClockColumn(Config):
    """Clock of a run: a column of the tables, and its value at the end of a complete run."""

    column: str
    """One of `positions`."""
    total: int = Field(ge=1)
    """Value at the end of a complete run."""
    training_steps: str = ""
    """One of `positions`: the column of update batches, if it differs; its values are at most `total`."""
    when: dict[str, list[str]] = {}
    """Key columns to the values of the rows with this clock; all rows if empty."""


class ReportedQuantity(Config):
    """Columns whose sum is a quantity of runs."""

    columns: list[str] = Field(min_length=1)
    """Columns that a row must have."""
    optional: list[str] = []
    """Columns that are added if a row has them; a stage that did not run has no value."""
    mean: bool = False
    """Use the mean of the columns instead of the sum."""
    scale: SignedScale = 1.0
    """Factor from the unit of the columns to that of the quantity."""


class ReportedSpeedup(Config):
    """A printed speedup. Its inverse is used for the quantity if a table prints no seconds."""

    column: str
    """Column of the speedup over the baseline."""
    quantity: Quantity
    """Wall time, in seconds, that the speedup refers to."""


class ReportedTimes(Config):
    """The table with the wall time per stage, in seconds, from which all kinds of speedup are computed
    (docs/metrics.md)."""

    table: int = Field(ge=1, le=BEYOND)
    """Number of the table."""
    setting: list[str] = Field(min_length=1)
    """Key columns that are equal for a method and its baseline."""
    baseline: Match = Field(min_length=1)
    """Key columns that select the baselines."""


class CostRules(Config):
    """Rules by which `redraft cost` estimates hours and storage of cells for which the paper prints neither."""

    hardware: str
    """Hardware of the reported hours."""
    reference: Match = Field(min_length=1)
    """Key columns that select the rows whose overheads and step times are used for other cells with reuse."""
    reference_name: str
    """Name of these rows in the source of an estimate."""
    without_verification: list[Match] = []
    """Rows without time for verification."""
    speedups: list[int] = []
    """Reported tables whose printed speedup is used if no seconds are printed."""
    lengths: list[int] = []
    """Reported tables whose tokens of baselines give the mean response length."""
    stand_ins: dict[str, dict[str, str]] = {}
    """Key column to a value that the paper lacks to the value whose rows are used for it."""
    parameters: dict[str, float] = {}
    """Model on the hub to its number of parameters."""


class Reported(Config):
    """`experiments/<paper>/reported.yaml`."""

    key: dict[str, KeyColumn] = Field(min_length=1)
    """Columns that identify rows, in the order of the files."""
    positions: list[str] = []
    """Columns after the key columns with the progress of the run; the first one is in the order of training."""
    values: dict[int, int] = {}
    """Number of a table to the number of lines after its header. If not empty, it must have every table, and a file
    with another number of lines is an error."""
    base: Match = {}
    """Key columns that select the row of a model before training."""
    clocks: list[ClockColumn] = []
    """Clocks that give the finished share of a run; the first one that fits a row is used."""
    quantities: dict[Quantity, ReportedQuantity] = {}
    """Quantity of runs to the columns that give it, for claims; `accuracy:<column>` needs no entry."""
    speedup: ReportedSpeedup | None = None
    """Printed speedups, if there are any."""
    times: ReportedTimes | None = None
    """The table with the wall time per stage, if there is one."""
    cost: CostRules | None = None
    """Rules of `redraft cost`; without them it has hours of finished runs only."""

    @property
    def row(self) -> list[str]:
        """Columns that identify a row."""
        return [*self.key, *self.positions]

    @property
    def header(self) -> list[str]:
        """Header of each file."""
        return [*self.row, "column", "value"]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_distinct("column", self.header)
        for clock in self.clocks:
            _check_declared("clocks.column", [clock.column], self.positions)
            _check_declared("clocks.training_steps", [clock.training_steps or clock.column], self.positions)
            _check_declared("clocks.when", clock.when, self.key)
        _check_declared("base", self.base, self.key)
        if self.times:
            _check_declared("times.setting", self.times.setting, self.key)
            _check_declared("times.baseline", self.times.baseline, self.key)
        if self.speedup:
            _check_declared("speedup.quantity", [self.speedup.quantity], self.quantities)
        if cost := self.cost:
            # `redraft cost` takes seconds of stages from `times`, and from `speedup` where a table prints no seconds.
            if not self.times or not self.speedup:
                raise invalid("cost needs times and speedup", at=("cost",))
            matches: list[Iterable[str]] = [cost.reference, *cost.without_verification, cost.stand_ins]
            _check_declared("cost", [name for match in matches for name in match], self.key)
            for field in ("model", "data"):
                if field not in [column.of for column in self.key.values()]:
                    raise invalid(f"cost needs a key column of {field}", at=("cost",))
        return self


def _check_declared(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError for a name that is not declared."""
    for name in names:
        if name not in known:
            allowed = similar(name, known) or "none"
            raise invalid(f"{what}: {name} is not declared", allowed, tuple(what.split(".")), value=name)
