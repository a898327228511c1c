"""Parts of the bias laboratory's page: a question, its answers, diagrams and a table, and means of rules over seeds."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup, escape

from redraft.analysis.data.statistics import Estimate, estimate
from redraft.analysis.pages.multiples import Diagram, Lines, Points, number, rule_label
from redraft.analysis.pages.paper import Paper
from redraft.config.reuse import Reuse
from redraft.messages import counted

NEGLIGIBLE = 1e-9
"""Largest total variation that rounding errors of long sums explain."""


class LaboratoryQuestion(NamedTuple):
    """Question that a part answers.

    Attributes:
        name: anchor in the page and name of the data file.
        title: heading.
        text: introduction, below the heading.
    """

    name: str
    title: str
    text: str


@dataclass(frozen=True, eq=False)
class LaboratoryPart:
    """A part of the page.

    Attributes:
        question: heading and introduction.
        answers: sentences with numbers from the data.
        diagrams: diagrams.
        table: as people read it, texts.
        data: all numbers; empty if nothing was run.
        note: explanation of table and diagrams.
        missing: reason for missing data; empty if complete.
    """

    question: LaboratoryQuestion
    answers: list[str] = field(default_factory=list)
    diagrams: list[Diagram] = field(default_factory=list)
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    note: str = ""
    missing: str = ""


def lines(frame: pd.DataFrame, x: str, y: str, by: str = "rule") -> Lines:
    """A line for each value of a column, in their order."""
    return {str(label): points(part, x, y) for label, part in frame.groupby(by, sort=False)}


def points(frame: pd.DataFrame, x: str, y: str) -> Points:
    """Points of two columns."""
    return list(zip(frame[x], frame[y], strict=True))


def listed(names: Sequence[str]) -> str:
    """Names joined as in `residual, block and one-hot`; `no rule` if there is none."""
    *others, last = map(rule_label, names or ["no rule"])
    return f"{', '.join(others)} and {last}" if others else last


def short(value: float) -> str:
    """Two significant digits; a dash if the value is unknown."""
    if not math.isfinite(value):
        return "–"
    # Two digits here, since `number` would show three.
    return number(float(f"{value:.2g}"))


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{round(100 * share)}\N{NARROW NO-BREAK SPACE}%".replace("-", "\N{MINUS SIGN}")


def marked(text: str) -> Markup:
    """A text as HTML, with parts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def rounding(value: float) -> str:
    """A distance, or `0 up to rounding` below `NEGLIGIBLE`."""
    return "0 up to rounding" if value <= NEGLIGIBLE else short(value)


ByRule = Mapping[str, Estimate]


def rule_of(reuse: Reuse, observed: Iterable[str]) -> str:
    """Name of a cell's rule as in the enumerated and observed results, with the interval of fresh samples.

    Args:
        reuse: reuse of the cell.
        observed: names of observed rules. A rule has several names, from precise to general: the most precise observed
            one is returned, or the most general one if none was observed.
    """
    # Only methods that keep drafts have `fresh_every`; 0 is never.
    known, every = set(observed), getattr(reuse, "fresh_every", 0)
    name = next((name for name in reuse.names if name in known), reuse.names[-1])
    return f"{name}, every {every} visits fresh" if every else name


def by_rule(paper: Paper, frame: pd.DataFrame, column: str) -> dict[str, Estimate]:
    """Mean of a column by rule: first over all rows of a seed, then over seeds."""
    # Rows of one seed are of one run, so only seeds, or their blocks, are independent.
    by_seed = frame.groupby(["rule", "seed"], sort=False)[column].mean().dropna()
    return {str(rule): of_seeds(paper, part.droplevel("rule")) for rule, part in by_seed.groupby("rule", sort=False)}


def of_seeds(paper: Paper, values: pd.Series) -> Estimate:
    """Mean of values by seed with a 95 % interval (Student, over blocks of seeds)."""
    by_seed = {int(seed): float(value) for seed, value in values.items()}
    return estimate(by_seed, {seed: paper.preset.unit(seed) for seed in by_seed})


def with_interval(value: Estimate | None, text: Callable[[float], str]) -> str:
    """A mean and its interval as text; a dash for None."""
    if value is None:
        return "–"
    ends = value.interval
    if math.isnan(ends.low):
        return text(value.mean)
    low = text(ends.low).removesuffix("\N{NARROW NO-BREAK SPACE}%")  # one unit is enough
    return f"{text(value.mean)} [{low}, {text(ends.high)}]"


def shares(values: ByRule, rules: Iterable[str], text: Callable[[float], str] = percent) -> str:
    """Means by rule as text: `87 % (residual), 90 % (block)`."""
    return ", ".join(f"{text(values[rule].mean)} ({rule_label(rule)})" for rule in rules)


def seeds_of(paper: Paper, frame: pd.DataFrame) -> str:
    """Number of seeds and blocks, in words."""
    seeds = sorted(set(frame["seed"]))
    blocks = len({paper.preset.unit(seed) for seed in seeds})
    return counted(len(seeds), "seed") + f" of {blocks} blocks" * (blocks < len(seeds))
