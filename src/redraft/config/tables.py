"""Configuration of tables, by kind: parts of a table, tables of runs, tables without runs, and the file of them.

The kind determines rows and columns. All kinds have the same entries (reproduced, reported, interval, verdict), so one
renderer is enough.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from redraft.config.base import (
    BEYOND,
    STEP_STAGES,
    CellName,
    Config,
    InnerPath,
    Name,
    Numbered,
    PaperName,
    check_distinct,
    distinct,
    invalid,
)
from redraft.config.quantities import (
    ACCURACY,
    AT_EQUAL,
    EACH,
    KINDS_OF_SPEEDUP,
    SPEEDUP,
    Accuracy,
    ColumnQuantity,
    StepQuantity,
    TargetQuantity,
    check_reachable,
    similar,
)

Clock = Literal["hours", "steps"]
"""Hours of training without evaluation and checkpoints, or finished steps."""

AVERAGE = "average_speedup"
"""Name and quantity of the column that is the mean of a row's speedups in brackets."""
Decimals = Annotated[int, Field(ge=0, le=12)]
"""Decimals of a number on pages."""
Scale = Annotated[float, Field(ge=1e-30, le=1e30)]
"""Factor between two units."""


def _not_zero(scale: float) -> float:
    if not 1e-30 <= abs(scale) <= 1e30:
        raise invalid("must not be 0, and at most 1e30 in absolute value")
    return scale


SignedScale = Annotated[float, AfterValidator(_not_zero)]
"""Factor between two units, one of which may have the other sign."""


class Column(Config):
    """One column of a table."""

    name: str
    """Header in the CSV file."""
    title: str
    """Header on pages."""
    quantity: ColumnQuantity
    """Quantity, measured in each run."""
    relative: Literal["ratio", "speedup", "difference"] | None = None
    """Relation to the baseline: x/baseline, baseline/x or x-baseline; absolute if empty."""
    reported: list[str] = []
    """Columns of the reported table; their mean is the paper's value."""
    printed_relative: bool = False
    """True if the paper prints these columns relative to its baseline, such as speedups."""
    without_first_epoch: bool = False
    """Exclude the first epoch, in which nothing can be reused, from the ratio (docs/metrics.md)."""
    judged_by: str = ""
    """Name of the column whose verdict this one shows; its own if empty."""
    judged_because: str = ""
    """Reason for that, as the end of a sentence."""
    decimals: Decimals = 2
    """Decimals on pages."""
    scale: Scale = 1.0
    """Factor from the unit of the quantity to that of the column."""
    in_brackets: bool = False
    """Show the value in brackets after the previous column."""
    in_groups: dict[str, ColumnQuantity] = {}
    """Group of rows to its quantity, if it differs from `quantity`."""

    def of_group(self, group: str) -> "Column":
        """The column with the quantity of a group of rows."""
        return self.model_copy(update={"quantity": self.in_groups[group]}) if group in self.in_groups else self


class Row(Config):
    """One row of a table."""

    label: str
    """Name of the row in the paper."""
    cell: CellName
    """Name of the cell."""
    group: str = ""
    """Heading above this row. It also applies to the next rows until another heading."""
    baseline: CellName | None = None
    """Baseline of this row's relative columns; the table's if empty."""
    at: Literal["start", "end"] = "end"
    """Initial or final policy of the cell."""
    reported: dict[str, str] = {}
    """Key columns of the paper's row that differ from those of the cell."""


class AnyTable(Numbered):
    """Fields of all tables. Numbers above 100 are for tables that the paper lacks."""

    word: ClassVar[str] = "Table"
    title: str
    """Title of the table."""
    mean_row: bool = False
    """Add a last row with each column's mean over the rows that are not baselines."""
    note: str = ""
    """Note for readers."""
    transcription: int | None = Field(default=None, ge=1, le=BEYOND)
    """Number of the reported table to compare with; the same number if empty."""

    @property
    def reported_number(self) -> int | None:
        """Number of the reported table to compare with; None if there is none."""
        # Tables that the paper lacks have none, unless they repeat one of it in another form.
        return self.transcription or (None if self.beyond_paper else self.number)


