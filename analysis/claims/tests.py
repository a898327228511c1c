"""Comparisons of each kind of claim: a test and a source of values become parts, each a number by seed and a
threshold. Runs and reported tables go through the same functions; a reported table is one seed."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scipy import stats

from redraft.analysis.data.quantities import bound_of
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
    Several,
    Test,
    Trend,
    Unmeasured,
)
from redraft.config.claims import cells_of

FEWEST = 3
"""Cells or pairs of a claim about several that must have values; those without are named in the evidence."""

SIDE = {"rises": "above", "falls": "below", "highest": "above", "lowest": "below"}
"""What is asserted of two values to the side of zero on which their difference lies."""

BySeed = Mapping[int, float]


class ValueSource(Protocol):
    """A source of values."""

    def values(self, quantity: str, cell: str) -> BySeed:
        """A quantity of a cell by seed, no NaN; empty if there is none."""
        ...

    def trajectory(self, quantity: str, cell: str) -> Mapping[int, Sequence[float]]:
        """A quantity of each kept policy of a cell in the order of training, by seed; empty if there is none."""
        ...


@dataclass(frozen=True)
class Comparison:
    """One comparison: `values` should lie on the side `expected` (`above` or `below`) of `threshold`.

    Attributes:
        tie: whether the threshold itself is on the side, as where it is a tolerance ("not more than a point below").
        bound: `floor` or `ceiling` if all that is compared is there, so that no difference could show; else empty.
    """

    label: str
    values: BySeed
    expected: str
    threshold: float
    tie: bool = False
    bound: str = ""


@dataclass(frozen=True)
class ComparisonSet:
    """The question of a test.

    Attributes:
        parts: its comparisons.
        needed: how many of them must hold.
        total: how many there would be if every cell had values.
        absent: cells without values.
        summary: what a reader should see before the parts.
    """

    parts: list[Comparison]
    needed: int
    total: int
    absent: list[str]
    summary: str = ""

    @property
    def answerable(self) -> bool:
        """True if enough of the cells have values."""
        return bool(self.parts) and all(part.values for part in self.parts)


def comparison_set(test: Test, source: ValueSource) -> ComparisonSet:
    """The parts of a test, with their values."""
    match test:
        case Compare():
            return _pairs(test, [(test.cell, test.baseline)], source)
        case Pairs():
            return _pairs(test, test.pairs, source)
        case Monotone():
            return _monotone(test, source)
        case Peak():
            return _peak(test, source)
        case Extreme():
            return _extreme(test, source)
        case Bound():
            return _limits(test, [test.cell], [(test.expected, test.threshold)], source)
        case Range():
            return _limits(test, test.cells, [("above", test.low), ("below", test.high)], source)
        case Correlation():
            return _correlation(test, source)
        case Trend():
            return _trend(test, source)
        case Fluctuation():
            return _fluctuation(test, source)
        case Several():
            return _several(test, source)
        case Unmeasured():
            return ComparisonSet([], 0, 0, [])


def _all(parts: list[Comparison], absent: Sequence[str], summary: str = "") -> ComparisonSet:
    """A question of which every part must hold."""
    return ComparisonSet(parts, len(parts), len(parts), list(absent), summary)


def _sides(label: str, values: BySeed, test: Compare | Pairs, bound: str) -> list[Comparison]:
    """One part, or two where a value should lie within a distance of the neutral one."""
    neutral = NEUTRAL[test.relative]
    if test.expected != "within":
        tolerance = test.threshold < neutral if test.expected == "above" else test.threshold > neutral
        return [Comparison(label, values, test.expected, test.threshold, tolerance, bound)]
    return [
        Comparison(label, values, "above", neutral - test.threshold, tie=True, bound=bound),
        Comparison(label, values, "below", neutral + test.threshold, tie=True, bound=bound),
    ]


def _bound_of_pairs(
    test: Compare | Pairs | Extreme, pairs: Iterable[tuple[str, str]], source: ValueSource, margin: float = 0.0
) -> str:
    """The same of all cells and baselines of these pairs."""
    over = test.over or test.quantity
    sides = [side for own, other in pairs for side in (source.values(test.quantity, own), source.values(over, other))]
    return bound_of([test.quantity, over], sides, margin)


def _margin(test: Compare | Pairs) -> float:
    """Tolerance of a difference; 0 for a ratio."""
    return abs(test.threshold) if test.relative == "difference" else 0.0


def _related(test: Compare | Pairs | Extreme, cell: str = "cell", baseline: str = "baseline") -> str:
    """`cell minus baseline, quantity`, or both quantities where the baseline's is another one."""
    relation = "divided by" if test.relative == "ratio" else "minus"
    if test.over:
        return f"{test.quantity} of {cell} {relation} {test.over} of {baseline}"
    return f"{cell} {relation} {baseline}, {test.quantity}"


