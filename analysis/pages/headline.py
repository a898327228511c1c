"""Headline numbers of the report: a few numbers of each paper's tables as sentences with their verdicts."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.statistics import KEPT, LEVEL, GainKept
from redraft.analysis.data.timing import TimingSpread, is_timed, timed_unevenly
from redraft.analysis.tables.cell_verdicts import (
    AGREES,
    BASELINE,
    DIFFERS,
    INCONCLUSIVE,
    MISSING,
    NO_DATA,
    NOT_COMPARABLE,
    UNEVEN,
)
from redraft.analysis.tables.files import read_table
from redraft.analysis.tables.table_columns import expand
from redraft.config import BudgetTable, Headline, RunTable, Table
from redraft.config.tables import AVERAGE, TableOfCells
from redraft.layout import Layout
from redraft.messages import counted

MINUS = "\N{MINUS SIGN}"
DECIMALS = {"percent fewer": 1, "times": 2, "points": 1}
UNIT = {"percent fewer": "\N{NARROW NO-BREAK SPACE}%", "times": "\N{NARROW NO-BREAK SPACE}×", "points": " points"}

FEWER = re.compile(r"\b(fewer|less)\b")
"""Words that become `more` if the sign of the number is reversed."""


@dataclass(frozen=True)
class HeadlineNumber:
    """A headline number; NaN is unknown.

    Attributes:
        short: label in the plot.
        form: `percent fewer`, `times` or `points`.
        mean, low, high: value and its 95 % interval, in units of `form`.
        reported: the paper's value.
        verdict: verdict on the table's cell.
        seeds: number of runs.
        sentence: number, interval, paper's value and verdict in words.
        timed: true if it is computed from times.
        uneven: true if these cannot be compared.
        finding: `yes` (an effect in the paper's direction, or any effect if the paper gives no number), `no` (no
            effect, or in the other direction), `open` (inconclusive) or `not run`.
        see: experiments that explain a finding of `no` (`redraft.config.tables.Explanation`); empty without them.
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
    uneven: bool = False
    see: Mapping[str, str] = field(default_factory=dict)


def points(
    layout: Layout,
    paper: str,
    headlines: Sequence[Headline],
    tables: Sequence[Table],
    runs: Runs,
    read: Callable[[Path], pd.DataFrame] = read_table,
) -> list[HeadlineNumber]:
    """The numbers of a paper's declared headlines, in their order.

    Args:
        layout: results, or published ones.
        paper: folder of the paper.
        headlines, tables: declarations of the paper.
        runs: collected ones of the paper, whose times of equal work decide whether times are judged.
        read: reads a table by its name without a suffix.
    """
    declared, found = {table.number: table for table in tables}, []
    for headline in headlines:
        cells = read(layout.table(paper, headline.table))
        chosen = cells[(cells["cell"] == f"{paper}/{headline.cell}") & (cells["column"] == headline.column)]
        compared = chosen[chosen["verdict"] != BASELINE]  # none where the table lacks the row or column at this preset
        if compared.empty or compared.iloc[-1]["verdict"] in (MISSING, NO_DATA):
            sentence = f"Not run: {headline.measure or headline.short}."
            nan = math.nan
            found.append(
                HeadlineNumber(
                    headline.short, headline.form, nan, nan, nan, nan, MISSING, 0, sentence, False, "not run"
                )
            )
        else:
            # The last of the cell's rows, for which headlines are worded.
            found.append(_point(headline, compared.iloc[-1], declared[headline.table], layout.preset, runs))
    return found


def _point(headline: Headline, cell: pd.Series, table: Table, preset: str, runs: Runs) -> HeadlineNumber:
    # The larger the ratio, the fewer percent are saved.
    ends = ("high", "low") if headline.form == "percent fewer" else ("low", "high")
    mean, low, high, reported = (in_form(cell[name], headline.form) for name in ("reproduced", *ends, "reported"))
    timed = _is_timed(headline, table, preset)
    sentence = _sentence(headline, mean, low, high, reported)
    if headline.form == "points" and math.isfinite(cell["baseline_gain"]):
        kept = GainKept(*cell[list(KEPT)]).text.replace("-", MINUS).replace(" %", UNIT["percent fewer"])
        sentence += f"; the method keeps {kept}"
    uneven = timed_unevenly(runs, _compared(headline, table)) if timed else None
    words = f"{sentence}: {verdict_words(cell, uneven)}."
    verdict = cell["verdict"]
    effect = verdict in (AGREES, "same direction") or (verdict == NOT_COMPARABLE and cell["p_corrected"] <= LEVEL)
    finding = "yes" if effect else "no" if verdict in (DIFFERS, "opposite direction") else "open"
    return HeadlineNumber(
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
        uneven is not None,
        headline.see.model_dump() if headline.see and finding == "no" else {},
    )


