"""What the report says first: a few numbers of each paper's tables as sentences, with their verdicts."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from redraft.analysis.data.timing import TimingSpread, is_timed
from redraft.analysis.tables.cell_verdicts import (
    AGREES,
    BASELINE,
    DIFFERS,
    INCONCLUSIVE,
    MISSING,
    NO_DATA,
    NOT_COMPARABLE,
    SIGNIFICANT,
    UNEVEN,
)
from redraft.analysis.tables.files import read_table
from redraft.config import Headline, Table, TargetTable
from redraft.layout import Layout

MINUS = "\N{MINUS SIGN}"
DECIMALS = {"percent fewer": 1, "times": 2, "points": 1}
UNIT = {"percent fewer": "\N{NARROW NO-BREAK SPACE}%", "times": "\N{NARROW NO-BREAK SPACE}×", "points": " points"}

FEWER = re.compile(r"\b(fewer|less)\b")
"""Words for which there are more."""


@dataclass(frozen=True)
class Point:
    """A number of the first screen, in the form in which it is said; NaN is unknown.

    Attributes:
        short: name beside its point in the plot.
        form: `percent fewer`, `times` or `points`.
        mean, low, high: value and the interval that decides.
        reported: the paper's value.
        verdict: that of the table's cell.
        seeds: number of runs.
        sentence: all of it in words.
        timed: true if it is made of seconds.
        finding: what the verdict comes to: `yes` (an effect on the paper's side, or any where the paper has none), `no`
            (none, or on the other side), `open` or `not run`.
    """

    short: str
    form: str
    mean: float
    low: float
    high: float
    reported: float
    verdict: str
    seeds: int
    sentence: str
    timed: bool
    finding: str


def points(
    layout: Layout, paper: str, headlines: Sequence[Headline], tables: Sequence[Table], uneven: TimingSpread | None
) -> list[Point]:
    """The numbers of a paper's declared headlines, in their order.

    `uneven` says how unequal the seconds of equal work were, if too unequal for verdicts.
    """
    declared, found = {table.number: table for table in tables}, []
    for headline in headlines:
        cells = read_table(layout.table(paper, headline.table))
        chosen = cells[(cells["cell"] == f"{paper}/{headline.cell}") & (cells["column"] == headline.column)]
        compared = chosen[chosen["verdict"] != BASELINE]  # none where the table lacks the row or column at this preset
        if compared.empty or compared.iloc[-1]["verdict"] in (MISSING, NO_DATA):
            sentence = f"{headline.words.format('…')}: not run."
            nan = math.nan
            found.append(
                Point(headline.short, headline.form, nan, nan, nan, nan, MISSING, 0, sentence, False, "not run")
            )
        else:
            found.append(_point(headline, compared.iloc[-1], declared[headline.table], uneven))
    return found


def _point(headline: Headline, cell: pd.Series, table: Table, uneven: TimingSpread | None) -> Point:
    ends = ("high", "low") if headline.form == "percent fewer" else ("low", "high")
    mean, low, high, reported = (said(cell[name], headline.form) for name in ("reproduced", *ends, "reported"))
    quantity = next((c.quantity for c in getattr(table, "columns", []) if c.name == headline.column), headline.column)
    timed = is_timed(quantity) or (isinstance(table, TargetTable) and table.clock == "hours")
    told = _told(headline, mean, low, high, reported)
    words = f"{told}: {verdict_words(cell, uneven if timed else None)}."
    verdict = cell["verdict"]
    effect = verdict in (AGREES, "same direction") or (verdict == NOT_COMPARABLE and cell["p_corrected"] <= SIGNIFICANT)
    finding = "yes" if effect else "no" if verdict in (DIFFERS, "opposite direction") else "open"
    return Point(
        headline.short,
        headline.form,
        mean,
        low,
        high,
        reported,
        str(verdict),
        int(cell["n_seeds"]),
        words,
        timed,
        finding,
    )


def _told(headline: Headline, mean: float, low: float, high: float, reported: float) -> str:
    """The sentence with its numbers; what is −32 % fewer is 32 % more."""
    words, form = headline.words, headline.form
    less = FEWER.search(words) if form == "percent fewer" and mean < 0 else None
    paper = "" if math.isnan(reported) else f" (paper {number(reported, form)}{f' {less[0]}' if less else ''})"
    if less:
        mean, low, high, words = -mean, -high, -low, FEWER.sub("more", words)
    return words.format(f"{number(mean, form)}{interval(low, high, form)}{paper}")


def said(value: float, form: str) -> float:
    """A table's number in a headline's form: a ratio of 0.31 is 69 % fewer."""
    return 100 * (1 - value) if form == "percent fewer" else value


def number(value: float, form: str) -> str:
    """A number with its unit and a true minus, a difference also with its plus; † for what was never reached."""
    if not math.isfinite(value):
        return "†" if math.isinf(value) else "–"
    sign = "+" if form == "points" else ""
    return f"{value:{sign}.{DECIMALS[form]}f}".replace("-", MINUS) + UNIT[form]


def interval(low: float, high: float, form: str) -> str:
    """Its interval in brackets, with a space before it; empty if there is none."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{low:.{DECIMALS[form]}f}, {high:.{DECIMALS[form]}f}]".replace("-", MINUS)


def verdict_words(cell: pd.Series, uneven: TimingSpread | None) -> str:
    """The verdict on a cell in the words of a sentence's end; `uneven` as in `points`, for seconds."""
    verdict, seeds = cell["verdict"], int(cell["n_seeds"])
    several = f"{seeds} seed{'s' * (seeds != 1)}"
    if verdict in (UNEVEN, NOT_COMPARABLE) and uneven:
        return f"undecided: no time is judged here, since equal work took up to {uneven.largest:.2f} times as long"
    uncorrected = cell["p"] <= SIGNIFICANT < cell["p_corrected"]
    open_ = f"undecided with {several}" + (", not significant after correction" if uncorrected else "")
    if verdict == NOT_COMPARABLE:
        effect = f"an effect with {several}, of which the paper has no number"
        return effect if cell["p_corrected"] <= SIGNIFICANT else open_
    return {
        AGREES: "reproduced",
        "same direction": "the paper's direction, another size",
        DIFFERS: "differs from the paper",
        "opposite direction": "contradicted, the paper has the other direction",
        INCONCLUSIVE: open_,
    }.get(verdict, str(verdict))


def as_data(found: Sequence[Point]) -> list[dict[str, Any]]:
    """The points for JSON, null for NaN and infinity."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(p).items()} for p in found
    ]
