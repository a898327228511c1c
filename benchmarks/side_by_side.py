"""Timing on a noisy machine: alternatives take turns, and medians are compared."""

import statistics
import time
from collections.abc import Callable

ROUNDS = 7
MEASURED: dict[str, dict[str, list[float]]] = {}
"""Seconds of each round, of all that this process measured, by title and alternative; see `benchmarks.figures`."""


def seconds(
    title: str,
    alternatives: dict[str, Callable[[], object]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Measure the seconds of each alternative, once per round, after a warm-up round.

    The title says what is measured, and of what size; the first alternative is what others are compared with.

    CPU seconds (`time.process_time`) depend less on other load of the machine. They suit work in this process on one
    thread.

    Returns:
        Seconds of each round by alternative.
    """
    measured: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(rounds + 1):
        for name, function in alternatives.items():
            began = clock()
            function()
            if number:
                measured[name].append(clock() - began)
    MEASURED[title] = measured
    return measured


def line(name: str, values: list[float], unit: str = "s") -> str:
    """A line with median, minimum and maximum."""
    return f"  {name:<44} {statistics.median(values):10.3f} {unit}  [{min(values):.3f}, {max(values):.3f}]"


def ratio(first: list[float], second: list[float]) -> float:
    """Median over rounds of the ratio first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
