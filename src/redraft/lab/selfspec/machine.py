"""A sweep of this machine: seconds of the in-process engine's passes with a model, for the fit of a roofline."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from redraft.engines.torch.passes import throughput, timed_passes
from redraft.engines.torch.self_speculation import Fixed, SelfSpeculativeEngine
from redraft.errors import UserError
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, Measurement
from redraft.train import models

BATCHES = (1, 2, 4, 8, 16, 32, 64)
GAMMAS = (3, 7, 11)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Of these, those that the model has positions for."""


def measure(
    folder: Path,
    device: str,
    threads: int,
    bits: int,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = LENGTHS,
    gammas: Sequence[int] = GAMMAS,
) -> tuple[list[Measurement], float]:
    """Time the passes of a model and its quantised drafter: lines of a sweep, and the device's operations/s.

    Args:
        bits: of the drafter's weights, which are computed with as floats.
        batches: responses that decode.
        lengths: positions before the token.
        gammas: proposals of a block.

    Raises:
        UserError: if the model cannot be loaded, or has no room for two lengths.
    """
    torch.set_num_threads(threads)
    model, _ = models.load(folder)
    model.to(models.device_of(device))
    room = model.config.max_position_embeddings - max(gammas) - 1
    fitting = [length for length in lengths if length <= room]
    if len(fitting) < 2:
        raise UserError(
            "a roofline needs passes at two lengths or more",
            file=folder / "config.json",
            key="max_position_embeddings",
            value=model.config.max_position_embeddings,
            allowed=f"room for {lengths[:2]} and a block",
        )
    engine = SelfSpeculativeEngine(
        model, Fixed(max(gammas)), max(gammas), bits=bits, stops=(), max_rows=max(batches), max_length=max(fitting) + 1
    )
    name = folder.resolve().name
    passes = timed_passes(engine, batches, fitting, gammas)
    lines = []
    for timed in passes:
        mode = {"policy": TARGET, "drafter": DRAFT, "block": VERIFY}[timed.kind]
        ms = [1e3 * seconds for seconds in timed.seconds]
        numbers = (statistics.fmean(ms), statistics.median(ms), statistics.pstdev(ms), min(ms), max(ms), len(ms))
        # The drafter's pass is the same for each length of drafts.
        for gamma in gammas if timed.kind == "drafter" else [timed.proposals]:
            lines.append(Measurement(name, timed.batch, timed.length, gamma, mode, *numbers))
    return lines, throughput(engine.device, engine.dtype)
