"""Comparisons of each kind of claim: a test and a source of values become parts, each a number by seed and a
threshold. Runs and reported tables go through the same functions; a reported table is one seed."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scipy import stats

from redraft.analysis.data.statistics import NEUTRAL, estimate, paired
from redraft.config import (
    Bound,
    Compare,
    Correlation,
    Extreme,
    Fluctuation,
    Monotone,
    Pairs,
    Peak,
    Range,
    Test,
    Trend,
)

FEWEST = 3
"""Cells or pairs of a claim about several that must have values; those without are named in the evidence."""

BySeed = Mapping[int, float]


class Source(Protocol):
    """A source of values."""

    def values(self, quantity: str, cell: str) -> BySeed:
        """A quantity of a cell by seed, no NaN; empty if there is none."""
        ...

    def trajectory(self, quantity: str, cell: str) -> Mapping[int, Sequence[float]]:
        """A quantity of each kept policy of a cell in the order of training, by seed; empty if there is none."""
        ...


@dataclass(frozen=True)
class Part:
    """One comparison: `values` should lie on the side `expected` (`above` or `below`) of `threshold`."""

    label: str
    values: BySeed
    expected: str
    threshold: float


@dataclass(frozen=True)
class Question:
    """The question of a test.

    Attributes:
        parts: its comparisons.
        needed: how many of them must hold.
        total: how many there would be if every cell had values.
        absent: cells without values.
        summary: what a reader should see before the parts.
    """

    parts: list[Part]
    needed: int
    total: int
    absent: list[str]
    summary: str = ""

    @property
    def answerable(self) -> bool:
        """True if enough of the cells have values."""
        return bool(self.parts) and all(part.values for part in self.parts)


def question(test: Test, source: Source) -> Question:
    """The parts of a test, with their values."""
    match test:
        case Compare():
            return _compare(test, source)
        case Pairs():
            return _pairs(test, source)
        case Monotone():
            return _monotone(test, source)
        case Peak():
            return _peak(test, source)
        case Extreme():
            return _extreme(test, source)
        case Bound():
            return _bound(test, source)
        case Range():
            return _range(test, source)
        case Correlation():
            return _correlation(test, source)
        case Trend():
            return _trend(test, source)
        case Fluctuation():
            return _fluctuation(test, source)


def cells_of(test: Test) -> list[str]:
    """The cells that a test is about, each once, in the test's order."""
    match test:
        case Compare(cell=cell, baseline=baseline) | Fluctuation(cell=cell, baseline=baseline):
            cells = [cell, baseline]
        case Monotone(cells=several) | Range(cells=several) | Trend(cells=several):
            cells = several
        case Peak(cell=cell, others=others):
            cells = [cell, *others]
        case Bound(cell=cell):
            cells = [cell]
        case Pairs(pairs=pairs) | Correlation(pairs=pairs):
            cells = [cell for pair in pairs for cell in pair]
        case Extreme(pair=pair, others=pairs):
            cells = [cell for each in (pair, *pairs) for cell in each]
    return list(dict.fromkeys(cells))


def _all(parts: list[Part], cells: Sequence[str], absent: Sequence[str] = (), summary: str = "") -> Question:
    """A question of which every part must hold; without values, all its cells are named as absent."""
    missing = list(absent) or ([] if all(part.values for part in parts) else list(cells))
    return Question(parts, len(parts), len(parts), missing, summary)


def _sides(label: str, values: BySeed, expected: str, threshold: float, relative: str) -> list[Part]:
    """One part, or two where a value should lie within a distance of the neutral one."""
    if expected != "within":
        return [Part(label, values, expected, threshold)]
    neutral = NEUTRAL[relative]
    return [Part(label, values, "above", neutral - threshold), Part(label, values, "below", neutral + threshold)]


def _related(quantity: str, over: str | None, pair: tuple[str, str], relative: str) -> str:
    sign = "/" if relative == "ratio" else "-"
    of = f"{over} of " if over else ""
    return f"{quantity} of {pair[0]} {sign} {of}{pair[1]}"


