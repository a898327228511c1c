"""Vocabulary of a paper's transcribed tables: what their columns mean, and how its rows are found from cells.

What a paper prints is in `reported/table<NN>.csv`, one value a line: key columns, columns that say how far a run was,
`column`, `value`. This file says the rest, so that nothing in `analysis/` knows a paper by name.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from redraft.config.base import BEYOND, Config, Quantity, refuse_twice
from redraft.config.cell import Cell
from redraft.config.read import resolved

Match = dict[str, str]
"""Key columns to the values that select rows."""


class KeyColumn(Config):
    """A column of the reported tables that tells rows apart."""

    of: str
    """Field of a cell that has the value, or a key in it such as `reuse.kind`; empty if a cell lacks it."""
    names: dict[str, str] = {}
    """A cell's value to the transcription's. If any is given, nothing is reported of cells with other values."""

    @field_validator("of")
    @classmethod
    def _of_a_cell(cls, of: str) -> str:
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
    """The models that a schema's node may be, each resolved."""
    node = resolved(schema, node)
    options = [*node.get("anyOf", []), *node.get("oneOf", [])]
    return [variant for option in options for variant in _variants(schema, option)] or [node]


class ClockColumn(Config):
    """Clock of a run: a column of the tables, and its value at the end of a whole run."""

    column: str
    """One of `positions`."""
    total: int = Field(ge=1)
    """Value at the end of a whole run."""
    training_steps: str = ""
    """One of `positions`: the column of the update batches, where it is another one; as many as `total` at most."""
    when: dict[str, list[str]] = {}
    """Key columns to the values for which this clock counts; all rows if empty."""


class ReportedQuantity(Config):
    """Columns whose sum is a quantity of runs."""

    columns: list[str] = Field(min_length=1)
    """Columns that a row must have."""
    optional: list[str] = []
    """Columns that are added where a row has them, as a stage that did not run has no cell."""
    mean: bool = False
    """The quantity is the mean of the columns instead."""
    scale: float = 1.0
    """Factor from the columns' unit to the quantity's."""


class ReportedSpeedup(Config):
    """A printed speedup, which stands for one over the quantity where a table prints no seconds."""

    column: str
    """Column of the speedup over the baseline."""
    quantity: Quantity
    """Quantity of seconds that it is the speedup of."""


class ReportedTimes(Config):
    """The table of seconds by stage, from which every kind of speedup is computed (docs/metrics.md)."""

    table: int = Field(ge=1, le=BEYOND)
    """Its number."""
    setting: list[str] = Field(min_length=1)
    """Key columns that a method and its baseline share."""
    baseline: Match = Field(min_length=1)
    """Key columns that select the baselines."""


class CostRules(Config):
    """Rules by which `redraft cost` estimates the hours and the storage of cells that the paper prints nothing of."""

    hardware: str
    """Hardware of the reported hours."""
    reference: Match = Field(min_length=1)
    """Key columns that select the rows whose overheads, and whose step, other cells with reuse take."""
    reference_name: str
    """Name of these rows in the source of an estimate."""
    without_verification: list[Match] = []
    """Rows that pay no verification."""
    speedups: list[int] = []
    """Reported tables whose printed speedup serves where seconds are not printed."""
    lengths: list[int] = []
    """Reported tables whose tokens of baselines give the mean length of a response."""
    stand_ins: dict[str, dict[str, str]] = {}
    """Key column to a value that the paper lacks to the value whose rows stand for it."""
    parameters: dict[str, float] = {}
    """Model on the hub to its number of parameters."""


class Reported(Config):
    """`experiments/<paper>/reported.yaml`."""

    key: dict[str, KeyColumn] = Field(min_length=1)
    """Columns that tell rows apart, in the order of the files."""
    positions: list[str] = []
    """Columns behind them that say how far a run was, the first one in the order of training."""
    base: Match = {}
    """Key columns that select the row of a model before training."""
    clocks: list[ClockColumn] = []
    """Which position says what share of a run is done; the first that fits a row counts."""
    quantities: dict[Quantity, ReportedQuantity] = {}
    """Quantity of runs to the columns that give it, for claims; `accuracy:<column>` needs none."""
    speedup: ReportedSpeedup | None = None
    """Printed speedups, if there are any."""
    times: ReportedTimes | None = None
    """The table of seconds by stage, if there is one."""
    cost: CostRules | None = None
    """Rules of `redraft cost`; without them only finished runs have hours."""

    @property
    def row(self) -> list[str]:
        """The columns that name a row."""
        return [*self.key, *self.positions]

    @property
    def header(self) -> list[str]:
        """The header of every file."""
        return [*self.row, "column", "value"]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_twice("column", self.header)
        for clock in self.clocks:
            _refuse_unknown("clocks.column", [clock.column], self.positions)
            _refuse_unknown("clocks.training_steps", [clock.training_steps or clock.column], self.positions)
            _refuse_unknown("clocks.when", clock.when, self.key)
        _refuse_unknown("base", self.base, self.key)
        if self.times:
            _refuse_unknown("times.setting", self.times.setting, self.key)
            _refuse_unknown("times.baseline", self.times.baseline, self.key)
        if self.speedup:
            _refuse_unknown("speedup.quantity", [self.speedup.quantity], self.quantities)
        if cost := self.cost:
            if not self.times or not self.speedup:
                raise ValueError("cost needs times and speedup")
            matches: list[Iterable[str]] = [cost.reference, *cost.without_verification, cost.stand_ins]
            _refuse_unknown("cost", [name for match in matches for name in match], self.key)
            for field in ("model", "data"):
                if field not in [column.of for column in self.key.values()]:
                    raise ValueError(f"cost needs a key column of {field}")
        return self


def _refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError for a name that is not declared."""
    for name in names:
        if name not in known:
            raise ValueError(f"{what}: {name} is not declared; declared are {', '.join(known) or 'none'}")
