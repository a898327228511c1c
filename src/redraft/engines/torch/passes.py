"""Times of single decoding passes of the in-process engine, for a roofline of this machine (docs/selfspec.md).

Three kinds of pass are timed: the policy on one token per response, the drafter on one, and the policy on a block of
proposals with the token before them. Attention, head and softmax are included; sampling and scheduling are not. The
content of the cache does not affect the time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.loop import now
from redraft.engines.torch.speculation import SpeculativeEngine

PRODUCT = {"cpu": 768, "cuda": 8192}
"""Rows and columns of the square matrices whose product measures a device's throughput."""
WARM_UP = 3
"""Repetitions before the timed ones."""


@dataclass(frozen=True)
class TimedPass:
    """Times of one kind of pass.

    Attributes:
        kind: by the policy, by the drafter, or by the policy over blocks.
        batch: number of decoding responses.
        length: positions before the token.
        proposals: of a block; 0 for the other kinds.
        seconds: time of each repetition.
    """

    kind: Literal["policy", "drafter", "block"]
    batch: int
    length: int
    proposals: int
    seconds: tuple[float, ...]


def timed_passes(
    engine: SpeculativeEngine,
    batches: Sequence[int],
    lengths: Sequence[int],
    proposals: Sequence[int],
    repetitions: int = 15,
) -> Iterator[TimedPass]:
    """Time every kind of pass at every batch size and length (see `TimedPass`); the engine has rows for the largest."""
    assert isinstance(engine.drafter, QuantisedDrafter)
    was_training = engine.model.training
    engine.model.eval()
    try:
        with engine.passes():
            for length in lengths:
                for batch in batches:
                    yield TimedPass("policy", batch, length, 0, _timed(engine, batch, length, 1, repetitions))
                    with engine.drafter.drafting():
                        drafter = _timed(engine, batch, length, 1, repetitions)
                    yield TimedPass("drafter", batch, length, 0, drafter)
                    for count in proposals:
                        block = _timed(engine, batch, length, count + 1, repetitions)
                        yield TimedPass("block", batch, length, count, block)
    finally:
        engine.model.train(was_training)


def _timed(engine: SpeculativeEngine, batch: int, length: int, width: int, times: int) -> tuple[float, ...]:
    tokens = torch.zeros((batch, width), dtype=torch.long, device=engine.device)
    positions = torch.full((batch,), length, dtype=torch.long, device=engine.device)
    return _seconds(lambda: engine._distributions(tokens, positions, length + width), engine.device, times)


def _seconds(work: Callable[[], object], device: torch.device, times: int) -> tuple[float, ...]:
    """Times of repeated work after warming up, in seconds."""
    seconds = []
    for _ in range(times + WARM_UP):
        began = now(device)
        work()
        seconds.append(now(device) - began)
    return tuple(seconds[WARM_UP:])


def throughput(device: torch.device, dtype: torch.dtype) -> float:
    """Operations/s of a product of matrices, the best of a few: the device's effective throughput (F_eff)."""
    size = PRODUCT["cuda" if device.type == "cuda" else "cpu"]
    one = torch.randn(size, size, device=device, dtype=dtype)
    return float(2 * size**3 / min(_seconds(lambda: one @ one, device, 10)))
