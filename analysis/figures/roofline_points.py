"""Speedup of self-speculation over batch and length as points: what a roofline predicts and what its sweep measured.

Every draft counts as accepted whole, as in EfficientRollout's Figures 4 (a) and 12 (arXiv 2606.18967, Appendix D.3).
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
"""Kinds of points; on the boundary the predicted speedup is the least with which the toggle switches on."""
BORDER = 1.3
"""Factor by which the points of a prediction go beyond the outermost measured ones, so that none is cut."""
FINENESS = 16
"""Points of a prediction on each axis, besides the measured ones."""
LARGEST = 4096
"""Batch up to which the boundary is looked for."""


def published_fit(experiments: Experiments, paper: str, source: PublishedSweep) -> tuple[Sweep, Fit] | None:
    """A sweep that the authors published and the roofline that is fitted to it here; None if it is not there.

    Raises:
        UserError: for a sweep that is damaged, of another model, or that no roofline describes.
    """
    file = sweep_file(source)
    if file is None:
        return None
    table, model = experiments.measured_model(paper, source)
    sweep = read_sweep(file)
    if sweep.model != model.label:
        raise UserError(
            "this sweep is of another model", file=file, key="model", value=sweep.model, allowed=model.label
        )
    return sweep, _fitted(sweep, model_constants(model.configuration).costs, source.flops, table.bandwidth)


@cache
def _fitted(sweep: Sweep, costs: Costs, flops: float, bandwidth: float) -> Fit:
    """The fit with the released ranges; made once, however many panels show it."""
    return fit(sweep, costs, flops, ranges_of_device(bandwidth))


def speedups(calibration: Calibration, sweep: Sweep, gamma: int) -> pd.DataFrame:
    """Points of all kinds, a line each: `quantity`, `x` (batch), `y` (length in tokens), `reproduced` (the speedup)."""
    target, draft, verify = sweep.blocks(gamma)
    measured = (gamma + 1) * target.seconds / (gamma * draft.seconds + verify.seconds)
    batches, lengths = (
        np.union1d(np.geomspace(measured_at.min() / BORDER, measured_at.max() * BORDER, FINENESS), measured_at)
        for measured_at in (target.batch, target.length)
    )
    x, y = (grid.ravel() for grid in np.meshgrid(batches, lengths))
    largest = boundary(calibration, lengths, gamma, gamma + 1, largest=LARGEST)
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
    """The measured points with `agrees`: whether what is predicted there lies on the same side of 1."""
    measured, predicted = (points[points["quantity"] == kind] for kind in (MEASURED, PREDICTED))
    both = measured.merge(predicted, on=["x", "y"], suffixes=("", "_predicted"), validate="one_to_one")
    return both.assign(agrees=(both["reproduced"] >= 1) == (both["reproduced_predicted"] >= 1))


def agreement_note(points: pd.DataFrame) -> str:
    """How often the prediction is on the measured side: `43 of 45 on the predicted side`."""
    agrees = on_predicted_side(points)["agrees"]
    return f"{agrees.sum()} of {len(agrees)} on the predicted side"
