"""Pace of this machine: seconds that were measured on another one are scaled by it before anything has run here."""

import time
from functools import cache

import numpy as np
from threadpoolctl import threadpool_limits

REPEATS = 5
"""Times that the piece of work is done; the shortest counts, which other work has interrupted least."""


@cache
def seconds_of_work() -> float:
    """Seconds in which one core does a fixed piece of work: about 0.05, and 0.3 to find out.

    The work is that of a language model of 135 million parameters in float32: a layer's matrix product over 512
    tokens (0.9 GFLOP each, bound by computing), and the head's product with one token (113 MB, bound by memory).
    """
    generator = np.random.default_rng(0)
    tokens, layer, head = (
        generator.standard_normal(shape, dtype=np.float32) for shape in ((512, 576), (576, 1536), (49_152, 576))
    )
    with threadpool_limits(1):
        return min(_once(tokens, layer, head) for _ in range(REPEATS))


def _once(tokens: np.ndarray, layer: np.ndarray, head: np.ndarray) -> float:
    began = time.perf_counter()
    for _ in range(3):
        tokens @ layer
    head @ tokens[0]
    return time.perf_counter() - began


def scaled(seconds: dict[str, float], work: float) -> dict[str, float]:
    """Seconds of jobs on this machine.

    Args:
        seconds: seconds by kind of job on another machine.
        work: what `seconds_of_work` was there; must be > 0.
    """
    return {kind: value * seconds_of_work() / work for kind, value in seconds.items()}
