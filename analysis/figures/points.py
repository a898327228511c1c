"""Points of a regenerated figure as rows, for its CSV file and its drawing."""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import Measured, MeasuredPoint
from redraft.analysis.data.quantities import SPENT, of_accuracy
from redraft.analysis.data.reported_tables import read_reported
from redraft.analysis.data.statistics import Blocks, estimate
from redraft.analysis.figures.roofline_points import published_fit, speedups
from redraft.analysis.figures.trend_points import TOGETHER, TrendLines, together, trend_rows
from redraft.config import Cell, Experiments, Figure, Panel, id_of
from redraft.config.cell import coordinate
from redraft.config.figures import PublishedCurves
from redraft.published import curve_file, read_curve, read_points

COLUMNS = [
    *("panel", "quantity", "cell", "label", "x", "reproduced", "low", "high", "n_seeds", "reported", "deviation"),
    *("first_reuse", "seeds", "manifests"),
]
"""`x` is a step or epoch from 1, the steps done by an evaluated policy (0 for the initial one), hours, tokens or
updates spent, an accuracy in percent, the position of a bar, the lower edge of a bin, or a trend's coordinate. Lines of
a trend are over `n_seeds` blocks. Bins also have `upper`, the upper edge; surfaces and rooflines have `y`."""
FURTHER = {"upper": ("bins",), "y": ("surface", "roofline")}
"""Further column to the kinds of axes whose points have it."""
AUTHORS_SWEEP = "the authors' sweep"
"""Label of a roofline's points, which this project did not measure and the paper does not print."""

ByCell = Mapping[str, Mapping[str, float]]
"""Title of a panel to cell to a number: the paper's value of a bar, or a trend's coordinate."""
Rooflines = Mapping[str, pd.DataFrame]
"""Title of a panel to its points (`redraft.analysis.figures.roofline_points.speedups`)."""


def figure_data(
    figure: Figure,
    measured: Measured,
    paper_scale: bool,
    reported: ByCell | None = None,
    cells: Mapping[str, Cell] | None = None,
    unsampled: Set[str] = frozenset(),
    probe: str = "",
    rooflines: Rooflines | None = None,
    coordinates: ByCell | None = None,
) -> pd.DataFrame:
    """All points of a figure, one row each; cells without runs have no points.

    Papers print few numbers of a figure, so `reported` is mostly NaN. It is NaN everywhere at other scales.

    Args:
        paper_scale: whether reported values apply.
        reported: the paper's values of bars, from `reported_bars`.
        cells: definitions of the panels' cells, for the axes of a surface.
        unsampled: benchmarks that the preset does not sample.
        probe: protocol by which the preset samples initial policies on training prompts; empty if it does not.
        rooflines: points of panels with a published sweep, from `published_rooflines`.
        coordinates: of cells in the figure's trends, from `redraft.config.trends.coordinates`.
    """
    points = _trends(figure, measured, unsampled, coordinates or {})
    for panel in figure.panels:
        x = figure.axis(panel)
        if panel.published:
            points += _published(panel)
        if panel.curves:
            points += _curves(panel, panel.curves)
        if panel.title in (rooflines or {}):
            points += _of_roofline(panel, (rooflines or {})[panel.title])
        for position, cell in enumerate(panel.cells):
            # No point, also no empty one: `absent` then says that the preset does not sample the benchmark.
            if x == "trend" or not unsampled.isdisjoint(of_accuracy(panel.quantity)):
                continue
            found = points_of(x, panel, cell, measured, probe)
            if x == "cell":
                printed = (reported or {}).get(panel.title, {}).get(cell, math.nan)
                points += _single(panel, cell, position, found, measured.runs, printed)
            elif x == "bins":
                points += _bins(panel, cell, found, measured.runs)
            elif x == "surface":
                for point in _single(panel, cell, math.nan, found, measured.runs):
                    at = [coordinate((cells or {})[cell], axis) for axis in panel.axes]
                    points.append(point | dict(zip("xy", at, strict=True)))
            else:
                points += _line(x, panel, cell, found, measured.runs)
    axes = {figure.axis(panel) for panel in figure.panels}
    further = [name for name, having in FURTHER.items() if not axes.isdisjoint(having)]
    data = pd.DataFrame(points, columns=COLUMNS + further)
    # At other scales absolute values of other models and data would be next to the paper's.
    if not paper_scale:
        data["reported"] = math.nan
    data["deviation"] = data["reproduced"] - data["reported"]
    return data