def _of_cells(quantity: str, cells: Sequence[str], source: ValueSource) -> tuple[dict[str, BySeed], list[str]]:
    """A quantity of each cell that has one, and the cells that have none."""
    found = {cell: source.values(quantity, cell) for cell in cells}
    return {cell: values for cell, values in found.items() if values}, [cell for cell in found if not found[cell]]


def _by_pair(
    pairs: Sequence[tuple[str, str]], quantity: str, over: str | None, relative: str, source: ValueSource
) -> tuple[dict[tuple[str, str], BySeed], list[str]]:
    """The relative quantity of each pair that has one, and the cells of those that have none."""
    found: dict[tuple[str, str], BySeed] = {}
    absent: list[str] = []
    for pair in pairs:
        own, other = source.values(quantity, pair[0]), source.values(over or quantity, pair[1])
        if values := paired(own, other, relative):
            found[pair] = values
        else:
            absent += [cell for cell, values in zip(pair, (own, other), strict=True) if not values]
    return found, list(dict.fromkeys(absent))


def _pairs(test: Compare | Pairs, pairs: Sequence[tuple[str, str]], source: ValueSource) -> ComparisonSet:
    found, absent = _by_pair(pairs, test.quantity, test.over, test.relative, source)
    if len(found) < min(FEWEST, len(pairs)):
        return _unanswerable(test, absent)
    on = _on(len(found), len(pairs), "pairs")

    def bound(pairs: Iterable[tuple[str, str]]) -> str:
        quantities = [test.quantity, test.over or test.quantity]
        sides = [
            source.values(quantity, cell) for pair in pairs for quantity, cell in zip(quantities, pair, strict=True)
        ]
        return bound_of(quantities, sides, _margin(test))

    if isinstance(test, Pairs) and test.statistic == "mean":
        label = f"mean over {len(found)} pairs of {_related(test)}"
        seeds = sorted(set.intersection(*(set(values) for values in found.values())))
        means = {seed: math.fsum(values[seed] for values in found.values()) / len(found) for seed in seeds}
        return _all(_sides(label, means, test, _bound_of_pairs(test, found, source, _margin(test))), absent, on)
    parts = [
        part
        for (cell, baseline), values in found.items()
        for part in _sides(
            _related(test, cell, baseline),
            values,
            test,
            _bound_of_pairs(test, [(cell, baseline)], source, _margin(test)),
        )
    ]
    if isinstance(test, Pairs) and test.at_least:
        return ComparisonSet(parts, test.at_least, len(pairs), absent, f"{on}at least {test.at_least} must hold: ")
    return _all(parts, absent, on)


def _several(test: Several, source: ValueSource) -> ComparisonSet:
    sets = [comparison_set(each, source) for each in test.tests]
    answered = [each for each in sets if each.answerable]
    absent = list(dict.fromkeys(cell for each in sets if not each.answerable for cell in each.absent))
    if len(answered) < min(FEWEST, len(sets)):
        return _unanswerable(test, absent)
    parts = [part for each in answered for part in each.parts]
    on = _on(len(answered), len(sets), "comparisons")
    return ComparisonSet(parts, test.at_least, len(sets), absent, f"{on}at least {test.at_least} must hold: ")


def _difference(label: str, quantity: str, values: BySeed, others: BySeed, expected: str) -> Comparison:
    """Whether values are above or below others."""
    bound = bound_of([quantity], (values, others))
    return Comparison(label, paired(values, others, "difference"), expected, 0.0, bound=bound)


def _monotone(test: Monotone, source: ValueSource) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, test.cells, source)
    if len(found) < min(FEWEST, len(test.cells)):
        return _unanswerable(test, absent)
    parts = [
        _difference(f"{later} minus {earlier}", test.quantity, found[later], found[earlier], SIDE[test.expected])
        for earlier, later in itertools.pairwise(found)
    ]
    path = " → ".join(f"{estimate(values).mean:.4g} ({cell})" for cell, values in found.items())
    on, missing = _on(len(found), len(test.cells), "cells"), [] if all(part.values for part in parts) else list(found)
    return _all(parts, absent or missing, f"{on}{test.quantity} {path}; claimed: {test.expected}; ")


