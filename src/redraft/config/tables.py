"""Tables of a paper, by kind: rows are cells, evaluated policies, stages of a step, targets reached, published curves,
or parts of a decoding pass.

A kind says what its columns measure; all kinds give the same cells (reproduced, reported, interval, verdict), so that
one renderer serves them.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from redraft.config.base import BEYOND, CellName, Config, InnerPath, Name, Numbered, Quantity, distinct, refuse_twice

Clock = Literal["hours", "steps"]
"""Hours of training, evaluation and checkpoints left out, or steps done."""


EACH = "accuracy:*"
"""Quantity of a column that stands for one absolute column a benchmark."""


class Column(Config):
    """One column of a table."""

    name: str
    """Header in the CSV file."""
    title: str
    """Header for people."""
    quantity: Quantity
    """Quantity that is measured in each run."""
    relative: Literal["ratio", "speedup", "difference"] | None = None
    """Relation to the table's baseline: x/baseline, baseline/x, x-baseline; absolute if empty."""
    reported: list[str] = []
    """Columns of the reported table whose mean is the paper's value."""
    printed_relative: bool = False
    """The paper prints these columns relative to its baseline already, as it does speedups."""
    without_first_epoch: bool = False
    """The paper's ratio is taken without the first epoch, in which nothing can be reused (docs/metrics.md)."""
    judged_by: str = ""
    """Name of the column whose verdict this one has, if not its own."""
    judged_because: str = ""
    """Why it is judged by another column, as the end of a sentence."""
    decimals: int = Field(default=2, ge=0)
    """Decimals shown to people."""
    scale: float = 1.0
    """Factor from the quantity's unit to the column's."""
    in_brackets: bool = False
    """The value stands in brackets behind the column before this one."""
    in_groups: dict[str, Quantity] = {}
    """Group of rows to the quantity there, where it is another one."""

    def of_group(self, group: str) -> "Column":
        """The column as it is measured in a group of rows."""
        return self.model_copy(update={"quantity": self.in_groups[group]}) if group in self.in_groups else self


class Row(Config):
    """One row of a table."""

    label: str
    """The paper's name of the row."""
    cell: CellName
    """Name of the cell."""
    group: str = ""
    """Heading above this row and those after it that name none."""
    baseline: CellName | None = None
    """Cell that this row's relative columns refer to, if not the table's."""
    at: Literal["start", "end"] = "end"
    """The cell's initial policy, or its final one."""
    reported: dict[str, str] = {}
    """Key columns that select the paper's row where they differ from the cell's own."""


class AnyTable(Numbered):
    """Fields of every kind of table. A table with a number above 100 is not in the paper."""

    word: ClassVar[str] = "Table"
    title: str
    """Title of the table."""
    mean_row: bool = False
    """A last row shows each column's mean over the rows that are not compared with themselves."""
    note: str = ""
    """Note for readers who compare the values."""
    transcription: int | None = Field(default=None, ge=1, le=BEYOND)
    """Number of the reported table that stands beside this one, if not its own."""

    @property
    def reported_number(self) -> int | None:
        """Number of the reported table that stands beside this one; None without one."""
        return self.transcription or (None if self.beyond_paper else self.number)


class TableOfCells(AnyTable):
    """Fields of the kinds whose rows are cells."""

    baseline: CellName
    """Cell that relative columns refer to."""
    columns: list[Column] = []
    """Columns in order; a kind that makes columns of its own puts them behind these."""
    rows: list[Row] = Field(min_length=1)
    """Rows in order."""

    @property
    def cells(self) -> list[str]:
        """The cells that the table is made of."""
        return [*(row.cell for row in self.rows), self.baseline]

    @model_validator(mode="after")
    def _consistent(self) -> "TableOfCells":
        refuse_twice("column", [column.name for column in self.columns])
        refuse_twice(
            "column of all benchmarks", [column.quantity for column in self.columns if column.quantity == EACH]
        )
        refuse_twice("row", [(row.group, row.label) for row in self.rows])
        names = [column.name for column in self.columns]
        for column in self.columns:
            if column.judged_by and column.judged_by not in names:
                raise ValueError(f"judged_by ({column.judged_by}) must be a column ({', '.join(names)})")
            if bool(column.judged_by) != bool(column.judged_because):
                raise ValueError(f"judged_because ({column.name}) belongs to judged_by")
            if column.quantity == EACH and column.relative:
                raise ValueError(
                    f"{EACH} ({column.name}) stands for a column a benchmark and is absolute; "
                    "accuracy:all is their mean"
                )
            if column.without_first_epoch and column.relative != "ratio":
                raise ValueError(f"without_first_epoch ({column.name}) needs relative: ratio")
        cells = [row.cell for row in self.rows]
        for baseline in (self.baseline, *(row.baseline for row in self.rows if row.baseline)):
            if baseline not in cells:
                raise ValueError(f"the baseline ({baseline}) must be the cell of a row ({', '.join(cells)})")
        return self


