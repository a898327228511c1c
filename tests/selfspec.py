"""Calibrations, a roofline in round numbers, and sweeps made up from them."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.self_speculation import FITTED, FOLDER, calibration
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, SweepRow
from redraft.layout import PUBLISHED
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import Costs
from redraft.selfspec.roofline import draft_seconds, target_seconds, verify_seconds

CALIBRATIONS = {name: calibration(name) for name in FITTED}
QWEN = CALIBRATIONS["Qwen2.5-7B"]
ROUND = Calibration(
    model="round",
    costs=Costs(100, 40, 2, 8, 1),
    bandwidth=10,
    flops=4,
    kv_bytes=1,
    draft_factor=1.5,
    target_overhead=1e6,
    draft_overhead=2e6,
    verify_overhead=3e6,
)
"""Small round numbers, with overheads of whole seconds."""
BATCHES, LENGTHS, GAMMAS = (1, 2, 4, 8, 16, 24, 32, 48, 64), (256, 512, 1024, 2048, 4096), (3, 7, 11, 15)
DATA = Path(os.environ.get(PUBLISHED) or Path(__file__).parents[2] / "shared/data/published") / FOLDER
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the published sweep is not beside the repository")


def measurements(of, noise=0.0, seed=0, batches=BATCHES, lengths=LENGTHS, gammas=GAMMAS):
    """A sweep's lines as the roofline `of` gives them, times a log-normal error."""
    rng = np.random.default_rng(seed)
    modes = [(TARGET, 0, target_seconds)]
    for gamma in gammas:
        modes += [(DRAFT, gamma, draft_seconds), (VERIFY, gamma, lambda c, b, s, g=gamma: verify_seconds(c, b, s, g))]
    lines = [line(of.model, 0, 0, 0, TARGET, 1.0)]  # of the warm-up, far from any roofline
    for mode, gamma, seconds in modes:
        for batch in batches:
            for length in lengths:
                ms = float(seconds(of, batch, length)) * 1e3 * np.exp(noise * rng.normal())
                lines.append(line(of.model, batch, length, gamma, mode, float(ms)))
    return lines


def line(model, batch, length, gamma, mode, ms):
    """A measurement whose median alone is right."""
    return SweepRow(model, batch, length, gamma, mode, 2 * ms, ms, 0.0, ms / 2, 9 * ms, 10)