def points_of(x: str, panel: Panel, cell: str, measured: Measured, probe: str) -> list[MeasuredPoint]:
    """Measurements of a cell for a panel with the axis `x`, which is not a trend."""
    if x in ("cell", "surface"):
        return [MeasuredPoint(math.nan, measured.values(panel.quantity, cell), {})]
    return measured.bins(panel, cell, probe) if x == "bins" else measured.series(panel.quantity, cell, x)


def reported_bars(figure: Figure, experiments: Experiments, paper: str) -> ByCell:
    """The paper's values of a figure's bars, from its tables."""
    found: dict[str, dict[str, float]] = {}
    spec = experiments.reported(paper)
    for panel in figure.panels:
        if panel.reported_in and spec:
            table = read_reported(experiments.folder_of(paper), panel.reported_in.table, spec)
            rows = {cell: table.row(experiments.cell(id_of(paper, cell))) for cell in panel.cells}
            column = panel.reported_in.column
            found[panel.title] = {cell: row[column] for cell, row in rows.items() if column in row}
    return found


def published_rooflines(figure: Figure, experiments: Experiments, paper: str) -> Rooflines:
    """Predicted and measured speedups of the published sweeps that are available, by panel title."""
    found: dict[str, pd.DataFrame] = {}
    for panel in figure.panels:
        if panel.roofline and panel.gamma and (fitted := published_fit(experiments, paper, panel.roofline)):
            sweep, fit = fitted
            found[panel.title] = speedups(fit.calibration, sweep, panel.gamma)
    return found


def _line(x: str, panel: Panel, cell: str, found: Sequence[MeasuredPoint], runs: Runs) -> list[dict[str, Any]]:
    """The points of a cell in a line panel; records count steps and epochs from 0, points from 1.

    A step in which the quantity is null has no point. If it is null in all steps, each step has a point without a
    value, to distinguish the cell from one that was not run.
    """
    if not found:
        by = "epoch" if x == "epoch" else "step"
        positions = sorted(runs.steps.loc[runs.steps["cell"] == cell, by].unique())
        return [_point(panel, cell, int(position) + 1, {}, runs) for position in positions]
    reported = _at_ends(panel, list(range(len(found))))
    second = runs.steps[(runs.steps["cell"] == cell) & (runs.steps["epoch"] == 1)]
    marked = int(second[x].min()) + 1 if panel.mark_first_reuse and len(second) else None
    points = []
    for i, (position, values, _) in enumerate(found):
        # Steps and epochs count from 0 in records and from 1 in figures; what was spent and a score are no counts.
        at = position if x in (*SPENT, "score") else int(position) + 1
        point = _point(panel, cell, at, values, runs, reported.get(i, math.nan))
        points.append(point | {"first_reuse": marked is not None and at == marked})
    return points


def _at_ends(panel: Panel, positions: Sequence[float]) -> dict[float, float]:
    """The panel's reported values, which belong to the first and the last position."""
    # The paper prints values of the ends only, and nothing is interpolated.
    return {positions[0 if end == "first" else -1]: value for end, value in panel.reported.items()}


def _single(
    panel: Panel, cell: str, x: float, found: Sequence[MeasuredPoint], runs: Runs, reported: float = math.nan
) -> list[dict[str, Any]]:
    """The single point of a cell in a list, which is empty if the cell was not run."""
    points = [_point(panel, cell, x, values, runs, reported) for _, values, _ in found]
    return [point for point in points if point["n_seeds"]]


