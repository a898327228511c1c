"""A part of the bias laboratory's page: a question, its answers, diagrams, and a table with all numbers beside it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup, escape

from redraft.analysis.pages.multiples import Lines, Panel, Points, number, said

NEGLIGIBLE = 1e-9
"""Distance that rounding explains, also of sums over many terms."""


class Question(NamedTuple):
    """What is asked.

    Attributes:
        name: of its place in the page and of its data's file.
        title: heading.
        asked: how it was put.
    """

    name: str
    title: str
    asked: str


@dataclass(frozen=True, eq=False)
class Part:
    """What the page says of a question.

    Attributes:
        question: what is asked.
        answers: sentences, each made from the data.
        panels: diagrams.
        table: as people read it, texts.
        data: all numbers; empty if nothing was run.
        note: what a reader has to know of table and diagrams.
        missing: why there are no data, or not all.
    """

    question: Question
    answers: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
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
    """`residual, block and one-hot`; `no rule` if there is none."""
    *others, last = map(said, names or ["no rule"])
    return f"{', '.join(others)} and {last}" if others else last


def short(value: float) -> str:
    """Two digits, with a true minus; what is not known is a dash."""
    if not math.isfinite(value):
        return "–"
    return number(float(f"{value:.2g}"))


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{round(100 * share)}\N{NARROW NO-BREAK SPACE}%".replace("-", "\N{MINUS SIGN}")


def marked(text: str) -> Markup:
    """A text with its commands, which stand between backticks, as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def rounding(value: float) -> str:
    """A distance that rounding explains, or what it is."""
    return "0 but for rounding" if value <= NEGLIGIBLE else short(value)
