"""Pace of this machine: seconds that were measured on another one are scaled by it before anything has run here."""

import time
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

REPEATS = 5
"""Times that the piece of work is done; the shortest counts, which other work has interrupted least."""


@cache
def seconds_of_work() -> float:
    """Seconds in which one core does a fixed piece of work: about 0.05, and 0.3 to find out.

    The work is that of a language model of 135 million parameters in float32: a layer's matrix product over 512
    tokens (0.9 GFLOP each, bound by computing), and the head's product with one token (113 MB, bound by memory).
    """
    import numpy as np  # here, since `redraft cost` imports this module and works without
    from threadpoolctl import threadpool_limits

    generator = np.random.default_rng(0)
    tokens, layer, head = (
        generator.standard_normal(shape, dtype=np.float32) for shape in ((512, 576), (576, 1536), (49_152, 576))
    )
    with threadpool_limits(1):
        return min(_once(tokens, layer, head) for _ in range(REPEATS))


def _once(tokens: "np.ndarray", layer: "np.ndarray", head: "np.ndarray") -> float:
    began = time.perf_counter()
    for _ in range(3):
        tokens @ layer
    head @ tokens[0]
    return time.perf_counter() - began


@cache
def times_float32(dtype: str) -> float:
    """Time of a layer's matrix product in a precision over its time in float32, on this processor; 0.3 s to find out.

    About 0.5 to 8 for bfloat16 where it was measured, by whether the processor has instructions for it
    (docs/real-model.md). 1 for other precisions, and where a GPU computes.

    Args:
        dtype: of `EngineSettings`.
    """
    if dtype != "bfloat16":
        return 1.0
    import torch  # takes two seconds
    from threadpoolctl import threadpool_limits

    if torch.cuda.is_available():
        return 1.0
    with threadpool_limits(1):
        rounded, whole = (
            _product_seconds(torch.ones(512, 576, dtype=d), torch.ones(1536, 576, dtype=d).T)
            for d in (torch.bfloat16, torch.float32)
        )
    return rounded / whole


def _product_seconds(tokens: Any, layer: Any) -> float:
    def once() -> float:
        began = time.perf_counter()
        tokens @ layer
        return time.perf_counter() - began

    return min(once() for _ in range(1 + REPEATS))


def scaled(seconds: dict[str, float], work: float, dtype: str = "auto") -> dict[str, float]:
    """Seconds of jobs on this machine.

    Args:
        seconds: seconds by kind of job on another machine, in float32.
        work: what `seconds_of_work` was there; must be > 0.
        dtype: of `EngineSettings`.
    """
    pace = seconds_of_work() / work * times_float32(dtype)
    return {kind: value * pace for kind, value in seconds.items()}
