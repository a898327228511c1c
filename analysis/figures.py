"""A regenerated figure: its data as CSV, and a drawing of the same data."""

import math
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "redraft"
from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure as Drawing  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from analysis.collect import Runs  # noqa: E402
from analysis.quantities import by_seed, over_time  # noqa: E402
from analysis.reported import read_reported, reported_row  # noqa: E402
from analysis.statistics import Estimate, estimate  # noqa: E402
from redraft.config import Experiments, Figure, Panel  # noqa: E402
from redraft.files import atomic  # noqa: E402

COLUMNS = [
    *("panel", "quantity", "cell", "label", "x", "reproduced", "low", "high", "n_seeds", "reported", "deviation"),
    *("first_reuse", "seeds", "manifests"),
]
DISTINCT = ("#444444", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Colours for a few lines, told apart by colour-blind people too (Okabe and Ito); more lines get a scale."""
NOT_RUN = "not run"
PANEL_WIDTH, PANEL_HEIGHT = 3.7, 2.6
"""Inches."""

Bars = Mapping[str, Mapping[str, float]]
"""Title of a panel to cell to the paper's value."""


def figure_data(figure: Figure, runs: Runs, paper_scale: bool, reported: Bars | None = None) -> pd.DataFrame:
    """All points of a figure, a line each; a panel's cells without runs have no points.

    Papers print few numbers of a figure, so `reported` is mostly NaN; off the paper's scale it is so everywhere.

    Args:
        figure: what to show; `x` is a step or an epoch from 0, or the position of a bar.
        runs: finished runs.
        paper_scale: whether reported values apply.
        reported: those of the bars, from `reported_bars`.
    """
    points: list[dict] = []
    for panel in figure.panels:
        for position, cell in enumerate(panel.cells):
            if figure.x == "cell":
                points += _bar(panel, position, cell, runs, (reported or {}).get(panel.title, {}))
            else:
                points += _line(figure.x, panel, cell, runs)
    data = pd.DataFrame(points, columns=COLUMNS)
    if not paper_scale:
        data["reported"] = math.nan
    data["deviation"] = data["reproduced"] - data["reported"]
    return data


def reported_bars(figure: Figure, experiments: Experiments, paper: str) -> Bars:
    """The paper's values of a figure's bars, from its tables."""
    found: dict[str, dict[str, float]] = {}
    for panel in figure.panels:
        if panel.reported_in:
            table = read_reported(experiments.folder / paper, panel.reported_in.table)
            rows = {cell: reported_row(table, experiments.cell(f"{paper}/{cell}")) for cell in panel.cells}
            column = panel.reported_in.column
            found[panel.title] = {cell: row[column] for cell, row in rows.items() if column in row}
    return found


def _line(x: str, panel: Panel, cell: str, runs: Runs) -> list[dict]:
    """The points of one cell in one panel.

    Steps at which a quantity is null have none, unless all are: that a cell was run and measures nothing is no gap.
    """
    table = over_time(runs, panel.quantity, cell, x)
    if table.empty:
        positions = sorted(runs.steps.loc[runs.steps["cell"] == cell, x].unique())
        return [_point(panel, cell, int(position), estimate({}), math.nan, runs) for position in positions]
    ends = {"first": 0, "last": len(table) - 1}
    reported = {ends[end]: value for end, value in panel.reported.items()}
    marked = _first_reuse(runs, cell, x) if panel.mark_first_reuse else None
    points = []
    for i, (position, values) in enumerate(table.iterrows()):
        found = estimate({int(seed): float(value) for seed, value in values.items()})
        point = _point(panel, cell, int(position), found, reported.get(i, math.nan), runs)
        points.append(point | {"first_reuse": int(position) == marked})
    return points


def _first_reuse(runs: Runs, cell: str, x: str) -> int | None:
    """The first step (or the epoch) of a cell's second epoch, None if it has no second one."""
    steps = runs.steps[(runs.steps["cell"] == cell) & (runs.steps["epoch"] == 1)]
    return None if steps.empty else int(steps[x].min())


def _bar(panel: Panel, position: int, cell: str, runs: Runs, reported: Mapping[str, float]) -> list[dict]:
    """The bar of one cell in one panel, none if it was not run."""
    found = estimate(by_seed(runs, panel.quantity, cell))
    return [_point(panel, cell, position, found, reported.get(cell, math.nan), runs)] if found.seeds else []


def _point(panel: Panel, cell: str, x: int, found: Estimate, reported: float, runs: Runs) -> dict:
    return {
        "panel": panel.title, "quantity": panel.quantity, "cell": cell, "label": panel.label(cell), "x": x,
        "reproduced": found.mean, "low": found.shown.low, "high": found.shown.high, "n_seeds": len(found.seeds),
        "reported": reported, "first_reuse": False, "seeds": " ".join(map(str, found.seeds)),
        "manifests": " ".join(runs.manifests(cell, found.seeds)),
    }  # fmt: skip


def draw(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Draw the points as `<stem>.png` and `<stem>.svg`."""
    drawing = plot(figure, data)
    for suffix in (".png", ".svg"):
        with atomic(stem.with_suffix(suffix)) as temporary:
            drawing.savefig(
                temporary, format=suffix[1:], dpi=120, metadata={"Date": None} if suffix == ".svg" else None
            )
    plt.close(drawing)


def plot(figure: Figure, data: pd.DataFrame) -> Drawing:
    """The drawing of a figure's points, one axis a panel."""
    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    wide = PANEL_WIDTH if columns > 1 else 1.9 * PANEL_WIDTH
    height = PANEL_HEIGHT * (1 if rows > 1 else 1.3)
    fig, axes = plt.subplots(
        rows, columns, figsize=(wide * columns, height * rows + 0.4), squeeze=False, layout="constrained"
    )
    colours = _colours(figure)
    for axis, panel in zip(axes.flat, figure.panels, strict=False):
        part = data[data["panel"] == panel.title]
        (_draw_bars if figure.x == "cell" else _draw_lines)(axis, panel, part, colours)
        axis.set_title(panel.title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.6, axis="y" if figure.x == "cell" else "both")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(figure.panels) :]:
        axis.set_visible(False)
    for axis in axes[-1] if figure.x != "cell" else ():
        axis.set_xlabel(figure.x, fontsize=8)
    if handles := _legend(figure, data, colours):
        fig.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 4 + 2 * columns), fontsize=8,
            frameon=False,
        )  # fmt: skip
    return fig


