"""Comparability of a campaign's seconds: in the first epoch nothing can be reused, so runs that decode the same
tokens there do the same work, whatever their method, and should take the same time."""

import math
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.repeats import SPREAD
from redraft.analysis.data.speedups import SPEEDUP


@dataclass(frozen=True)
class Agreement:
    """Spread of the seconds of equal work.

    Attributes:
        groups: sets of runs that did the same work.
        median: longest over shortest rollout seconds of the first epoch, median over the sets.
        largest: the same of the set where they differ most.
        repeats: longest over shortest seconds of a step's rollouts that were repeated, median over the steps; NaN where
            nothing was.
    """

    groups: int
    median: float
    largest: float
    repeats: float = math.nan

    @property
    def comparable(self) -> bool:
        """True if no set differs by more than a fifth."""
        return self.largest <= 1.2


@lru_cache(maxsize=4)
def first_epoch_agreement(runs: Runs) -> Agreement | None:
    """Compare the rollout seconds of the first epoch between runs of one seed that decoded the same in each step of it.

    Returns:
        None where no two runs did the same work.
    """
    first = runs.steps[runs.steps["epoch"] == 0].sort_values("step")
    work = first.groupby(["cell", "seed"]).agg(tokens=("tokens_decoded", tuple), seconds=("seconds.rollout", "sum"))
    spread = [
        part["seconds"].max() / part["seconds"].min() for _, part in work.groupby(["seed", "tokens"]) if len(part) > 1
    ]
    if not spread:
        return None
    ratios = pd.Series(spread)
    repeats = float(runs.steps[SPREAD].median()) if SPREAD in runs.steps else math.nan
    return Agreement(len(ratios), float(ratios.median()), float(ratios.max()), repeats)


def timed_unevenly(runs: Runs) -> Agreement | None:
    """The agreement of the runs' seconds if it is too bad for a verdict on any; else None."""
    agreement = first_epoch_agreement(runs)
    return agreement if agreement and not agreement.comparable else None


def is_timed(quantity: str) -> bool:
    """True for a quantity of seconds or hours, and for a speedup, which is made of them."""
    return "seconds" in quantity or quantity.startswith(("hours", SPEEDUP))
