"""Speedup of self-speculation over batch and length as points: predicted by a roofline and measured by its sweep.

All drafts are assumed to be accepted whole, as in EfficientRollout's Figures 4 (a) and 12 (arXiv 2606.18967, Appendix
D.3).
"""

from functools import cache

import numpy as np
import pandas as pd

from redraft.config import Experiments, PublishedSweep
from redraft.errors import UserError
from redraft.lab.selfspec.fit import Fit, fit, ranges_of_device
from redraft.lab.selfspec.sweep import Sweep, read_sweep
from redraft.published import sweep_file
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import Costs, model_constants
from redraft.selfspec.roofline import boundary, speedup

PREDICTED, MEASURED, BOUNDARY = "predicted speedup", "measured speedup", "toggle boundary"
"""Kinds of points. On the boundary the predicted speedup is the smallest at which the toggle switches on."""
BORDER = 1.3
"""Factor by which the predicted grid exceeds the outermost measured points, so that no marker is cut."""
FINENESS = 16
"""Grid points of the prediction per axis, in addition to the measured ones."""
LARGEST = 4096
"""Largest batch at which the boundary is searched."""


def published_fit(experiments: Experiments, paper: str, source: PublishedSweep) -> tuple[Sweep, Fit] | None:
    """A published sweep and the roofline fitted to it; None if the sweep is not available.

    Raises:
        UserError: if the sweep is damaged, belongs to another model, or cannot be fitted.
    """
    file = sweep_file(source)
    if file is None:
        return None
    table, model = experiments.measured_model(paper, source)
    sweep = read_sweep(file, source.rows)
    if sweep.model != model.label:
        raise UserError(
            "this sweep is of another model", file=file, key="model", value=sweep.model, allowed=model.label
        )
    return sweep, _fitted(sweep, model_constants(model.configuration).costs, source.flops, table.bandwidth)


@cache
def _fitted(sweep: Sweep, costs: Costs, flops: float, bandwidth: float) -> Fit:
    """The fit with the released ranges, cached because several panels show it."""
    return fit(sweep, costs, flops, ranges_of_device(bandwidth))


def speedups(calibration: Calibration, sweep: Sweep, gamma: int) -> pd.DataFrame:
    """Points of all kinds as rows: `quantity`, `x` (batch), `y` (length in tokens), `reproduced` (the speedup)."""
    target, draft, verify = sweep.blocks(gamma)
    measured = (gamma + 1) * target.seconds / (gamma * draft.seconds + verify.seconds)
    batches, lengths = (
        # The measured points are on the grid, since prediction and measurement are compared at equal coordinates.
        np.union1d(np.geomspace(measured_at.min() / BORDER, measured_at.max() * BORDER, FINENESS), measured_at)
        for measured_at in (target.batch, target.length)
    )
    x, y = (grid.ravel() for grid in np.meshgrid(batches, lengths))
    largest = boundary(calibration, lengths, gamma, gamma + 1, largest=LARGEST)
    # 0 is a length at which no batch pays, LARGEST one at which all searched batches do: neither is on the boundary.
    inside = (largest > 0) & (largest < LARGEST)
    at = largest[inside].astype(float), lengths[inside]
    of_kinds = {
        PREDICTED: (x, y, speedup(calibration, x, y, gamma, gamma + 1)),
        MEASURED: (target.batch, target.length, measured),
        BOUNDARY: (*at, speedup(calibration, *at, gamma, gamma + 1)),
    }
    columns = ("x", "y", "reproduced")
    frames = [pd.DataFrame(dict(zip(columns, of, strict=True)) | {"quantity": kind}) for kind, of in of_kinds.items()]
    return pd.concat(frames, ignore_index=True)


def on_predicted_side(points: pd.DataFrame) -> pd.DataFrame:
    """The measured points with `agrees`: true if the prediction is on the same side of 1."""
    measured, predicted = (points[points["quantity"] == kind] for kind in (MEASURED, PREDICTED))
    # Equal floats, since the grid has the measured coordinates themselves.
    both = measured.merge(predicted, on=["x", "y"], suffixes=("", "_predicted"), validate="one_to_one")
    return both.assign(agrees=(both["reproduced"] >= 1) == (both["reproduced_predicted"] >= 1))


def agreement_note(points: pd.DataFrame) -> str:
    """How often the prediction is on the measured side: `43 of 45 on the predicted side`."""
    agrees = on_predicted_side(points)["agrees"]
    return f"{agrees.sum()} of {len(agrees)} on the predicted side"
