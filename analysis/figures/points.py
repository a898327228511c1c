"""Points of a regenerated figure, a line each, for its CSV file and its drawing."""

import math
from collections.abc import Mapping, Set
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import SPENT, by_seed, of_accuracy, over_time
from redraft.analysis.data.reported import read_reported
from redraft.analysis.data.rollouts import in_bin, of_initial, of_prompts, quantities_of_bins
from redraft.analysis.data.statistics import Estimate, estimate
from redraft.analysis.figures.roofline_points import published_fit, speedups
from redraft.config import Cell, Experiments, Figure, Panel, id_of
from redraft.config.figures import PublishedCurves
from redraft.errors import UserError
from redraft.layout import published_data
from redraft.published import curve_file, read_curve

COLUMNS = [
    *("panel", "quantity", "cell", "label", "x", "reproduced", "low", "high", "n_seeds", "reported", "deviation"),
    *("first_reuse", "seeds", "manifests"),
]
"""`x` is a step or an epoch from 1, of an accuracy the steps done by the policy (0 by the initial one), what was spent,
the position of a bar, or the lower edge of a bin. Over bins there is also `upper`, its upper edge; of a surface and a
roofline `y`."""
FURTHER = {"upper": ("bins",), "y": ("surface", "roofline")}
"""Column to the axes whose points have it."""
AUTHORS_SWEEP = "the authors' sweep"
"""Label of points of a roofline: neither a measurement of this project nor a number that the paper prints."""

Bars = Mapping[str, Mapping[str, float]]
"""Title of a panel to cell to the paper's value."""
Rooflines = Mapping[str, pd.DataFrame]
"""Title of a panel to its points (`redraft.analysis.figures.roofline_points.speedups`)."""


def figure_data(
    figure: Figure,
    runs: Runs,
    paper_scale: bool,
    reported: Bars | None = None,
    cells: Mapping[str, Cell] | None = None,
    unsampled: Set[str] = frozenset(),
    probe: str = "",
    rooflines: Rooflines | None = None,
) -> pd.DataFrame:
    """All points of a figure, a line each; a panel's cells without runs have no points.

    Papers print few numbers of a figure, so `reported` is mostly NaN; off the paper's scale it is so everywhere.

    Args:
        figure: what to show.
        runs: finished runs.
        paper_scale: whether reported values apply.
        reported: those of the bars, from `reported_bars`.
        cells: definitions of the panels' cells, for the axes of a surface.
        unsampled: benchmarks that the preset leaves out, of which no policy has an accuracy.
        probe: protocol by which the preset samples initial policies on training prompts; empty if it does not.
        rooflines: those of the panels whose published sweep is there, from `published_rooflines`.
    """
    points: list[dict[str, Any]] = []
    for panel in figure.panels:
        x = figure.axis(panel)
        if panel.published:
            points += _published(panel)
        if panel.curves:
            points += _curves(panel, panel.curves)
        if panel.title in (rooflines or {}):
            points += _of_roofline(panel, (rooflines or {})[panel.title])
        for position, cell in enumerate(panel.cells):
            if not unsampled.isdisjoint(of_accuracy(panel.quantity)):
                continue
            if x == "cell":
                points += _bar(panel, position, cell, runs, (reported or {}).get(panel.title, {}))
            elif x == "bins":
                points += _bins(panel, cell, runs, probe)
            elif x == "surface":
                points += _on_surface(panel, cell, runs, (cells or {})[cell])
            else:
                points += _line(x, panel, cell, runs)
    axes = {figure.axis(panel) for panel in figure.panels}
    further = [name for name, having in FURTHER.items() if not axes.isdisjoint(having)]
    data = pd.DataFrame(points, columns=COLUMNS + further)
    if not paper_scale:
        data["reported"] = math.nan
    data["deviation"] = data["reproduced"] - data["reported"]
    return data


def reported_bars(figure: Figure, experiments: Experiments, paper: str) -> Bars:
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
    """The speedups that rooflines of published sweeps predict, and those measured, of the sweeps that are there."""
    found: dict[str, pd.DataFrame] = {}
    for panel in figure.panels:
        if panel.roofline and panel.gamma and (fitted := published_fit(experiments, paper, panel.roofline)):
            sweep, fit = fitted
            found[panel.title] = speedups(fit.calibration, sweep, panel.gamma)
    return found


def _line(x: str, panel: Panel, cell: str, runs: Runs) -> list[dict[str, Any]]:
    """The points of one cell in one panel; records count steps and epochs from 0, points from 1.

    Steps at which a quantity is null have none, unless all are: that a cell was run and measures nothing is no gap.
    """
    table = over_time(runs, panel.quantity, cell, x)
    if table.empty:
        by = "epoch" if x == "epoch" else "step"
        positions = sorted(runs.steps.loc[runs.steps["cell"] == cell, by].unique())
        return [_point(panel, cell, int(position) + 1, estimate({}), math.nan, runs) for position in positions]
    ends = {"first": 0, "last": len(table) - 1}
    reported = {ends[end]: value for end, value in panel.reported.items()}
    marked = _first_reuse(runs, cell, x) if panel.mark_first_reuse else None
    points = []
    for i, (position, values) in enumerate(table.iterrows()):
        found = estimate({int(seed): float(value) for seed, value in values.items()}, runs.blocks)
        at = float(position) if x in SPENT else int(position) + 1  # type: ignore[arg-type]
        point = _point(panel, cell, at, found, reported.get(i, math.nan), runs)
        points.append(point | {"first_reuse": marked is not None and at == marked})
    return points