class TableOfCells(AnyTable):
    """Fields of tables whose rows are cells."""

    baseline: CellName
    """Baseline of relative columns."""
    columns: list[Column] = []
    """Columns in order. Some kinds add further columns after them."""
    rows: list[Row] = Field(min_length=1)
    """Rows in order."""

    @property
    def cells(self) -> list[str]:
        """Cells whose runs the table needs."""
        return [*(row.cell for row in self.rows), self.baseline]

    @model_validator(mode="after")
    def _consistent(self) -> "TableOfCells":
        check_distinct("column", [column.name for column in self.columns], "columns")
        # Twice it would give two columns of one name for each benchmark.
        each = [column.quantity for column in self.columns if column.quantity == EACH]
        check_distinct("column of all benchmarks", each, "columns")
        check_distinct("row", [(row.group, row.label) for row in self.rows], "rows")
        for i, column in enumerate(self.columns):
            self._check_column(column, ("columns", i))
        cells = [row.cell for row in self.rows]
        baselines = {("baseline",): self.baseline} | {
            ("rows", i, "baseline"): row.baseline for i, row in enumerate(self.rows) if row.baseline
        }
        for at, baseline in baselines.items():
            if baseline not in cells:
                raise invalid(f"the baseline ({baseline}) must be the cell of a row", similar(baseline, cells), at)
        return self

    def _check_column(self, column: Column, at: tuple[str | int, ...]) -> None:
        """Raise a ValueError for a column that does not fit the other columns or the groups of rows."""
        names = [each.name for each in self.columns]
        if column.judged_by and column.judged_by not in names:
            allowed = similar(column.judged_by, names)
            raise invalid(f"judged_by ({column.judged_by}) must be a column", allowed, (*at, "judged_by"))
        if bool(column.judged_by) != bool(column.judged_because):
            raise invalid(f"judged_by and judged_because ({column.name}) must be given together", at=at)
        # Verdicts are not passed on along a chain of columns.
        if any(each.judged_by for each in self.columns if each.name == column.judged_by):
            allowed = ", ".join(each.name for each in self.columns if not each.judged_by)
            message = f"judged_by ({column.judged_by}) must be a column with a verdict of its own"
            raise invalid(message, allowed, (*at, "judged_by"))
        if column.quantity == EACH and column.relative:
            raise invalid(
                f"{EACH} ({column.name}) is one absolute column per benchmark; use accuracy:all, their mean",
                at=(*at, "relative"),
            )
        if column.quantity == EACH and column.reported:
            message = f"{EACH} ({column.name}) is compared with the reported columns of the benchmarks' names"
            raise invalid(message, "none", (*at, "reported"))
        if column.quantity.startswith(SPEEDUP) and column.relative not in (None, "speedup"):
            raise invalid(f"a quantity {SPEEDUP}… ({column.name}) is a speedup itself", "none", (*at, "relative"))
        quantities = (column.quantity, *column.in_groups.values())
        if column.without_first_epoch and (
            column.relative != "ratio"
            or column.printed_relative
            or not column.reported
            or not all(quantity.startswith("reuse_epochs:") for quantity in quantities)
        ):
            # It changes the reported ratio alone: the measured quantity has to be without the first epoch too.
            raise invalid(
                f"without_first_epoch ({column.name}) needs relative: ratio, a quantity reuse_epochs:…, and reported "
                "columns that are not printed_relative",
                at=(*at, "without_first_epoch"),
            )
        if column.printed_relative and not column.reported:
            raise invalid(
                f"printed_relative ({column.name}) has no effect without reported columns",
                at=(*at, "printed_relative"),
            )
        if column.scale != 1 and (column.relative in ("ratio", "speedup") or column.quantity.startswith(SPEEDUP)):
            # "No effect" is 1 for these.
            raise invalid(f"scale ({column.name}) must be 1 for a ratio or speedup", "1", (*at, "scale"))
        _check_groups(column.in_groups, [row.group for row in self.rows], (*at, "in_groups"))

    @property
    def relations(self) -> dict[str, str]:
        """Relation to the baseline by name of column, also of columns that the kind of the table adds."""
        relations = {c.name: "speedup" if c.quantity.startswith(SPEEDUP) else c.relative for c in self.columns}
        return {name: relation for name, relation in relations.items() if relation}


