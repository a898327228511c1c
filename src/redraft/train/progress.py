"""Lines that a job prints while it trains."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redraft.messages import echo

SILENCE = 60
"""Seconds without a line, at most, if a step is no longer."""


def reporter(name: str, every: int) -> Callable[[int, int, str], None]:
    """Make a function that prints a run's name, progress and remaining time after every `every` steps.

    Where steps are long it prints after each that ends `SILENCE` seconds after the last line.
    """
    began = spoke = time.perf_counter()
    first: int | None = None

    def report(done: int, total: int, text: str) -> None:
        nonlocal spoke, first
        # Steps of an earlier process are not in the time of this one.
        first = done - 1 if first is None else first
        if done % every and done != total and time.perf_counter() - spoke < SILENCE:
            return
        spoke = time.perf_counter()
        left = (time.perf_counter() - began) / (done - first) * (total - done)
        echo(f"  {name:<34} {done:>4}/{total}  {text}  {left:4.0f} s left", err=True)

    return report


def epoch_reporter(name: str, steps_per_epoch: int) -> Callable[[Sequence[Mapping[str, Any]]], None]:
    """Make a function of a run's records, called after each epoch, that says once if no response of the last one earned
    a reward."""
    said = False

    def report(records: Sequence[Mapping[str, Any]]) -> None:
        nonlocal said
        rewards = [max(record["reward"], record["fresh_reward"] or 0.0) for record in records[-steps_per_epoch:]]
        if said or max(rewards) > 0:
            return
        said = True
        text = (
            "no response earned a reward, so there is nothing to learn from: does the prompt ask for what is rewarded "
            "(`template` and `trainer.reward` in `redraft show`), and do responses fit into their limit?"
        )
        echo(f"  {name}: in epoch {records[-1]['epoch'] + 1} {text}", err=True)

    return report
