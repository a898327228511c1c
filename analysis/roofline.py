"""The speedup that a calibrated roofline predicts, with the measured one at the points of its sweep."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawing

from analysis.panels import plt
from redraft.files import atomic
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import speedup
from redraft.selfspec.sweep import Sweep

COLUMNS = 3


def draw_roofline(calibration: Calibration, sweep: Sweep, file: Path) -> None:
    """Draw predicted and measured speedup over batch and length, a panel for each length of drafts, as SVG.

    Every draft counts as accepted whole, as in EfficientRollout's Figure 12.
    """
    drawing = plot_roofline(calibration, sweep)
    with atomic(file) as temporary:
        drawing.savefig(temporary, format="svg", metadata={"Date": None})
    plt.close(drawing)


def plot_roofline(calibration: Calibration, sweep: Sweep) -> Drawing:
    """The drawing: colours are predicted, circles measured; where both are on one side of 1 the edge is thin."""
    gammas = sweep.gammas
    rows = -(-len(gammas) // COLUMNS)
    drawing, axes = plt.subplots(
        rows, min(len(gammas), COLUMNS), figsize=(3.7 * min(len(gammas), COLUMNS), 3.0 * rows), squeeze=False
    )
    for axis, gamma in zip(axes.flat, gammas, strict=False):
        target, draft, verify = sweep.blocks(gamma)
        measured = (gamma + 1) * target.seconds / (gamma * draft.seconds + verify.seconds)
        batches = np.geomspace(target.batch.min(), target.batch.max(), 60)
        lengths = np.geomspace(target.length.min(), target.length.max(), 60)
        predicted = speedup(calibration, batches[None], lengths[:, None], gamma, gamma + 1)
        most = float(np.abs(np.log2(np.concatenate([predicted.ravel(), measured]))).max())
        shared = {"cmap": "PuOr", "vmin": -most, "vmax": most}
        axis.pcolormesh(batches, lengths, np.log2(predicted), shading="nearest", rasterized=True, **shared)
        axis.contour(batches, lengths, predicted, levels=[1.0], colors="black", linewidths=1)
        at = speedup(calibration, target.batch, target.length, gamma, gamma + 1)
        wrong = (at >= 1) != (measured >= 1)
        points = axis.scatter(target.batch, target.length, c=np.log2(measured), s=40, edgecolors="black",
                              linewidths=np.where(wrong, 2.0, 0.5), **shared)  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="batch", ylabel="length (tokens)", title=f"γ = {gamma}")
        drawing.colorbar(points, ax=axis, label="speedup (log2)")
    for axis in axes.flat[len(gammas) :]:
        axis.axis("off")
    drawing.tight_layout()
    return drawing
