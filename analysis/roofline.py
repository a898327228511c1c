"""The speedup that a calibrated roofline predicts, with the measured one at the points of its sweep."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Drawing

from analysis.panels import plt
from redraft.files import atomic
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import speedup
from redraft.selfspec.sweep import Sweep

COLUMNS = 2
BORDER = 1.3
"""Factor by which an axis goes beyond the outermost points, so that none is cut."""
LEGEND = "colours: predicted; circles: measured; black line: no gain; red circles: measured on the other side of it"


def draw_roofline(calibration: Calibration, sweep: Sweep, file: Path) -> None:
    """Draw predicted and measured speedup over batch and length, a panel for each length of drafts, as SVG.

    Every draft counts as accepted whole, as in EfficientRollout's Figure 12.
    """
    drawing = plot_roofline(calibration, sweep)
    with atomic(file) as temporary:
        drawing.savefig(temporary, format="svg", metadata={"Date": None}, dpi=120)
    plt.close(drawing)


def plot_roofline(calibration: Calibration, sweep: Sweep) -> Drawing:
    """The drawing; all panels have one scale of colours, even around a speedup of 1."""
    gammas = sweep.gammas
    columns = min(len(gammas), COLUMNS)
    rows = -(-len(gammas) // columns)
    drawing, axes = plt.subplots(
        rows, columns, figsize=(3.9 * columns + 0.9, 3.0 * rows + 0.5), squeeze=False, layout="constrained"
    )
    measured = {gamma: measured_speedup(sweep, gamma) for gamma in gammas}
    surfaces = {gamma: _surface(calibration, sweep, gamma) for gamma in gammas}
    values = np.concatenate([*measured.values(), *(surface.ravel() for *_, surface in surfaces.values())])
    most = float(np.exp(np.abs(np.log(values)).max()))
    scale = LogNorm(1 / most, most)
    for axis, gamma in zip(axes.flat, gammas, strict=False):
        batches, lengths, predicted = surfaces[gamma]
        axis.pcolormesh(batches, lengths, predicted, shading="gouraud", rasterized=True, cmap="PuOr", norm=scale)
        if predicted.min() < 1 < predicted.max():
            axis.contour(batches, lengths, predicted, levels=[1.0], colors="black", linewidths=1.2)
        points = _points(axis, calibration, sweep, gamma, measured[gamma], scale)
    for axis in axes.flat[len(gammas) :]:
        axis.axis("off")
    bar = drawing.colorbar(points, ax=axes, label="speedup", shrink=0.8)
    ticks = [tick for tick in (0.25, 0.33, 0.5, 0.7, 1, 1.4, 2, 3, 4) if 1 / most <= tick <= most]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    bar.minorticks_off()
    drawing.supxlabel(LEGEND, fontsize="small")
    return drawing


def measured_speedup(sweep: Sweep, gamma: int) -> np.ndarray:
    """Speedup at each point that was measured, (n,), every draft accepted whole (equation 4)."""
    target, draft, verify = sweep.blocks(gamma)
    return (gamma + 1) * target.seconds / (gamma * draft.seconds + verify.seconds)


def _surface(calibration: Calibration, sweep: Sweep, gamma: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches (n,), lengths (m,) and the predicted speedup (m, n) around the points of a sweep."""
    target, _, _ = sweep.blocks(gamma)
    batches, lengths = (
        np.geomspace(values.min() / BORDER, values.max() * BORDER, 80) for values in (target.batch, target.length)
    )
    return batches, lengths, speedup(calibration, batches[None], lengths[:, None], gamma, gamma + 1)


def _points(
    axis: Axes, calibration: Calibration, sweep: Sweep, gamma: int, measured: np.ndarray, scale: LogNorm
) -> object:
    """Draw what was measured, with how often the prediction is on its side of 1."""
    target, _, _ = sweep.blocks(gamma)
    other_side = (speedup(calibration, target.batch, target.length, gamma, gamma + 1) >= 1) != (measured >= 1)
    points = axis.scatter(target.batch, target.length, c=measured, cmap="PuOr", norm=scale, s=45,
                          edgecolors=np.where(other_side, "#c1121f", "#a0a0a0"),
                          linewidths=np.where(other_side, 2.0, 0.8).tolist())  # fmt: skip
    agreeing = f"{int(np.sum(~other_side))} of {len(measured)}"
    axis.set(xscale="log", yscale="log", xlabel="batch", ylabel="length (tokens)")
    axis.set_title(f"γ = {gamma}: {agreeing} on the predicted side", fontsize="medium")
    axis.set_xticks(*_ticks(target.batch))
    axis.set_yticks(*_ticks(target.length))
    axis.minorticks_off()
    return points


def _ticks(values: np.ndarray) -> tuple[list[float], list[str]]:
    """Measured values that lie far enough apart on a logarithmic axis, and their labels."""
    chosen: list[float] = []
    for value in np.unique(values).tolist():
        if not chosen or value >= 1.8 * chosen[-1]:
            chosen.append(value)
    return chosen, [f"{value:g}" for value in chosen]
