"""Configuration of figures, by kind of horizontal axis, and of case studies, the figures of single rollouts."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from redraft.config.base import (
    BEYOND,
    CellName,
    Config,
    InnerPath,
    Numbered,
    Quantity,
    check_distinct,
    distinct,
    invalid,
)
from redraft.config.quantities import RATES, RunQuantity, check_panel
from redraft.config.tables import Scale

Axis = Literal["step", "epoch", "hours", "tokens", "updates", "score", "cell", "bins", "trend", "surface", "roofline"]
"""Lines over steps, epochs, hours of training, millions of decoded tokens or update batches, or over accuracies
(performance profiles); one bar per cell; bars over bins of prompts; a point per cell with a fitted line; colours over
two axes, of cells or of a roofline."""

LINES = ("step", "epoch", "hours", "tokens", "updates", "score")

ALLOWED: dict[str, tuple[str, ...]] = {
    "reported": (*LINES, "bins"),
    "mark_first_reuse": ("step", "epoch"),
    "smoothing": LINES,
    "log": (*LINES, "bins"),
    "reported_in": ("cell",),
    "by": ("bins",),
    "bins": ("bins",),
    "epochs": ("bins",),
    "trend": ("trend",),
    "compared_with": ("trend",),
    "axes": ("surface",),
    "published": ("surface",),
    "curves": ("step", "hours"),
    "roofline": ("roofline",),
    "gamma": ("roofline",),
}
"""Field of a panel to the axes that it is valid for."""
AXIS_WORDS = {
    LINES: "lines",
    (*LINES, "bins"): "lines and bins",
    ("step", "epoch"): "lines over steps or epochs",
    ("step", "hours"): "lines over steps or hours",
    ("cell",): "bars of cells",
}
"""Words for sets of axes in messages."""


class ReportedColumn(Config):
    """Column of the paper's tables with the values of a figure's bars."""

    table: int = Field(ge=1, lt=BEYOND)
    """Number of the reported table."""
    column: str
    """Column of that table."""


class PublishedPoints(Config):
    """Points of a surface, from a CSV file that the authors published. It is never part of the repository."""

    file: InnerPath
    """File in the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    where: dict[str, str] = {}
    """Columns and values that select lines of the file."""
    x: str
    """Column of the horizontal axis."""
    y: str
    """Column of the vertical axis."""
    rows: int = Field(ge=1)
    """Number of lines after the header, also of those that `where` leaves out. A file with another number is an error,
    since a file that was cut between two lines looks complete."""


class PublishedCurves(Config):
    """Training curves that the authors published, as JSON Lines with one object per validation."""

    folder: InnerPath
    """Folder of the curves, under the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    files: dict[str, InnerPath] = Field(min_length=1)
    """Name of a line in the legend to its file."""
    validations: dict[str, int]
    """Name of a line in the legend to the number of validations in its file. A file with another number is an error."""
    time: str
    """Key of the time or step of a validation."""
    scale: Scale = 1.0
    """Factor from its unit to that of the horizontal axis."""
    fields: list[str] = Field(min_length=1)
    """Keys of the JSON objects whose mean is drawn. A `*` in a key is any text, and exactly one key must match."""
    highest: float = Field(default=1.0, gt=0)
    """Largest value that a field can have: 1 for shares, 100 for percent. A larger one is an error."""

    @model_validator(mode="after")
    def _of_each_file(self) -> "PublishedCurves":
        if self.validations.keys() != self.files.keys():
            raise invalid(
                "each of `files` needs the number of its validations", ", ".join(self.files), ("validations",)
            )
        return self


class PublishedSweep(Config):
    """A sweep of forward passes that the authors published. A roofline is fitted to it. It is never part of the
    repository."""

    file: InnerPath
    """File in the folder of published data (REDRAFT_PUBLISHED, else `published`), in the format of `redraft
    calibrate`."""
    rows: int = Field(ge=1)
    """Number of lines after the header. A file with another number is an error."""
    table: int = Field(ge=1)
    """Number of the table of kind `decomposition` that has its model and the bandwidth of its device."""
    model: str
    """Label of the model in that table."""
    flops: float = Field(gt=0)
    """Throughput of the device, measured by matrix products, operations/s."""


class Trend(Config):
    """Straight line over the logarithm of the quantity in which a panel's cells differ."""

    title: str
    """Title of the horizontal axis."""
    keys: list[str] = []
    """Keys of a run whose values are numbers, as `redraft show` prints them. A cell's coordinate is the product of
    these values."""
    quantity: RunQuantity = ""
    """Quantity of a run, instead of keys. A cell's coordinate is the mean ratio of its value to that of its counterpart
    in `compared_with`."""
    at: float | None = Field(default=None, ge=1e-30, le=1e30)
    """Coordinate that the line is extended to."""
    at_label: str = ""
    """Words for `at` in the note above the diagram, such as "the paper's 0.28"; required with `at`."""

    @model_validator(mode="after")
    def _one_coordinate(self) -> "Trend":
        check_distinct("key", self.keys, "keys")
        if bool(self.keys) == bool(self.quantity):
            raise invalid("either keys or quantity must be given, and not both", at=("keys",))
        if (self.at is None) != (not self.at_label):
            raise invalid("`at` and `at_label` must be given together", at=("at_label",))
        return self