def _bins(panel: Panel, cell: str, found: Sequence[MeasuredPoint], runs: Runs) -> list[dict[str, Any]]:
    """One point per bin: the share of prompts in the bin, or the mean of a quantity over them."""
    reported, upper = _at_ends(panel, panel.bins[:-1]), dict(pairwise(panel.bins))
    return [
        _point(panel, cell, low, values, runs, reported.get(low, math.nan)) | {"upper": upper[low]}
        for low, values, _ in found
    ]


def _published(panel: Panel) -> list[dict[str, Any]]:
    """The points of a published file; none if the file is not available."""
    points = read_points(panel.published, panel.quantity) if panel.published else []
    return [_of_file(panel, "published", x, value) | {"y": y} for x, y, value in points]


def _curves(panel: Panel, source: PublishedCurves) -> list[dict[str, Any]]:
    """Validation points of the published curves that are available."""
    files = {label: curve_file(source.folder, name) for label, name in source.files.items()}
    return [
        _of_file(panel, label, time * source.scale, value)
        for label, file in files.items()
        if file
        for time, value in read_curve(
            file, source.time, source.fields, validations=source.validations[label], highest=source.highest
        )
    ]


def _trends(figure: Figure, measured: Measured, unsampled: Set[str], coordinates: ByCell) -> list[dict[str, Any]]:
    """Points and lines of a figure's trends; the last extended panel also has all extensions together."""
    points: list[dict[str, Any]] = []
    lines: list[tuple[Panel, TrendLines]] = []
    for panel in figure.panels:
        if panel.trend and unsampled.isdisjoint(of_accuracy(panel.quantity)):
            rows, fitted = trend_rows(panel, measured, coordinates.get(panel.title, {}))
            if panel.trend.at and fitted.by_block:
                lines.append((panel, fitted))
            points += [_of_trend(panel, *row, measured.runs) for row in rows]
    if extended := together(lines):
        points.append(_of_trend(lines[-1][0], TOGETHER, "", math.nan, extended, measured.runs))
    return points


def _of_trend(
    panel: Panel, quantity: str, cell: str, x: float, values: Mapping[int, float], runs: Runs
) -> dict[str, Any]:
    """A cell's point of a trend by seed, or a value of its lines by block, distinguished by `quantity`."""
    if cell:
        return _point(panel, cell, x, values, runs)
    found = estimate(values, Blocks((), runs.looks))
    interval = {"low": found.interval.low, "high": found.interval.high}
    return _of_file(panel, quantity, x, found.mean) | {"quantity": quantity, **interval, "n_seeds": len(found.seeds)}


def _of_roofline(panel: Panel, points: pd.DataFrame) -> list[dict[str, Any]]:
    """Predicted, measured and boundary points of a panel, distinguished by `quantity`."""
    return [
        _of_file(panel, AUTHORS_SWEEP, x, speedup) | {"quantity": kind, "y": y}
        for kind, x, y, speedup in points[["quantity", "x", "y", "reproduced"]].itertuples(index=False)
    ]


def _of_file(panel: Panel, label: str, x: float, value: float) -> dict[str, Any]:
    """A point of no cell, such as one from a published file, without seeds, interval and manifests."""
    empty = {"n_seeds": 0, "reported": math.nan, "first_reuse": False, "seeds": "", "manifests": ""}
    return {
        "panel": panel.title,
        "quantity": panel.quantity,
        "cell": "",
        "label": label,
        "x": x,
        "reproduced": value,
        "low": math.nan,
        "high": math.nan,
        **empty,
    }


def _point(
    panel: Panel, cell: str, x: float, values: Mapping[int, float], runs: Runs, reported: float = math.nan
) -> dict[str, Any]:
    found = estimate(values, runs.blocks)
    return {
        "panel": panel.title,
        "quantity": panel.quantity,
        "cell": cell,
        "label": panel.label(cell),
        "x": x,
        "reproduced": found.mean,
        "low": found.interval.low,
        "high": found.interval.high,
        "n_seeds": len(found.seeds),
        "reported": reported,
        "first_reuse": False,
        "seeds": " ".join(map(str, found.seeds)),
        "manifests": " ".join(runs.manifests(cell, found.seeds)),
    }