def _colours(figure: Figure) -> dict[str, object]:
    """A colour for each label; as many lines as a sweep has get a scale, from dark to light, beside grey vanilla."""
    labels = list(dict.fromkeys(panel.label(cell) for panel in figure.panels for cell in panel.cells))
    if len(labels) <= len(DISTINCT) or figure.x == "cell":
        return {label: DISTINCT[i % len(DISTINCT)] for i, label in enumerate(labels)}
    scale, swept = plt.get_cmap("plasma"), [label for label in labels if label != "vanilla"]
    vanilla = {"vanilla": DISTINCT[0]} if len(swept) < len(labels) else {}
    return vanilla | {label: scale(0.9 * i / (len(swept) - 1)) for i, label in enumerate(swept)}


def _draw_lines(axis: Axes, panel: Panel, data: pd.DataFrame, colours: Mapping) -> None:
    """Means as thin lines, intervals as bands; where a quantity is null, the line has a gap."""
    for cell in panel.cells:
        line = data[data["cell"] == cell].set_index("x").sort_index()
        if line.empty:
            continue
        line, colour = line.reindex(range(line.index[0], line.index[-1] + 1)), colours[panel.label(cell)]
        at = line.index + 1
        axis.plot(at, line["reproduced"], color=colour, linewidth=1, marker=".", markersize=2.5)
        axis.fill_between(at, line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(at, line["reported"], color="grey", marker="x", linestyle="none")
        marked = line[line["first_reuse"] == True]  # noqa: E712 - gaps are neither true nor false
        axis.plot(marked.index + 1, marked["reproduced"], color=colour, marker="D", markersize=6, linestyle="none")
    absent = [panel.label(cell) for cell in panel.cells if cell not in set(data["cell"])]
    if len(absent) == len(panel.cells):
        axis.text(0.5, 0.5, NOT_RUN, transform=axis.transAxes, ha="center", va="center", fontsize=9, color="grey")
        axis.set(xticks=[], yticks=[])
    elif absent:
        axis.text(0.98, 0.97, f"{NOT_RUN}: {', '.join(absent)}", transform=axis.transAxes, ha="right", va="top",
                  fontsize=7, color="grey", bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0})  # fmt: skip
    if panel.log and (data["reproduced"] > 0).any():
        axis.set_yscale("log", nonpositive="mask")
    if not data.empty:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_bars(axis: Axes, panel: Panel, data: pd.DataFrame, colours: Mapping) -> None:
    """Means with intervals; the paper's value, where it applies, is a cross beside the bar's middle."""
    del colours  # a bar stands above its name; its colour says whether it reuses rollouts
    bars = data.set_index("cell")
    for position, cell in enumerate(panel.cells):
        if cell not in bars.index:
            axis.text(position, 0.02, NOT_RUN, transform=axis.get_xaxis_transform(), rotation=90, ha="center",
                      va="bottom", fontsize=8, color="grey")  # fmt: skip
            continue
        bar = bars.loc[cell]
        mean, error = bar["reproduced"], None
        if not math.isnan(bar["low"]):
            error = [[mean - bar["low"]], [bar["high"] - mean]]
        colour = "#9aa5b1" if "vanilla" in cell else DISTINCT[1]
        axis.bar(position, mean, width=0.65, color=colour, yerr=error, error_kw={"linewidth": 1, "capsize": 3})
        axis.plot(position + 0.22, bar["reported"], color="#d55e00", marker="x", linestyle="none")
    axis.set_xticks(range(len(panel.cells)), [panel.label(cell).replace(" + ", "\n+ ") for cell in panel.cells])
    axis.set_xlim(-0.6, len(panel.cells) - 0.4)


def _legend(figure: Figure, data: pd.DataFrame, colours: Mapping) -> list[Line2D]:
    """One entry a label; dotted if no panel has a run of it."""
    handles = []
    if figure.x != "cell":
        run = set(data["label"])
        for label, colour in colours.items():
            style, text = ("-", label) if label in run else (":", f"{label} ({NOT_RUN})")
            handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=1.6, label=text))
    if data["first_reuse"].any():
        handles.append(Line2D([], [], color="grey", marker="D", linestyle="none", label="first reuse"))
    if data["reported"].notna().any():
        handles.append(Line2D([], [], color="grey", marker="x", linestyle="none", label="paper"))
    return handles