def _is_timed(headline: Headline, table: Table, preset: str) -> bool:
    """True for a column of times, also one that the table adds to those that it declares."""
    if not isinstance(table, RunTable):
        return False
    columns = {column.name: column.quantity for column in expand(table, (), preset=preset).columns}
    quantity = columns.get(headline.column, headline.column)
    # An average speedup is made of the table's others.
    return any(map(is_timed, columns.values() if quantity == AVERAGE else [quantity]))


def _compared(headline: Headline, table: Table) -> list[tuple[str, ...]]:
    """The pairs of cells that a headline number compares: all of a table at an equal budget, which all of them set."""
    if not isinstance(table, TableOfCells):
        return [(headline.cell,)]
    if isinstance(table, BudgetTable) and headline.column not in {column.name for column in table.columns}:
        return [*combinations(dict.fromkeys(table.cells), 2)]
    rows = [row for row in table.rows if row.cell == headline.cell]
    return [(headline.cell, row.baseline or table.baseline) for row in rows[-1:]] or [(headline.cell,)]


def _sentence(headline: Headline, mean: float, low: float, high: float, reported: float) -> str:
    """The sentence with its numbers, each with the word for its direction: −32 % fewer is written as 32 % more."""
    words, form = headline.words, headline.form
    found = FEWER.search(words) if form != "points" else None
    paper = "" if math.isnan(reported) else f" (paper: {directed(reported, form, found[0] if found else '')})"
    if found and is_reversed(mean, form):
        mean, low, high, words = *_reversed(mean, low, high, form), FEWER.sub("more", words)
    return f"{words.format(f'{number(mean, form)}{interval(low, high, form)}')}{paper}"


def directed(value: float, form: str, word: str, low: float = math.nan, high: float = math.nan) -> str:
    """A number with its interval, then `word` (`fewer` or `less`), or `more` if the number has the other direction."""
    if word and is_reversed(value, form):
        (value, low, high), word = _reversed(value, low, high, form), "more"
    return f"{number(value, form)}{interval(low, high, form)} {word}".rstrip()


def is_reversed(value: float, form: str) -> bool:
    """Test for a number of percent or times fewer that means more."""
    return value < (0 if form == "percent fewer" else 1)


def _reversed(value: float, low: float, high: float, form: str) -> tuple[float, float, float]:
    """A number and its interval for `more` instead of `fewer`; the ends are swapped."""
    return (-value, -high, -low) if form == "percent fewer" else (1 / value, 1 / high, 1 / low)


def in_form(value: float, form: str) -> float:
    """Convert a table's number to a headline's form: a ratio of 0.31 is 69 % fewer."""
    return 100 * (1 - value) if form == "percent fewer" else value


def number(value: float, form: str) -> str:
    """A number with its unit; differences always have a sign, and † is a target that was never reached."""
    if not math.isfinite(value):
        return "†" if math.isinf(value) else "–"
    sign = "+" if form == "points" else ""
    return f"{value:{sign}.{DECIMALS[form]}f}".replace("-", MINUS) + UNIT[form]


def interval(low: float, high: float, form: str) -> str:
    """The interval in brackets after a space; empty if there is none."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{low:.{DECIMALS[form]}f}, {high:.{DECIMALS[form]}f}]".replace("-", MINUS)


def verdict_words(cell: pd.Series, uneven: TimingSpread | None) -> str:
    """The verdict on a table's cell as the end of a sentence; `uneven`: spread of times that cannot be judged."""
    verdict, seeds = cell["verdict"], int(cell["n_seeds"])
    several = counted(seeds, "seed")
    # Also where the paper gives no number: the effect itself is one of times.
    if verdict in (UNEVEN, NOT_COMPARABLE) and uneven:
        return f"not decided, since {uneven.text}"
    uncorrected = cell["p"] <= LEVEL < cell["p_corrected"]
    open_ = f"inconclusive with {several}" + (", not significant after correction" if uncorrected else "")
    if verdict == NOT_COMPARABLE:
        effect = f"an effect with {several}; no paper has a comparable number"
        return effect if cell["p_corrected"] <= LEVEL else open_
    return {
        AGREES: "agrees with the paper",
        "same direction": "same direction as in the paper, different size",
        DIFFERS: "differs from the paper",
        "opposite direction": "the opposite of the paper's direction",
        INCONCLUSIVE: open_,
    }.get(verdict, str(verdict))


def as_data(found: Sequence[HeadlineNumber]) -> list[dict[str, Any]]:
    """The points for JSON, null for NaN and infinity."""
    return [
        {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(p).items()} for p in found
    ]