class CellTable(TableOfCells):
    """A row is a cell's last policy and all of its run."""

    kind: Literal["cells"] = "cells"
    columns: list[Column] = Field(min_length=1)
    """Columns in order."""


class StepTable(TableOfCells):
    """A row `at: end` stands for one row a policy that was evaluated during training, with its run up to there."""

    kind: Literal["steps"] = "steps"
    columns: list[Column] = Field(min_length=1)
    """Columns in order."""


class StageTable(TableOfCells):
    """Mean seconds a step by stage: a column a stage behind `columns`, then one a way to count the speedup."""

    kind: Literal["stages"] = "stages"
    stages: dict[str, str] = Field(min_length=1)
    """Stage of a step, as records name it, to the column's title without its unit."""
    decimals: int = Field(default=3, ge=0)
    """Decimals of the stages' seconds."""
    speedups: dict[str, str] = {}
    """Kind of speedup (docs/metrics.md) to the column's title."""


class Target(Config):
    """A value that a quantity should reach."""

    name: str
    """Header in the CSV file."""
    title: str
    """Header for people."""
    at_least: float
    """Reached when the quantity is not below this; accuracies are in percent."""
    in_groups: dict[str, float] = {}
    """Group of rows to the value there, where it is another one."""
    reported: list[str] = []
    """Column of the reported table that holds the hours or steps; `inf` there means never."""
    decimals: int | None = Field(default=None, ge=0)
    """Decimals of its hours or steps, if not the table's."""

    def value(self, group: str) -> float:
        """The value to reach in a group of rows."""
        return self.in_groups.get(group, self.at_least)


class RunTarget(Target):
    """A target of a quantity of runs."""

    quantity: Quantity
    """An accuracy, looked at in every evaluated policy, or a quantity of a step."""


class TargetTable(TableOfCells):
    """First hour, or step, at which each target is reached; in brackets the speedup over the baseline, † if never."""

    kind: Literal["targets"] = "targets"
    clock: Clock = "hours"
    """Unit of the columns."""
    targets: list[RunTarget] = Field(min_length=1)
    """A column a target, behind `columns`."""
    at: dict[Name, list[RunTarget]] = {}
    """Preset to the targets there, where its benchmarks, or what its runs can reach, are others."""
    average: bool = True
    """A last column shows the arithmetic mean of the row's speedups."""
    decimals: int = Field(default=1, ge=0)
    """Decimals of hours and speedups."""

    @model_validator(mode="after")
    def _distinct_targets(self) -> "TargetTable":
        for targets in (self.targets, *self.at.values()):
            _check_targets(targets, [row.group for row in self.rows])
        return self


class Budget(Config):
    """Something that runs spend, by which they are made equal."""

    name: str
    """Header in the CSV file, to which what is measured is added."""
    title: str
    """Name for people, such as decoded tokens."""
    quantity: Quantity
    """Quantity of a step, which adds up."""
    whom: str
    """People to whom this budget matters, for the verdict."""
    scale: float = 1.0
    """Factor from its unit to the table's."""
    unit: str = ""
    """The table's unit of what a run spends, empty for a count."""
    decimals: int = Field(default=2, ge=0)
    """Decimals of what a run spends."""


class BudgetTable(TableOfCells):
    """Accuracy at equal budgets: of each budget what the row's cell spends in all, and what it buys.

    A budget is the largest that every row's every run reaches. Between two evaluated policies the accuracy is
    interpolated linearly.
    """

    kind: Literal["budgets"] = "budgets"
    budgets: list[Budget] = Field(min_length=1)
    """Three columns each, behind `columns`: what is spent, the accuracy at the equal budget, and its difference from
    the baseline's."""
    accuracy: Quantity = "accuracy:all"
    """Accuracy that is bought."""

    @model_validator(mode="after")
    def _distinct_budgets(self) -> "BudgetTable":
        refuse_twice("budget", [budget.name for budget in self.budgets])
        refuse_twice("row", [row.label for row in self.rows])
        if self.mean_row or any(row.at == "start" for row in self.rows):
            raise ValueError("rows of budgets are whole runs of cells, without a mean and without initial policies")
        return self


def _check_targets(targets: Sequence[Target], groups: Iterable[str]) -> None:
    """Raise a ValueError if a target stands twice, or has a value for a group that is none."""
    refuse_twice("target", [target.name for target in targets])
    known = sorted(set(groups) - {""})
    for target in targets:
        for group in target.in_groups:
            if group not in known:
                raise ValueError(f"in_groups ({group}) of {target.name} must be a group of rows ({', '.join(known)})")


class Curve(Config):
    """A row of published data: a training curve, one JSON object a validation and line."""

    label: str
    """The paper's name of the row, which `baseline` refers to."""
    file: InnerPath | None = None
    """In the table's folder; empty where the authors published none, so that there is no data."""
    group: str = ""
    """Heading above this row and those after it that name none."""
    baseline: str | None = None
    """Label of the row that speedups refer to; without one the row is a baseline."""
    reported: dict[str, str] = {}
    """Key columns and their values that select the paper's row."""


