"""Pace of this machine, which scales job times measured on another machine before any job has run here."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from redraft.config import Preset
from redraft.config.precision import FASTEST
from redraft.files import write_json
from redraft.layout import Layout
from redraft.messages import echo
from redraft.provenance import machine

FASTER = 0.9
"""Share of float32's time up to which bfloat16 is taken: its rounding has to be worth something."""
OTHER_WORK = 0.3
"""Time of a run's other work over that of its matrix products in float32: scoring and updates of a model of 135 million
parameters take 1.2 to 1.3 times as long as their products alone (`python -m benchmarks scoring updates`)."""
REPEATS = 5
"""Number of repetitions; the shortest counts, since it was interrupted least."""


@cache
def seconds_of_work() -> float:
    """Time of a fixed piece of work on one core in seconds: about 0.05; measuring it takes 0.3 s.

    The work is that of a language model of 135 million parameters in float32: a layer's matrix product over 512
    tokens (0.9 GFLOP each, compute-bound), and the head's product with one token (113 MB, memory-bound).
    """
    import numpy as np  # not at the top: `redraft cost` imports this module and works without numpy
    from threadpoolctl import threadpool_limits

    generator = np.random.default_rng(0)
    tokens, layer, head = (
        generator.standard_normal(shape, dtype=np.float32) for shape in ((512, 576), (576, 1536), (49_152, 576))
    )

    def work() -> None:
        for _ in range(3):
            tokens @ layer
        head @ tokens[0]

    with threadpool_limits(1):
        return min(_seconds(work) for _ in range(REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@cache
def times_float32(dtype: str) -> float:
    """Ratio of a matrix product's time in a precision to its time in float32 on this processor; takes 0.3 s.

    Measured ratios for bfloat16 range from 0.15 to 8, depending on the processor's instructions (docs/real-model.md).
    `fastest` has the ratio of the precision that `take_precision` would take. The ratio is 1 for other precisions and
    with a GPU.

    Args:
        dtype: precision of `EngineSettings`.
    """
    if dtype not in ("bfloat16", FASTEST):
        return 1.0
    import torch  # not at the top: the import takes two seconds

    ratio = 1.0 if torch.cuda.is_available() else product_ratio("cpu")
    return 1.0 if dtype == FASTEST and ratio > FASTER else ratio


def product_ratio(device: str) -> float:
    """Ratio of a matrix product's time in bfloat16 to its time in float32, on one thread of a processor or on a GPU.

    Args:
        device: `cpu`, `cuda`, or `auto`: a GPU if there is one.
    """
    import torch
    from threadpoolctl import threadpool_limits

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    place = torch.device("cuda" if on_gpu else "cpu")
    with threadpool_limits(1):
        bfloat16, float32 = (_product_seconds(place, precision) for precision in (torch.bfloat16, torch.float32))
    return bfloat16 / float32


def take_precision(preset: Preset) -> None:
    """Measure and record the precision that replaces `engine.dtype: fastest`, unless the preset has one.

    Every later call reads it, on any machine: all runs of a preset compute in one precision. bfloat16 is taken if its
    product takes at most `FASTER` of float32's time.
    """
    record = Layout(preset.name).precision
    if preset.engine.dtype != FASTEST or record.exists():
        return
    ratio = product_ratio(preset.engine.device)
    dtype = "bfloat16" if ratio <= FASTER else "float32"
    write_json(record, {"dtype": dtype, "times_float32": ratio, "machine": machine()})
    echo(f"engine.dtype: {dtype}; bfloat16 takes {ratio:.2f} of float32's time here ({record})", err=True)


def _product_seconds(device: Any, dtype: Any) -> float:
    import torch

    tokens = torch.ones(512, 576, dtype=dtype, device=device)
    layer = torch.ones(1536, 576, dtype=dtype, device=device).T

    def work() -> None:
        _ = tokens @ layer
        if device.type == "cuda":
            torch.cuda.synchronize()

    return min(_seconds(work) for _ in range(1 + REPEATS))  # one more to warm up


def scaled(seconds: dict[str, float], work: float, dtype: str = "auto") -> dict[str, float]:
    """Scale job times to this machine.

    Args:
        seconds: seconds by rule on another machine, in float32.
        work: `seconds_of_work` on that machine; must be > 0.
        dtype: precision of `EngineSettings`.
    """
    # Other work takes as long in either precision.
    pace = seconds_of_work() / work * (times_float32(dtype) + OTHER_WORK) / (1 + OTHER_WORK)
    return {rule: value * pace for rule, value in seconds.items()}
