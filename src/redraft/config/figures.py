"""Figures of a paper, by what the horizontal axis is; and the case studies, which are figures of single rollouts."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from redraft.config.base import BEYOND, CellName, Config, InnerPath, Numbered, Quantity, distinct, refuse_twice

Axis = Literal["step", "epoch", "hours", "tokens", "updates", "cell", "bins", "surface", "roofline"]
"""Lines over steps or epochs, or over hours of training, millions of decoded tokens or update batches; a bar a cell;
bars over bins of prompts; colours over two axes, of cells or of a roofline."""

LINES = ("step", "epoch", "hours", "tokens", "updates")

ALLOWED: dict[str, tuple[str, ...]] = {
    "reported": (*LINES, "bins"),
    "mark_first_reuse": ("step", "epoch"),
    "smoothing": LINES,
    "reported_in": ("cell",),
    "by": ("bins",),
    "bins": ("bins",),
    "epochs": ("bins",),
    "axes": ("surface",),
    "published": ("surface",),
    "curves": ("step", "hours"),
    "roofline": ("roofline",),
    "gamma": ("roofline",),
}
"""Field of a panel to the axes that it is for."""
WORDS = {
    LINES: "lines",
    (*LINES, "bins"): "lines and bins",
    ("step", "epoch"): "lines over steps or epochs",
    ("step", "hours"): "lines over steps or hours",
    ("cell",): "bars of cells",
}


class ReportedColumn(Config):
    """Place of a figure's bars in the paper's tables."""

    table: int = Field(ge=1, lt=BEYOND)
    """Number of the reported table."""
    column: str
    """Its column."""


class PublishedPoints(Config):
    """Points of a surface from a CSV file that the authors published; never part of the repository."""

    file: InnerPath
    """Under the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    where: dict[str, str] = {}
    """Columns and their values that select the file's lines."""
    x: str
    """Column of the horizontal axis."""
    y: str
    """Column of the vertical axis."""


class PublishedCurves(Config):
    """Lines of training curves that the authors published, one JSON object a validation and line."""

    folder: InnerPath
    """Folder of the curves, under the folder of published data (REDRAFT_PUBLISHED, else `published`)."""
    files: dict[str, InnerPath] = Field(min_length=1)
    """Names of the lines in the legend to their files."""
    time: str
    """Key of the time or step of a validation."""
    scale: float = 1.0
    """Factor from its unit to the horizontal axis's."""
    fields: list[str] = Field(min_length=1)
    """Keys of the JSON objects whose mean is drawn; a `*` in a key stands for any text, and one key must match."""


class PublishedSweep(Config):
    """A sweep of passes that the authors published, to which a roofline is fitted; never part of the repository."""

    file: InnerPath
    """Under the folder of published data (REDRAFT_PUBLISHED, else `published`); in `redraft calibrate`'s format."""
    table: int = Field(ge=1)
    """Number of the table of kind `decomposition` that says what its model is, and the bandwidth of its device."""
    model: str
    """Label of the model there."""
    flops: float = Field(gt=0)
    """Throughput of the device as products of matrices measure it, operations/s."""