class CurveTarget(Target):
    """A target of published curves."""

    fields: list[str] = Field(min_length=1)
    """Keys of the JSON objects whose mean counts; a `*` in a key stands for any text, and one key must match."""


class TableWithoutRuns(AnyTable):
    """Fields of the kinds that no run is needed for, at any scale."""

    decimals: int = Field(default=1, ge=0)
    """Decimals of values, of which a verdict sees all that are printed."""

    @property
    def cells(self) -> list[str]:
        """None: no run is needed."""
        return []


class PublishedTable(TableWithoutRuns):
    """The same as `targets`, from raw curves that the authors published: checks what the paper makes of its own runs.

    The files are third-party data and never part of the repository; without their folder every cell says so. A folder
    that lacks one of the files, or holds one that is cut off, is an error before anything starts.
    """

    kind: Literal["published"] = "published"
    folder: InnerPath
    """Folder of the curves, under the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    time: str
    """Key of the time or step of a validation."""
    scale: float = 1.0
    """Factor from its unit to the table's."""
    unit: str = "h"
    """The table's unit of times."""
    targets: list[CurveTarget] = Field(min_length=1)
    """A column a target."""
    average: bool = True
    """A last column shows the arithmetic mean of the row's speedups."""
    rows: list[Curve] = Field(min_length=1)
    """Rows in order."""

    @model_validator(mode="after")
    def _consistent(self) -> "PublishedTable":
        _check_targets(self.targets, [row.group for row in self.rows])
        refuse_twice("row", [(row.group, row.label) for row in self.rows])
        labels = [row.label for row in self.rows]
        for row in self.rows:
            if row.baseline and row.baseline not in labels:
                raise ValueError(f"the baseline ({row.baseline}) must be the label of a row ({', '.join(labels)})")
        return self


class DecodedModel(Config):
    """A group of rows of a decomposition."""

    label: str
    """The paper's name of the model."""
    configuration: dict[str, Any]
    """Keys of its `config.json` that say how large its parts are."""
    reported: dict[str, str] = {}
    """Key columns and their values that select the paper's rows."""


class DecodingPass(Config):
    """A row of a decomposition."""

    label: str
    """The paper's name of the pass."""
    length: int = Field(ge=1)
    """Positions before the token."""
    batch: int = Field(ge=1)
    """Sequences that decode."""
    reported: str
    """Name of the pass behind the @ of reported columns (`ffn@2k-8`)."""


class DecompositionTable(TableWithoutRuns):
    """Shares of a decoding pass's parts in its time, in percent, by the roofline of each part: no clock is read."""

    kind: Literal["decomposition"] = "decomposition"
    bandwidth: float = Field(gt=0)
    """Bandwidth of the device's memory by its data sheet, bytes/s."""
    flops: float = Field(gt=0)
    """Throughput of the device by its data sheet, operations/s."""
    models: list[DecodedModel] = Field(min_length=1)
    """Groups of rows in order."""
    passes: list[DecodingPass] = Field(min_length=1)
    """Rows of each group in order."""

    @model_validator(mode="after")
    def _consistent(self) -> "DecompositionTable":
        refuse_twice("model", [model.label for model in self.models])
        refuse_twice("pass", [each.label for each in self.passes])
        return self


RunTable = CellTable | StepTable | StageTable | TargetTable | BudgetTable
Table = Annotated[RunTable | PublishedTable | DecompositionTable, Field(discriminator="kind")]


class Headline(Config):
    """Number of a table that the report's first screen shows."""

    table: int
    """Number of the table."""
    cell: CellName
    """Cell of its row; the first row of it that is compared with a baseline."""
    column: str
    """Name of the column, which relates the cell to a baseline."""
    form: Literal["percent fewer", "times", "points"]
    """`percent fewer` says 0.31 as 69 % fewer; `times` is a ratio or speedup, `points` a difference."""
    words: str = Field(min_length=5)
    """Sentence with `{}` in the place of the number with its interval."""
    short: str = Field(min_length=3, max_length=44)
    """Name beside the point of the plot."""

    @field_validator("words")
    @classmethod
    def _one_place(cls, words: str) -> str:
        if words.count("{}") != 1:
            raise ValueError("must have one {} in the place of the number")
        return words


class TableFile(Config):
    """`experiments/<paper>/tables.yaml`."""

    tables: Annotated[list[Table], distinct("table", "number")] = []
    """All regenerated tables."""
    headlines: list[Headline] = []
    """What the report says first of this paper."""

    @model_validator(mode="after")
    def _headlines_exist(self) -> "TableFile":
        numbers = [table.number for table in self.tables]
        for headline in self.headlines:
            if headline.table not in numbers:
                raise ValueError(f"headlines: there is no table {headline.table} among {numbers}")
        return self