class CellTable(TableOfCells):
    """A row is a cell's final policy and its complete run."""

    kind: Literal["cells"] = "cells"
    columns: list[Column] = Field(min_length=1)
    """Columns in order."""


class StepTable(TableOfCells):
    """A row `at: end` is expanded to one row per policy evaluated during training, with its run up to that step."""

    kind: Literal["steps"] = "steps"
    columns: list[Column] = Field(min_length=1)
    """Columns in order."""

    def _check_column(self, column: Column, at: tuple[str | int, ...]) -> None:
        super()._check_column(column, at)
        quantities = {(*at, "quantity"): column.quantity}
        quantities |= {(*at, "in_groups", group): quantity for group, quantity in column.in_groups.items()}
        for key, quantity in quantities.items():
            if quantity.startswith(AT_EQUAL):
                message = f"an accuracy at an equal budget ({column.name}) is of whole runs, not of those up to a step"
                raise invalid(message, at=key, value=quantity)


class StageTable(TableOfCells):
    """Mean wall time per step by stage, in seconds: after `columns` one column per stage and per kind of speedup."""

    kind: Literal["stages"] = "stages"
    stages: dict[str, str] = Field(min_length=1)
    """Stage of a step, as in step records, to the column's title without unit."""
    decimals: Decimals = 3
    """Decimals of the wall times."""
    speedups: dict[str, str] = {}
    """Kind of speedup (docs/metrics.md) to the column's title."""

    @property
    def relations(self) -> dict[str, str]:
        """Also a column for each kind of speedup."""
        return super().relations | {f"speedup_{kind}": "speedup" for kind in self.speedups}

    @model_validator(mode="after")
    def _known_stages(self) -> "StageTable":
        for field, names, known in (
            ("stages", self.stages, (*STEP_STAGES, "total")),
            ("speedups", self.speedups, KINDS_OF_SPEEDUP),
        ):
            for name in names:
                if name not in known:
                    raise invalid(f"{field} has no {name}", similar(name, known), (field, name), value=name)
        return self


class Target(Config):
    """A value that a quantity should reach."""

    name: str
    """Header in the CSV file."""
    title: str
    """Header on pages."""
    at_least: float
    """Value to reach; accuracies in percent."""
    in_groups: dict[str, float] = {}
    """Group of rows to its value, if it differs from `at_least`."""
    reported: list[str] = []
    """Column of the reported table with the hours or steps; `inf` means never. The paper's speedup is in the column of
    this name with `_speedup` at its end; without it, the ratio of the printed times."""
    decimals: Decimals | None = None
    """Decimals of hours or steps; the table's if empty."""

    def value(self, group: str) -> float:
        """The value to reach in a group of rows."""
        return self.in_groups.get(group, self.at_least)


class RunTarget(Target):
    """A target of a quantity of runs."""

    quantity: TargetQuantity
    """An accuracy of the evaluated policies, or a quantity of a step."""
    above_initial: bool = False
    """True if `at_least` counts percentage points above the accuracy of each run's initial policy. Initial accuracies
    of small models may differ between seeds by more than reinforcement learning gains."""

    @property
    def sign(self) -> str:
        """Sign before the value in a quantity's name: `+` if `above_initial`, else empty."""
        return "+" if self.above_initial else ""

    @model_validator(mode="after")
    def _reachable(self) -> "RunTarget":
        if self.above_initial and not self.quantity.startswith(ACCURACY):
            raise invalid(
                "`above_initial` needs an accuracy, since nothing else is measured for the initial policy",
                at=("above_initial",),
            )
        check_reachable(self.at_least, self.quantity, ("at_least",))
        for group, value in self.in_groups.items():
            check_reachable(value, self.quantity, ("in_groups", group))
        return self