def _peak(test: Peak, source: ValueSource) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, [test.cell, *test.others], source)
    own = found.pop(test.cell, None)
    if not own or not found:
        return _unanswerable(test, absent)
    parts = [
        _difference(f"{test.cell} minus {cell}", test.quantity, own, values, "above") for cell, values in found.items()
    ]
    on = _on(len(found) + 1, len(test.others) + 1, "cells")
    return _all(parts, absent, f"{on}{test.quantity}, {test.cell} claimed the highest; ")


def _extreme(test: Extreme, source: ValueSource) -> ComparisonSet:
    pairs = [test.pair, *test.others]
    found, absent = _by_pair(pairs, test.quantity, test.over, test.relative, source)
    on, own = _on(len(found), len(pairs), "pairs"), found.pop(test.pair, None)
    if not own or not found:
        return _unanswerable(test, absent)
    parts = [
        Comparison(
            f"{test.pair[0]} minus {pair[0]}",
            paired(own, values, "difference"),
            SIDE[test.expected],
            0.0,
            bound=_bound_of_pairs(test, [test.pair, pair], source),
        )
        for pair, values in found.items()
    ]
    mean = f"{estimate(own).mean:.4g} ({test.pair[0]})"
    return _all(parts, absent, f"{on}{_related(test)}: {mean} claimed the {test.expected}; ")


def _limits(
    test: Bound | Range, cells: Sequence[str], limits: Sequence[tuple[str, float]], source: ValueSource
) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, cells, source)
    if len(found) < min(FEWEST, len(cells)):
        return _unanswerable(test, absent)
    parts = [
        Comparison(f"{test.quantity} of {cell}", values, side, limit)
        for cell, values in found.items()
        for side, limit in limits
    ]
    return _all(parts, absent, _on(len(found), len(cells), "cells"))


def _correlation(test: Correlation, source: ValueSource) -> ComparisonSet:
    first, absent = _by_pair(test.pairs, test.quantity, None, test.relative, source)
    second, also_absent = _by_pair(test.pairs, test.other, None, test.other_relative or test.relative, source)
    pairs = [pair for pair in test.pairs if pair in first and pair in second]
    missing = list(dict.fromkeys([*absent, *also_absent]))
    if len(pairs) < FEWEST:
        return _unanswerable(test, missing)
    values = {}
    for seed in sorted(set.intersection(*(set(each[pair]) for each in (first, second) for pair in pairs))):
        ranked = stats.spearmanr(*([each[pair][seed] for pair in pairs] for each in (first, second)))[0]
        if not math.isnan(ranked):
            values[seed] = float(ranked)
    label = f"rank correlation of {test.quantity} and {test.other} over {len(pairs)} pairs"
    return _all(
        [Comparison(label, values, test.expected, test.threshold)], missing, _on(len(pairs), len(test.pairs), "pairs")
    )


def _trend(test: Trend, source: ValueSource) -> ComparisonSet:
    parts, absent = [], []
    for cell in test.cells:
        found = [source.values(quantity, cell) for quantity in test.quantities]
        if not all(found):
            absent.append(cell)
            continue
        for (earlier, later), direction in zip(itertools.pairwise(range(len(found))), test.expected, strict=True):
            label = f"{test.quantities[later]} minus {test.quantities[earlier]} of {cell}"
            parts.append(
                Comparison(
                    label,
                    paired(found[later], found[earlier], "difference"),
                    SIDE[direction],
                    0.0,
                    bound=bound_of(test.quantities, (found[later], found[earlier])),
                )
            )
    return _all(parts, absent, _on(len(test.cells) - len(absent), len(test.cells), "cells"))


def _fluctuation(test: Fluctuation, source: ValueSource) -> ComparisonSet:
    """Largest fall by seed from one value to the next, below zero if it always rises; needs two values."""
    paths = {cell: source.trajectory(test.quantity, cell) for cell in (test.cell, test.baseline)}
    falls = {
        cell: {
            seed: max(earlier - later for earlier, later in itertools.pairwise(values))
            for seed, values in path.items()
            if len(values) > 1
        }
        for cell, path in paths.items()
    }
    label = f"largest fall of {test.quantity} between successive evaluations, {test.cell} minus {test.baseline}"
    values = paired(falls[test.cell], falls[test.baseline], "difference")
    absent = [cell for cell, fall in falls.items() if not fall]
    bound = bound_of([test.quantity], [dict(enumerate(each)) for path in paths.values() for each in path.values()])
    return _all([Comparison(label, values, "above", 0.0, bound=bound)], absent or ([] if values else list(falls)))


def _unanswerable(test: Test, absent: Sequence[str]) -> ComparisonSet:
    return ComparisonSet([], 0, 0, list(absent) or cells_of(test))


def _on(present: int, total: int, what: str) -> str:
    return f"{present} of {total} {what} have values: " if present < total else ""