class Panel(Config):
    """One diagram of a figure."""

    quantity: Quantity
    """Quantity on the vertical axis: of a step for lines; for `score` an accuracy: the share of its benchmarks above
    each score is drawn; of a run for bars, trends and surfaces of cells; of a prompt or `share` for bins; a column for
    published points; for published curves and rooflines only a name."""
    title: str
    """Title with the unit, unique in the figure."""
    x: Axis | None = None
    """Horizontal axis of this diagram; the figure's if empty."""
    cells: list[CellName] = []
    """Cells, each with one line, bar or point of a surface."""
    labels: list[str] = []
    """Names of the cells in the legend, in the order of `cells`; the cells' names if empty. Equal labels have one
    colour."""
    log: bool = False
    """Logarithmic vertical axis."""
    mark_first_reuse: bool = False
    """Mark the first step of each line's second epoch, where reuse begins."""
    smoothing: float | None = Field(default=None, gt=0, lt=1)
    """Weight of the past in an exponential moving average drawn over each line; none if empty."""
    reported: dict[Literal["first", "last"], float] = {}
    """The paper's values at the first and last point or bin; shown at the paper's scale only."""
    reported_in: ReportedColumn | None = None
    """Reported table with the values of the bars; shown at the paper's scale only."""
    by: Quantity = ""
    """Quantity of a prompt that selects its bin."""
    bins: list[float] = []
    """Rising edges of the bins. The last bin includes its upper edge."""
    epochs: Literal["initial", "first", "last", "all"] = "all"
    """Epochs whose prompts are counted. `initial` are the prompts that the preset's `probe` samples with each cell's
    initial policy; they only have pass rates."""
    compared_with: list[CellName] = []
    """Cells that `cells` are compared with, in the same order. A point is the difference between the two."""
    trend: Trend | None = None
    """Horizontal axis and fitted line of a trend."""
    axes: list[str] = []
    """Horizontal and vertical axis: keys of a cell, such as `reuse.lenience`, whose values are numbers."""
    published: PublishedPoints | None = None
    """Points of a surface, instead of cells."""
    curves: PublishedCurves | None = None
    """Published training curves, instead of cells."""
    roofline: PublishedSweep | None = None
    """Published sweep, instead of cells: measured speedups next to the predictions of a fitted roofline."""
    gamma: int | None = Field(default=None, ge=1)
    """Draft length of these speedups in tokens, all of them accepted."""

    @property
    def names(self) -> list[str]:
        """Names of the lines or bars in the legend."""
        return list(self.curves.files) if self.curves else [self.label(cell) for cell in self.cells]

    @property
    def from_files(self) -> bool:
        """True if no run is needed."""
        return bool(self.published or self.curves or self.roofline)

    def label(self, cell: str) -> str:
        """Name of a cell in the legend."""
        return self.labels[self.cells.index(cell)] if self.labels else cell

    @model_validator(mode="after")
    def _named(self) -> "Panel":
        check_distinct("cell", self.cells, "cells")
        check_distinct("label", self.labels, "labels")
        if self.labels and len(self.labels) != len(self.cells):
            raise invalid(f"there are {len(self.labels)} labels for {len(self.cells)} cells", at=("labels",))
        # Each is a source of points, and a panel has one.
        if sum(map(bool, (self.cells, self.published, self.curves, self.roofline))) != 1:
            raise invalid("a panel needs exactly one of cells, published, curves and roofline")
        if any(later <= earlier for earlier, later in zip(self.bins, self.bins[1:], strict=False)):
            edges = ", ".join(f"{edge:g}" for edge in self.bins)
            raise invalid(f"the edges of bins ({edges}) must rise", at=("bins",))
        return self