class TargetTable(TableOfCells):
    """First hour or step at which each target is reached, † if never, and the speedup over the baseline in brackets."""

    kind: Literal["targets"] = "targets"
    clock: Clock = "hours"
    """Unit of the columns."""
    targets: list[RunTarget] = Field(min_length=1)
    """Targets, with one column each after `columns`."""
    at: dict[Name, list[RunTarget]] = {}
    """Preset to its targets, if its benchmarks or the accuracies that its runs can reach differ."""
    average: bool = True
    """Add a last column with the arithmetic mean of the row's speedups to the targets that it and its baseline reached.
    It is not tested if a run reached a target that is left out."""
    decimals: Decimals = 1
    """Decimals of hours and speedups."""

    @property
    def relations(self) -> dict[str, str]:
        """Also the speedups to each target, and their mean."""
        speedups = [f"{target.name}_speedup" for target in self.targets] + [AVERAGE] * self.average
        return super().relations | dict.fromkeys(speedups, "speedup")

    @model_validator(mode="after")
    def _distinct_targets(self) -> "TargetTable":
        groups = [row.group for row in self.rows]
        _check_targets(self.targets, groups, ("targets",))
        for preset, targets in self.at.items():
            _check_targets(targets, groups, ("at", preset))
        return self


class Budget(Config):
    """A cost of runs that is made equal for a comparison."""

    name: str
    """Start of the headers in the CSV file."""
    title: str
    """Name on pages, such as decoded tokens."""
    quantity: StepQuantity
    """Quantity of a step that is summed over steps."""
    whom: str
    """Readers to whom this budget matters, for the text of the verdict."""
    scale: Scale = 1.0
    """Factor from its unit to that of the table."""
    unit: str = ""
    """Unit in the table; empty for a count."""
    decimals: Decimals = 2
    """Decimals of the amount that a run spends."""


class BudgetTable(TableOfCells):
    """Accuracy at equal budgets, and the total amount that each cell spends.

    The equal budget of a seed is the smallest total of its runs of all rows; a seed that a row lacks has none. The
    accuracy between two evaluated policies is interpolated linearly.
    """

    kind: Literal["budgets"] = "budgets"
    budgets: list[Budget] = Field(min_length=1)
    """Budgets, with three columns each after `columns`: total amount, accuracy at the equal budget, and its difference
    from the baseline."""
    accuracy: Accuracy = "accuracy:all"
    """Accuracy to compare."""

    @model_validator(mode="after")
    def _distinct_budgets(self) -> "BudgetTable":
        check_distinct("budget", [budget.name for budget in self.budgets], "budgets")
        check_distinct("row", [row.label for row in self.rows], "rows")
        # The initial policy has spent nothing, so that the equal budget would be 0.
        if self.mean_row or any(row.at == "start" for row in self.rows):
            raise invalid(
                "a table of budgets has neither a mean_row nor rows with at: start",
                at=("mean_row" if self.mean_row else "rows",),
            )
        return self

    @property
    def relations(self) -> dict[str, str]:
        """Also the differences of accuracies at each budget."""
        return super().relations | {f"{budget.name}_difference": "difference" for budget in self.budgets}


def _check_targets(targets: Sequence[Target], groups: Iterable[str], at: tuple[str | int, ...]) -> None:
    """Raise a ValueError if a target occurs twice or has a value for an unknown group."""
    check_distinct("target", [target.name for target in targets], *at)
    for i, target in enumerate(targets):
        _check_groups(target.in_groups, groups, (*at, i, "in_groups"))


def _check_groups(in_groups: Iterable[str], groups: Iterable[str], at: tuple[str | int, ...]) -> None:
    """Raise a ValueError for an unknown group of rows."""
    # Rows without a heading are in no group.
    known = sorted(set(groups) - {""})
    for group in in_groups:
        if group not in known:
            allowed = similar(group, known) or "none, since no row has a group"
            raise invalid(f"in_groups ({group}) must be a group of rows", allowed, (*at, group), value=group)