def _compare(test: Compare, source: Source) -> Question:
    own, other = source.values(test.quantity, test.cell), source.values(test.over or test.quantity, test.baseline)
    label = _related(test.quantity, test.over, (test.cell, test.baseline), test.relative)
    parts = _sides(label, paired(own, other, test.relative), test.expected, test.threshold, test.relative)
    absent = [cell for cell, values in ((test.cell, own), (test.baseline, other)) if not values]
    return _all(parts, [test.cell, test.baseline], list(dict.fromkeys(absent)))


def _by_pair(
    pairs: Sequence[tuple[str, str]], quantity: str, over: str | None, relative: str, source: Source
) -> tuple[dict[tuple[str, str], BySeed], list[str]]:
    """The relative quantity of each pair that has one, and the cells of those that have none."""
    found = {
        pair: paired(source.values(quantity, pair[0]), source.values(over or quantity, pair[1]), relative)
        for pair in pairs
    }
    absent = [
        cell
        for pair in pairs
        if not found[pair]
        for cell, name in zip(pair, (quantity, over or quantity), strict=True)
        if not source.values(name, cell)
    ]
    return {pair: values for pair, values in found.items() if values}, list(dict.fromkeys(absent))


def _pairs(test: Pairs, source: Source) -> Question:
    found, absent = _by_pair(test.pairs, test.quantity, test.over, test.relative, source)
    if len(found) < min(FEWEST, len(test.pairs)):
        return _unanswerable(test, absent)
    on = _on(len(found), len(test.pairs), "pairs")
    if test.statistic == "mean":
        label = f"mean over {len(found)} pairs of {_form(test.quantity, test.over, test.relative)}"
        return _all(_sides(label, _mean(found.values()), test.expected, test.threshold, test.relative), [], absent, on)
    parts = [
        part
        for pair, values in found.items()
        for part in _sides(_related(test.quantity, test.over, pair, test.relative), values, test.expected,
                           test.threshold, test.relative)
    ]  # fmt: skip
    if test.at_least:
        return Question(parts, test.at_least, len(test.pairs), absent, f"{on}of at least {test.at_least}: ")
    return _all(parts, [], absent, on)


def _form(quantity: str, over: str | None, relative: str) -> str:
    return f"{quantity}, cell {'/' if relative == 'ratio' else '-'} {over + ' of ' if over else ''}baseline"


def _mean(several: Iterable[BySeed]) -> dict[int, float]:
    """The mean of several values in each seed that all have."""
    values = list(several)
    seeds = set.intersection(*(set(each) for each in values))
    return {seed: math.fsum(each[seed] for each in values) / len(values) for seed in sorted(seeds)}


def _monotone(test: Monotone, source: Source) -> Question:
    found = {cell: source.values(test.quantity, cell) for cell in test.cells}
    present = [cell for cell in test.cells if found[cell]]
    absent = [cell for cell in test.cells if not found[cell]]
    if len(present) < min(FEWEST, len(test.cells)):
        return _unanswerable(test, absent)
    side = "above" if test.expected == "rises" else "below"
    parts = [
        Part(f"{later} - {earlier}", paired(found[later], found[earlier], "difference"), side, 0.0)
        for earlier, later in itertools.pairwise(present)
    ]
    path = " → ".join(f"{estimate(found[cell]).mean:.4g} ({cell})" for cell in present)
    on = _on(len(present), len(test.cells), "cells")
    return _all(parts, present, absent, f"{on}{test.quantity} {path}; asserted: {test.expected}; ")


def _peak(test: Peak, source: Source) -> Question:
    own = source.values(test.quantity, test.cell)
    found = {cell: source.values(test.quantity, cell) for cell in test.others}
    present = [cell for cell in test.others if found[cell]]
    absent = [cell for cell, values in ((test.cell, own), *found.items()) if not values]
    if not own or not present:
        return _unanswerable(test, absent)
    parts = [Part(f"{test.cell} - {cell}", paired(own, found[cell], "difference"), "above", 0.0) for cell in present]
    on = _on(len(present) + 1, len(test.others) + 1, "cells")
    return _all(parts, [], absent, f"{on}{test.quantity}, {test.cell} asserted the highest; ")


