"""Numbers of rules over the seeds of a paper, for the parts of the bias laboratory's page that runs answer."""

import math
from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from redraft.analysis.data.statistics import Estimate, estimate
from redraft.analysis.pages.multiples import said
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.part import percent
from redraft.config.reuse import Reuse

ByRule = Mapping[str, Estimate]


def rule_of(reuse: Reuse, observed: Iterable[str]) -> str:
    """Name of a cell's rule, as enumerated and observed rules are named, with the turns of its fresh samples.

    Args:
        reuse: of the cell.
        observed: rules that were observed: of several names of a rule the most precise one of them is taken, and the
            least precise one if none is.
    """
    known, every = set(observed), getattr(reuse, "fresh_every", 0)
    name = next((name for name in reuse.names if name in known), reuse.names[-1])
    return f"{name}, every {every} visits fresh" if every else name


def by_rule(paper: Paper, frame: pd.DataFrame, column: str) -> dict[str, Estimate]:
    """Mean of a column of each rule: of all its rows of a seed first, then over seeds."""
    by_seed = frame.groupby(["rule", "seed"], sort=False)[column].mean().dropna()
    return {str(rule): of_seeds(paper, part.droplevel("rule")) for rule, part in by_seed.groupby("rule", sort=False)}


def of_seeds(paper: Paper, values: pd.Series) -> Estimate:
    """Mean of values by seed, with the interval that all pages have."""
    by_seed = {int(seed): float(value) for seed, value in values.items()}
    return estimate(by_seed, {seed: paper.preset.unit(seed) for seed in by_seed})


def with_interval(value: Estimate | None, text: Callable[[float], str]) -> str:
    """A mean and its interval as text; a dash where there is none."""
    if value is None:
        return "–"
    ends = value.interval
    if math.isnan(ends.low):
        return text(value.mean)
    low = text(ends.low).removesuffix("\N{NARROW NO-BREAK SPACE}%")  # one unit is enough
    return f"{text(value.mean)} [{low}, {text(ends.high)}]"


def shares(values: ByRule, rules: Iterable[str], text: Callable[[float], str] = percent) -> str:
    """`87 % (residual), 90 % (block)`."""
    return ", ".join(f"{text(values[rule].mean)} ({said(rule)})" for rule in rules)


def seeds_of(paper: Paper, frame: pd.DataFrame) -> str:
    """The seeds that numbers rest on, in words."""
    seeds = sorted(set(frame["seed"]))
    blocks = len({paper.preset.unit(seed) for seed in seeds})
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}" + f" of {blocks} blocks" * (blocks < len(seeds))