class Curve(Config):
    """A row of published data: a training curve, as JSON Lines with one object per validation."""

    label: str
    """Name of the row in the paper; `baseline` refers to it."""
    file: InnerPath | None = None
    """File in the table's folder; empty if the authors did not publish the curve."""
    validations: int | None = Field(default=None, ge=1)
    """Number of validations in the published file; a row with a file needs it. A file with another number is an error,
    since a curve that was cut between two lines looks like a target that was never reached."""
    optional: bool = False
    """True if the row shows "no data" without its file, instead of an error."""
    group: str = ""
    """Heading above this row. It also applies to the next rows until another heading."""
    baseline: str | None = None
    """Label of the row that speedups refer to; if empty the row is a baseline."""
    reported: dict[str, str] = {}
    """Key columns and their values that select the paper's row."""

    @model_validator(mode="after")
    def _with_length(self) -> "Curve":
        if self.file and self.validations is None:
            raise invalid("a row with a file needs the number of its validations", at=("validations",))
        return self


class CurveTarget(Target):
    """A target of published curves."""

    fields: list[str] = Field(min_length=1)
    """Keys of the JSON objects; their mean is the value. A `*` in a key is any text, and exactly one key must match."""
    highest: float = Field(default=1.0, gt=0)
    """Largest value that a field can have: 1 for shares, 100 for percent. A larger one is an error."""

    @model_validator(mode="after")
    def _reachable(self) -> "CurveTarget":
        for value in (self.at_least, *self.in_groups.values()):
            # It would look like a target that was never reached.
            if value > self.highest:
                raise ValueError(f"the target {value:g} of {self.name} is above the highest value ({self.highest:g})")
        return self


class TableWithoutRuns(AnyTable):
    """Fields of tables that need no run."""

    decimals: Decimals = 1
    """Decimals of values. Verdicts use all printed decimals."""

    @field_validator("mean_row")
    @classmethod
    def _without_mean_row(cls, mean_row: bool) -> bool:
        if mean_row:
            raise invalid("only a table of runs has a mean_row", "false")
        return mean_row

    @property
    def cells(self) -> list[str]:
        """None: no run is needed."""
        return []


class PublishedTable(TableWithoutRuns):
    """A table of targets from raw curves that the authors published. It checks the paper's evaluation of its own runs.

    The files are third-party data and never part of the repository; without their folder each entry says so. A folder
    in which a file is missing or truncated is an error before anything starts.
    """

    kind: Literal["published"] = "published"
    folder: InnerPath
    """Folder of the curves in the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    time: str
    """Key of the time or step of a validation."""
    scale: Scale = 1.0
    """Factor from its unit to that of the table."""
    unit: str = "h"
    """Unit of times in the table."""
    targets: list[CurveTarget] = Field(min_length=1)
    """Targets, with one column each."""
    average: bool = True
    """Add a last column with the arithmetic mean of the row's speedups."""
    rows: list[Curve] = Field(min_length=1)
    """Rows in order."""

    @model_validator(mode="after")
    def _consistent(self) -> "PublishedTable":
        _check_targets(self.targets, [row.group for row in self.rows], ("targets",))
        check_distinct("row", [(row.group, row.label) for row in self.rows], "rows")
        labels = [row.label for row in self.rows]
        for i, row in enumerate(self.rows):
            if row.baseline and row.baseline not in labels:
                raise invalid(
                    f"the baseline ({row.baseline}) must be the label of a row",
                    similar(row.baseline, labels),
                    ("rows", i, "baseline"),
                )
        return self


class DecodedModel(Config):
    """A model of a decomposition; its rows form a group."""

    label: str
    """Name of the model in the paper."""
    configuration: dict[str, Any]
    """Keys of its `config.json` with the sizes of its parts."""
    reported: dict[str, str] = {}
    """Key columns and their values that select the paper's rows."""


class DecodingPass(Config):
    """A decoding pass of a decomposition, with one row per model."""

    label: str
    """Name of the pass in the paper."""
    length: int = Field(ge=1)
    """Number of positions before the decoded token."""
    batch: int = Field(ge=1)
    """Number of decoding sequences."""
    reported: str
    """Name of the pass after the @ in reported columns (`ffn@2k-8`)."""


