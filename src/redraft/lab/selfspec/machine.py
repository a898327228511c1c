"""A sweep of this machine: wall times of the in-process engine's passes with a model."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.passes import throughput, timed_passes
from redraft.engines.torch.speculation import Fixed, SpeculativeEngine
from redraft.errors import UserError
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, SweepRow
from redraft.train import models

BATCHES = (1, 2, 4, 8, 16, 32, 64)
GAMMAS = (3, 7, 11)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Positions before the token; lengths beyond the model's positions are skipped."""


def measure(
    folder: Path,
    device: str,
    threads: int,
    bits: int,
    dtype: torch.dtype = torch.float32,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = LENGTHS,
    gammas: Sequence[int] = GAMMAS,
) -> tuple[list[SweepRow], float]:
    """Time the passes of a model and its quantised drafter; return rows of a sweep and the device's operations/s.

    Args:
        bits: precision of the drafter's weights (fake quantisation: computed with as floats).
        dtype: precision in which the policy decodes, that of the run that will use the calibration.
        batches: numbers of responses that decode at once.
        lengths: positions before the token.
        gammas: drafted tokens of a block.

    Raises:
        UserError: if the model cannot be loaded, or has too few positions for two lengths.
    """
    # As the run that will use the calibration: the times of one thread say nothing about two.
    torch.set_num_threads(threads)
    model, _ = models.load(folder, dtype=dtype)
    model.to(models.device_of(device))
    # A block feeds γ proposals and the token before them after these positions.
    longest = model.config.max_position_embeddings - max(gammas) - 1
    fitting = [length for length in lengths if length <= longest]
    if len(fitting) < 2:
        raise UserError(
            "a roofline needs passes at two lengths or more",
            file=folder / "config.json",
            key="max_position_embeddings",
            value=model.config.max_position_embeddings,
            allowed=f"at least {lengths[1] + max(gammas) + 1}",
        )
    options = {"stops": (), "max_rows": max(batches), "max_length": max(fitting) + 1}
    engine = SpeculativeEngine(model, QuantisedDrafter(model, bits), Fixed(max(gammas)), max(gammas), **options)
    name = folder.resolve().name
    passes = timed_passes(engine, batches, fitting, gammas)
    lines = []
    for timed in passes:
        mode = {"policy": TARGET, "drafter": DRAFT, "block": VERIFY}[timed.kind]
        ms = [1e3 * seconds for seconds in timed.seconds]
        # Fits use the median; the other statistics are columns of the released format.
        numbers = (statistics.fmean(ms), statistics.median(ms), statistics.pstdev(ms), min(ms), max(ms), len(ms))
        # A drafter's pass does not depend on γ, but the format has a row for each.
        for gamma in gammas if timed.kind == "drafter" else [timed.proposals]:
            lines.append(SweepRow(name, timed.batch, timed.length, gamma, mode, *numbers))
    return lines, throughput(engine.device, engine.dtype)