def _first_reuse(runs: Runs, cell: str, x: str) -> int | None:
    """The first step (or the epoch) of a cell's second epoch, from 1; None if it has no second one."""
    steps = runs.steps[(runs.steps["cell"] == cell) & (runs.steps["epoch"] == 1)]
    return None if steps.empty else int(steps[x].min()) + 1


def _bar(panel: Panel, position: int, cell: str, runs: Runs, reported: Mapping[str, float]) -> list[dict[str, Any]]:
    """The bar of one cell in one panel, none if it was not run."""
    found = estimate(by_seed(runs, panel.quantity, cell), runs.blocks)
    return [_point(panel, cell, position, found, reported.get(cell, math.nan), runs)] if found.seeds else []


def _bins(panel: Panel, cell: str, runs: Runs, probe: str) -> list[dict[str, Any]]:
    """A point a bin: the share of prompts in it, or the mean of a quantity over its prompts."""
    chosen = runs.runs[runs.runs["cell"] == cell]
    by_bin: list[dict[int, float]] = [{} for _ in panel.bins[1:]]
    for run in chosen.itertuples():
        prompts = _prompts(panel, run, probe)
        if prompts is None:
            continue
        for i, edges in enumerate(pairwise(panel.bins)):
            last = edges[1] == panel.bins[-1]
            by_bin[i][int(run.seed)] = in_bin(prompts, panel.quantity, panel.by, edges, closed=last)
    if not by_bin[0]:
        return []
    ends = {"first": panel.bins[0], "last": panel.bins[-2]}
    reported = {ends[end]: value for end, value in panel.reported.items()}
    return [
        _point(panel, cell, low, estimate(values, runs.blocks), reported.get(low, math.nan), runs) | {"upper": high}
        for (low, high), values in zip(pairwise(panel.bins), by_bin, strict=True)
    ]


def _prompts(panel: Panel, run: Any, probe: str) -> pd.DataFrame | None:
    """The prompts of a run that a panel counts; None if it wants its initial policy's, and that was not probed."""
    if panel.epochs == "initial":
        return of_initial(Path(run.initial).parent, probe)
    prompts = of_prompts(Path(run.manifest).parent, quantities_of_bins(panel.by, panel.quantity))
    if panel.epochs != "all":
        epoch = prompts["epoch"].min() if panel.epochs == "first" else prompts["epoch"].max()
        prompts = prompts[prompts["epoch"] == epoch]
    return prompts


def _on_surface(panel: Panel, cell: str, runs: Runs, definition: Cell) -> list[dict[str, Any]]:
    """The point of one cell, none if it was not run."""
    found = estimate(by_seed(runs, panel.quantity, cell), runs.blocks)
    if not found.seeds:
        return []
    x, y = (coordinate(definition, axis) for axis in panel.axes)
    return [_point(panel, cell, x, found, math.nan, runs) | {"y": y}]


def coordinate(cell: Cell, axis: str) -> float:
    """The number that a cell has at a dotted key.

    Raises:
        UserError: if it has none there, or something else.
    """
    value: Any = cell
    for part in axis.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{cell.id} has no number there", key="axes", value=axis) from None


def _published(panel: Panel) -> list[dict[str, Any]]:
    """The points of a published file, none if it is not there."""
    source = panel.published
    if source is None or not (file := published_data() / source.file).exists():
        return []
    frame = pd.read_csv(file, dtype=str)
    columns = [source.x, source.y, panel.quantity]
    for column in (*columns, *source.where):
        if column not in frame:
            raise UserError(
                "this file has no such column", file=file, key="column", value=column, allowed=frame.columns
            )
    for column, value in source.where.items():
        frame = frame[frame[column] == value]
    values = frame[columns].astype(float).itertuples(index=False)
    return [_of_file(panel, "published", x, value) | {"y": y} for x, y, value in values]


def _curves(panel: Panel, source: PublishedCurves) -> list[dict[str, Any]]:
    """The validations of published curves, none of those that are not there."""
    files = {label: curve_file(source.folder, name) for label, name in source.files.items()}
    return [
        _of_file(panel, label, time * source.scale, value)
        for label, file in files.items()
        if file
        for time, value in read_curve(file, source.time, source.fields)
    ]


def _of_roofline(panel: Panel, points: pd.DataFrame) -> list[dict[str, Any]]:
    """Predicted, measured and boundary points of a panel; `quantity` says which."""
    return [
        _of_file(panel, AUTHORS_SWEEP, x, speedup) | {"quantity": kind, "y": y}
        for kind, x, y, speedup in points[["quantity", "x", "y", "reproduced"]].itertuples(index=False)
    ]


def _of_file(panel: Panel, label: str, x: float, value: float) -> dict[str, Any]:
    """A point of no run: without seeds, interval and manifests."""
    empty = {"n_seeds": 0, "reported": math.nan, "first_reuse": False, "seeds": "", "manifests": ""}
    return {"panel": panel.title, "quantity": panel.quantity, "cell": "", "label": label, "x": x,
            "reproduced": value, "low": math.nan, "high": math.nan, **empty}  # fmt: skip


def _point(panel: Panel, cell: str, x: float, found: Estimate, reported: float, runs: Runs) -> dict[str, Any]:
    return {
        "panel": panel.title, "quantity": panel.quantity, "cell": cell, "label": panel.label(cell), "x": x,
        "reproduced": found.mean, "low": found.interval.low, "high": found.interval.high, "n_seeds": len(found.seeds),
        "reported": reported, "first_reuse": False, "seeds": " ".join(map(str, found.seeds)),
        "manifests": " ".join(runs.manifests(cell, found.seeds)),
    }  # fmt: skip