class DecompositionTable(TableWithoutRuns):
    """Percentage of each part in the time of a decoding pass, computed from the rooflines of the parts, not
    measured."""

    kind: Literal["decomposition"] = "decomposition"
    bandwidth: float = Field(gt=0)
    """Memory bandwidth in the device's data sheet, bytes/s."""
    flops: float = Field(gt=0)
    """Throughput in the device's data sheet, operations/s."""
    models: list[DecodedModel] = Field(min_length=1)
    """Groups of rows in order."""
    passes: list[DecodingPass] = Field(min_length=1)
    """Rows of each group in order."""

    @model_validator(mode="after")
    def _consistent(self) -> "DecompositionTable":
        check_distinct("model", [model.label for model in self.models], "models")
        check_distinct("pass", [each.label for each in self.passes], "passes")
        return self


RunTable = CellTable | StepTable | StageTable | TargetTable | BudgetTable
Table = Annotated[RunTable | PublishedTable | DecompositionTable, Field(discriminator="kind")]


FORMS = {"percent fewer": ("ratio",), "times": ("ratio", "speedup"), "points": ("difference",)}
"""Form of a headline to the relations of columns that it can show."""


class Explanation(Config):
    """Further experiments that explain an unexpected value."""

    paper: PaperName
    """Their folder under experiments/, with a page of its own in the report."""
    words: Annotated[str, StringConstraints(strip_whitespace=True, min_length=5)]
    """What they show, as the beginning of a sentence that ends with the link."""


class Headline(Config):
    """Value of a table on the report's first screen."""

    table: int
    """Number of the table."""
    cell: CellName
    """Cell of the row. Its last row that has a baseline is used: along steps, that of the last policy."""
    column: str
    """Name of a relative column."""
    form: Literal["percent fewer", "times", "points"]
    """`percent fewer` shows 0.31 as 69 % fewer; `times` is a ratio or speedup, `points` a difference."""
    words: str = Field(min_length=5)
    """Sentence with `{}` for the number with its interval. `fewer` and `less` become `more` where the number has the
    other direction; the paper's number is added at the end."""
    short: str = Field(min_length=3, max_length=44)
    """Label of the point in the plot."""
    measure: str = ""
    """Measure and what is compared, for the notice that it was not run; `short` if empty."""
    see: Explanation | None = None
    """Experiments to which the first screen points if the value contradicts the paper and the preset includes them."""

    @field_validator("words")
    @classmethod
    def _one_number(cls, words: str) -> str:
        if words.count("{}") != 1 or set("{}") & set(words.replace("{}", "")):
            raise ValueError("must have exactly one {}, which is replaced by the number, and no other brace")
        return words


class TableFile(Config):
    """`experiments/<paper>/tables.yaml`."""

    tables: Annotated[list[Table], distinct("table", "number")] = []
    """All regenerated tables."""
    headlines: list[Headline] = []
    """Values of this paper on the report's first screen."""

    @model_validator(mode="after")
    def _headlines_exist(self) -> "TableFile":
        tables = {table.number: table for table in self.tables}
        for i, headline in enumerate(self.headlines):
            table, at = tables.get(headline.table), ("headlines", i)
            if not isinstance(table, TableOfCells):
                with_runs = [str(number) for number, each in tables.items() if isinstance(each, TableOfCells)]
                raise invalid(f"there is no table {headline.table} of cells", ", ".join(with_runs), (*at, "table"))
            # The initial policy of the baseline's cell is compared too: with its final one.
            rows = [row for row in table.rows if row.at == "start" or row.cell != (row.baseline or table.baseline)]
            compared = [row.cell for row in rows]
            for field, kind, known in (
                ("cell", "row that compares", compared),
                ("column", "relative column", list(table.relations)),
            ):
                if (name := getattr(headline, field)) not in known:
                    raise invalid(f"table {headline.table} has no {kind} {name}", similar(name, known), (*at, field))
            if (relation := table.relations[headline.column]) not in FORMS[headline.form]:
                allowed = ", ".join(form for form, relations in FORMS.items() if relation in relations)
                message = f"{headline.column} is a {relation}, which {headline.form} cannot show"
                raise invalid(message, allowed, (*at, "form"))
        return self