class Panel(Config):
    """One diagram of a figure."""

    quantity: Quantity
    """A quantity of a step, or of a run where the horizontal axis is the cell or the diagram a surface; over bins a
    quantity of a prompt or `share`; a column of the published points; of a roofline a name alone."""
    title: str
    """Title, with the unit; no two panels of a figure have the same."""
    x: Axis | None = None
    """Horizontal axis of this diagram, if not the figure's."""
    cells: list[CellName] = []
    """One line a cell, or one bar, or one point of a surface."""
    labels: list[str] = []
    """Names of the cells in the legend, in their order; the cells' own if empty. The same label has one colour."""
    log: bool = False
    """Logarithmic vertical axis."""
    mark_first_reuse: bool = False
    """Mark at the first step of each line's second epoch, where reuse begins."""
    smoothing: float | None = Field(default=None, gt=0, lt=1)
    """Weight of the past in an exponential moving average that is drawn over a line; none if empty."""
    reported: dict[Literal["first", "last"], float] = {}
    """The paper's values at the first and last point, or in the first and last bin; at the paper's scale only."""
    reported_in: ReportedColumn | None = None
    """The reported table that holds the values of the bars; shown at the paper's scale only."""
    by: Quantity = ""
    """Quantity of a prompt whose value chooses the bin."""
    bins: list[float] = []
    """Edges of the bins, rising; the last one belongs to the last bin."""
    epochs: Literal["initial", "first", "last", "all"] = "all"
    """Epochs whose prompts are counted; `initial` are the prompts that the preset's `probe` samples from each cell's
    initial policy, of which there are pass rates alone."""
    axes: list[str] = []
    """Horizontal and vertical axis: keys of a cell, such as `reuse.lenience`, whose values are numbers."""
    published: PublishedPoints | None = None
    """Points of a surface, instead of cells."""
    curves: PublishedCurves | None = None
    """Published training curves, instead of cells; `quantity` then only names them."""
    roofline: PublishedSweep | None = None
    """Sweep whose measured speedups are drawn beside those that its roofline predicts, instead of cells."""
    gamma: int | None = Field(default=None, ge=1)
    """Tokens of a draft in them, each accepted."""

    @property
    def names(self) -> list[str]:
        """The legend's names of the lines or bars."""
        return list(self.curves.files) if self.curves else [self.label(cell) for cell in self.cells]

    @property
    def from_files(self) -> bool:
        """True if nothing of it comes from runs."""
        return bool(self.published or self.curves or self.roofline)

    def label(self, cell: str) -> str:
        """The legend's name of a cell."""
        return self.labels[self.cells.index(cell)] if self.labels else cell

    @model_validator(mode="after")
    def _named(self) -> "Panel":
        refuse_twice("cell", self.cells)
        refuse_twice("label", self.labels)
        if self.labels and len(self.labels) != len(self.cells):
            raise ValueError(f"there are {len(self.labels)} labels for {len(self.cells)} cells")
        if sum(map(bool, (self.cells, self.published, self.curves, self.roofline))) != 1:
            raise ValueError("a panel has either cells or published points or published curves or a roofline")
        if any(later <= earlier for earlier, later in zip(self.bins, self.bins[1:], strict=False)):
            raise ValueError(f"the edges of bins ({', '.join(f'{edge:g}' for edge in self.bins)}) must rise")
        return self


class Figure(Numbered):
    """A figure of the paper, regenerated; one with a number above 100 is not in the paper."""

    word: ClassVar[str] = "Figure"
    title: str
    """Title of the figure."""
    x: Axis
    """The horizontal axis: `cell` and `bins` draw bars, `surface` and `roofline` colours over two axes, the others
    lines. A panel may have another."""
    panels: list[Panel]
    """Diagrams from left to right, row by row."""
    columns: int = Field(default=4, ge=1)
    """Diagrams in a row."""
    baselines: list[CellName] = []
    """Cells that are drawn in grey: bars, and lines of a sweep."""
    note: str = ""
    """Note for readers."""

    def axis(self, panel: Panel) -> Axis:
        """The horizontal axis of a panel."""
        return panel.x or self.x

    @model_validator(mode="after")
    def _consistent(self) -> "Figure":
        refuse_twice("panel", [panel.title for panel in self.panels])
        for panel in self.panels:
            x = self.axis(panel)
            for field, axes in ALLOWED.items():
                default = Panel.model_fields[field].get_default(call_default_factory=True)
                if x not in axes and getattr(panel, field) != default:
                    raise ValueError(f"{field} is for {WORDS.get(axes, axes[0])}, not for x: {x}")
            if x == "bins" and (not panel.by or len(panel.bins) < 2):
                raise ValueError("a panel over bins needs `by` and at least two edges (bins)")
            if panel.epochs == "initial" and (panel.quantity, panel.by) != ("share", "pass_rate"):
                raise ValueError("of an initial policy there is the share of prompts by pass_rate alone")
            if x == "surface" and not panel.published and len(panel.axes) != 2:
                raise ValueError("a surface of cells needs two axes")
            if x == "roofline" and not (panel.roofline and panel.gamma):
                raise ValueError("a panel of a roofline needs `roofline` and `gamma`")
        return self


class Cases(Config):
    """Case studies of one run: four kinds, in the order of the paper's figures."""

    cell: CellName
    """Cell whose first seed they are taken from."""
    numbers: list[int] = Field(min_length=4, max_length=4)
    """The paper's figure numbers of the kinds that `redraft.evaluate.cases` tells apart."""


class FigureFile(Config):
    """`experiments/<paper>/figures.yaml`."""

    figures: Annotated[list[Figure], distinct("figure", "number")] = []
    """All regenerated figures."""
    cases: Cases | None = None
    """Case studies, where the paper has figures of them."""

    @model_validator(mode="after")
    def _cases_are_other_figures(self) -> "FigureFile":
        if self.cases:
            refuse_twice("figure", [*(figure.number for figure in self.figures), *self.cases.numbers])
        return self