def _extreme(test: Extreme, source: Source) -> Question:
    found, absent = _by_pair([test.pair, *test.others], test.quantity, test.over, test.relative, source)
    if test.pair not in found or len(found) == 1:
        return _unanswerable(test, absent)
    side = "above" if test.expected == "highest" else "below"
    parts = [
        Part(f"{test.pair[0]} - {pair[0]}", paired(found[test.pair], values, "difference"), side, 0.0)
        for pair, values in found.items()
        if pair != test.pair
    ]
    on = _on(len(found), len(test.others) + 1, "pairs")
    own = f"{estimate(found[test.pair]).mean:.4g} ({test.pair[0]})"
    form = _form(test.quantity, test.over, test.relative)
    return _all(parts, [], absent, f"{on}{form}: {own} asserted the {test.expected}; ")


def _bound(test: Bound, source: Source) -> Question:
    values = source.values(test.quantity, test.cell)
    part = Part(f"{test.quantity} of {test.cell}", values, test.expected, test.threshold)
    return _all([part], [test.cell])


def _range(test: Range, source: Source) -> Question:
    found = {cell: source.values(test.quantity, cell) for cell in test.cells}
    present = [cell for cell in test.cells if found[cell]]
    absent = [cell for cell in test.cells if not found[cell]]
    if len(present) < min(FEWEST, len(test.cells)):
        return _unanswerable(test, absent)
    parts = [
        Part(f"{test.quantity} of {cell}", found[cell], side, limit)
        for cell in present
        for side, limit in (("above", test.low), ("below", test.high))
    ]
    return _all(parts, present, absent, _on(len(present), len(test.cells), "cells"))


def _correlation(test: Correlation, source: Source) -> Question:
    first, absent = _by_pair(test.pairs, test.quantity, None, test.relative, source)
    second, also_absent = _by_pair(test.pairs, test.other, None, test.other_relative or test.relative, source)
    pairs = [pair for pair in test.pairs if pair in first and pair in second]
    missing = list(dict.fromkeys([*absent, *also_absent]))
    if len(pairs) < FEWEST:
        return _unanswerable(test, missing)
    seeds = set.intersection(*(set(each[pair]) for each in (first, second) for pair in pairs))
    values = {
        seed: float(stats.spearmanr([first[pair][seed] for pair in pairs], [second[pair][seed] for pair in pairs])[0])
        for seed in sorted(seeds)
    }
    label = f"rank correlation of {test.quantity} and {test.other} over {len(pairs)} pairs"
    finite = {seed: value for seed, value in values.items() if not math.isnan(value)}
    part = Part(label, finite, test.expected, test.threshold)
    return _all([part], [], missing, _on(len(pairs), len(test.pairs), "pairs"))


def _trend(test: Trend, source: Source) -> Question:
    parts, absent = [], []
    for cell in test.cells:
        found = [source.values(quantity, cell) for quantity in test.quantities]
        if not all(found):
            absent.append(cell)
            continue
        for (earlier, later), direction in zip(itertools.pairwise(range(len(found))), test.expected, strict=True):
            label = f"{test.quantities[later]} - {test.quantities[earlier]} of {cell}"
            side = "above" if direction == "rises" else "below"
            parts.append(Part(label, paired(found[later], found[earlier], "difference"), side, 0.0))
    return _all(parts, [], absent, _on(len(test.cells) - len(absent), len(test.cells), "cells"))


def _fluctuation(test: Fluctuation, source: Source) -> Question:
    falls = {cell: _largest_falls(source.trajectory(test.quantity, cell)) for cell in (test.cell, test.baseline)}
    label = f"largest fall of {test.quantity} between successive evaluations, {test.cell} - {test.baseline}"
    values = paired(falls[test.cell], falls[test.baseline], "difference")
    absent = [cell for cell, fall in falls.items() if not fall]
    return _all([Part(label, values, "above", 0.0)], [test.cell, test.baseline], absent)


def _largest_falls(trajectories: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """By seed, the largest fall from one value to the next; below zero if it always rises. Needs two values."""
    return {
        seed: max(earlier - later for earlier, later in itertools.pairwise(values))
        for seed, values in trajectories.items()
        if len(values) > 1
    }


def _unanswerable(test: Test, absent: Sequence[str]) -> Question:
    return Question([], 0, 0, list(absent) or cells_of(test))


def _on(present: int, total: int, what: str) -> str:
    return f"on {present} of {total} {what}: " if present < total else ""