class Figure(Numbered):
    """A regenerated figure of the paper. Numbers above 100 are for figures that the paper lacks."""

    word: ClassVar[str] = "Figure"
    title: str
    """Title of the figure."""
    x: Axis
    """Horizontal axis: `cell` and `bins` draw bars, `trend` points with a fitted line, `surface` and `roofline` colours
    over two axes, the others lines. A panel may have another one."""
    panels: list[Panel]
    """Diagrams from left to right, row by row."""
    columns: int = Field(default=4, ge=1)
    """Diagrams in a row."""
    baselines: list[CellName] = []
    """Cells whose bars and lines are grey."""
    note: str = ""
    """Note for readers."""

    def axis(self, panel: Panel) -> Axis:
        """Horizontal axis of a panel."""
        return panel.x or self.x

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> "Figure":
        check_distinct("panel", [panel.title for panel in self.panels], "panels")
        for i, panel in enumerate(self.panels):
            self._check_panel(panel, ("panels", i), info.context)
        return self

    def _check_panel(self, panel: Panel, at: tuple[str | int, ...], context: Any) -> None:
        """Raise a ValueError for a panel that does not fit its axis."""
        x = self.axis(panel)
        for field, axes in ALLOWED.items():
            default = Panel.model_fields[field].get_default(call_default_factory=True)
            # A field that the axis ignores would look like a setting.
            if x not in axes and getattr(panel, field) != default:
                raise invalid(f"{field} is for {AXIS_WORDS.get(axes, axes[0])}, not for x: {x}", at=(*at, field))
        if x == "bins" and (not panel.by or len(panel.bins) < 2):
            raise invalid("a panel over bins needs `by` and at least two edges (bins)", at=at)
        # `bins` is not empty here: the checks above reject `by` without it.
        if panel.by in RATES and (panel.bins[0] < 0 or panel.bins[-1] > 1):
            raise invalid(f"no prompt has a {panel.by} below 0 or above 1", "edges from 0 to 1", (*at, "bins"))
        if panel.epochs == "initial" and (panel.quantity, panel.by) != ("share", "pass_rate"):
            raise invalid("epochs: initial needs quantity: share and by: pass_rate", at=(*at, "epochs"))
        if x == "trend":
            if not panel.trend or len(panel.cells) < 3:
                raise invalid("a panel of a trend needs `trend` and at least three cells", at=at)
            if same := [cell for cell, other in zip(panel.cells, panel.compared_with, strict=False) if cell == other]:
                raise invalid(f"{same[0]} is compared with itself", at=(*at, "compared_with"))
            if len(panel.compared_with) != len(panel.cells):
                count = len(panel.compared_with)
                raise invalid(
                    f"`compared_with` has {count} cells, but `cells` has {len(panel.cells)}", at=(*at, "compared_with")
                )
        if x == "surface" and not panel.published and len(panel.axes) != 2:
            raise invalid("a surface of cells needs two axes", at=(*at, "axes"))
        if x == "roofline" and not (panel.roofline and panel.gamma):
            raise invalid("a panel of a roofline needs `roofline` and `gamma`", at=at)
        if panel.cells:
            check_panel(panel.quantity, panel.by, x, context, at)


class Cases(Config):
    """Case studies of one run, of four kinds in the order of the paper's figures."""

    cell: CellName
    """Cell; its first seed is used."""
    numbers: list[int] = Field(min_length=4, max_length=4)
    """The paper's figure number of each kind (`redraft.evaluate.cases`)."""


class FigureFile(Config):
    """`experiments/<paper>/figures.yaml`."""

    figures: Annotated[list[Figure], distinct("figure", "number")] = []
    """All regenerated figures."""
    cases: Cases | None = None
    """Case studies, if the paper has figures of them."""

    @model_validator(mode="after")
    def _cases_are_other_figures(self) -> "FigureFile":
        if self.cases:
            # Case studies are figures too.
            check_distinct("figure", [*(figure.number for figure in self.figures), *self.cases.numbers])
        return self
