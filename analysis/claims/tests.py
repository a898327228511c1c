"""Comparisons of each kind of claim: a test and a source of values become parts, each a number by seed and a
threshold. Runs and reported tables go through the same functions; a reported table is one seed."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scipy import stats

from redraft.analysis.data.quantities import bound_of
from redraft.analysis.data.statistics import NEUTRAL, NO_BLOCKS, RATIOS, Blocks, estimate, paired
from redraft.analysis.data.words import difference_of, joined, number, stage_of, words
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
from redraft.config.claims import margin_of

FEWEST = 3
"""Cells or pairs of a claim about several that must have values; those without are named in the evidence."""
FEWEST_RANKED = 5
"""Pairs of a rank correlation that must have values: over three, unrelated values have the same coefficient in all of
three seeds in 8 % of cases, over five in 0.4 %, and equal coefficients leave no variance to test."""

SIDE = {"rises": "above", "falls": "below", "highest": "above", "lowest": "below"}
"""What is asserted of two values to the side of zero on which their difference lies."""

BySeed = Mapping[int, float]


class ValueSource(Protocol):
    """A source of values."""

    @property
    def blocks(self) -> Blocks:
        """Blocks of its seeds."""
        ...

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
        bound: reason why the values cannot be tested (`bound_of`); else empty.
        is_ratio: whether the values are ratios.
    """

    label: str
    values: BySeed
    expected: str
    threshold: float
    tie: bool = False
    bound: str = ""
    is_ratio: bool = False

    @property
    def limit(self) -> str:
        """The required side and its threshold in words."""
        side = {"above": "at least", "below": "at most"}[self.expected] if self.tie else self.expected
        return f"{side} {self.threshold:g}"


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


@dataclass(frozen=True)
class _Unknown:
    """A source in which every value is NaN."""

    @property
    def blocks(self) -> Blocks:
        return NO_BLOCKS

    def values(self, quantity: str, cell: str) -> BySeed:
        return {0: math.nan}

    def trajectory(self, quantity: str, cell: str) -> Mapping[int, Sequence[float]]:
        return {0: [math.nan, math.nan]}


def requirement(test: Test) -> str:
    """What a test requires, without values; empty for what is not measured."""
    match test:
        case Unmeasured():
            return ""
        case Monotone():
            return f"{words(test.quantity).text}: {test.expected} from each cell to the next, {' → '.join(test.cells)}"
        case Peak():
            return f"{words(test.quantity).text} is highest for {test.cell}, compared with {'; '.join(test.others)}"
        case Extreme():
            others = "; ".join(_pair(test, *pair) for pair in test.others)
            return f"{_related(test, *test.pair)}, is the {test.expected}, compared with {others}"
        case Several():
            return f"at least {test.at_least} of: {'; '.join(map(requirement, test.tests))}"
        case _:
            comparisons = comparison_set(test, _Unknown())
            limits: dict[str, list[str]] = {}
            for part in comparisons.parts:
                limits.setdefault(part.label, []).append(part.limit)
            return comparisons.summary + "; ".join(f"{label}: {' and '.join(each)}" for label, each in limits.items())


def _all(parts: list[Comparison], absent: Sequence[str], summary: str = "") -> ComparisonSet:
    """A question of which every part must hold."""
    return ComparisonSet(parts, len(parts), len(parts), list(absent), summary)


def _sides(label: str, values: BySeed, test: Compare | Pairs, bound: str) -> list[Comparison]:
    """One part, or two where a value should lie within a distance of the neutral one."""
    neutral, is_ratio = NEUTRAL[test.relative], test.relative in RATIOS
    if test.expected != "within":
        return [Comparison(label, values, test.expected, test.threshold, _is_tolerance(test), bound, is_ratio)]
    return [
        # An equivalence test: the interval must lie between both limits, since “not significant” is not “equal”.
        Comparison(label, values, "above", neutral - test.threshold, True, bound, is_ratio),
        Comparison(label, values, "below", neutral + test.threshold, True, bound, is_ratio),
    ]


def _bound_of_pairs(
    test: Compare | Pairs | Extreme, pairs: Iterable[tuple[str, str]], source: ValueSource, margin: float = 0.0
) -> str:
    """`bound_of` for the values of all cells and baselines of these pairs."""
    over = test.over or test.quantity
    sides = [side for own, other in pairs for side in (source.values(test.quantity, own), source.values(over, other))]
    return bound_of([test.quantity, over], sides, margin, source.blocks)


def _is_tolerance(test: Compare | Pairs) -> bool:
    """True if the threshold is on the other side of “no effect” (at most a point below): a value on it is enough.

    On the expected side it is an effect, which must be exceeded.
    """
    neutral = NEUTRAL[test.relative]
    # A share, such as that of a step's time, has no such value.
    return not test.over and (test.threshold < neutral if test.expected == "above" else test.threshold > neutral)


def _related(test: Compare | Pairs | Extreme, cell: str, baseline: str) -> str:
    """`quantity, cell minus baseline`, or both quantities where the baseline's is another one; a ratio has no unit."""
    own, over, is_ratio = words(test.quantity), words(test.over or test.quantity), test.relative == "ratio"
    if not test.over:
        pair = _pair(test, cell, baseline)
        return f"ratio of {own.name}, {pair}" if is_ratio else f"{own.of_differences}, {pair}"
    if cell == baseline:
        if is_ratio and stage_of(test.over) == "total" and (stage := stage_of(test.quantity)):
            return f"{stage.replace('_', ' ')}'s share of the step time, {cell}"
        both = joined(test.quantity, "/", test.over) if is_ratio else difference_of(test.over, test.quantity)
        return f"{both}, {cell}"
    return f"{own.name} of {cell} {'/' if is_ratio else 'minus'} {over.name} of {baseline}"


def _pair(test: Compare | Pairs | Extreme, cell: str, baseline: str) -> str:
    """`cell / baseline` or `cell minus baseline`; of one cell its name."""
    return cell if cell == baseline else f"{cell} {'/' if test.relative == 'ratio' else 'minus'} {baseline}"


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
        values = paired(own, other, relative)
        # A ratio to 0 in every seed is no value.
        if values and (relative != "ratio" or any(other[seed] for seed in values)):
            found[pair] = values
        else:
            absent += [cell for cell, values in zip(pair, (own, other), strict=True) if not values]
    return found, list(dict.fromkeys(absent))


def _pairs(test: Compare | Pairs, pairs: Sequence[tuple[str, str]], source: ValueSource) -> ComparisonSet:
    found, absent = _by_pair(pairs, test.quantity, test.over, test.relative, source)
    if len(found) < min(FEWEST, len(pairs)):
        return _unanswerable(absent)
    on = _on(len(found), len(pairs), "pairs")
    if isinstance(test, Pairs) and test.statistic == "mean":
        others = len(found) - 1
        label = f"{_related(test, *next(iter(found)))}, mean over this and {others} similar pair{'s' * (others > 1)}"
        seeds = sorted(set.intersection(*(set(values) for values in found.values())))
        # Arithmetic over pairs, as papers' averages of speedups are; over seeds ratios are averaged by logarithms.
        means = {seed: math.fsum(values[seed] for values in found.values()) / len(found) for seed in seeds}
        bound = _bound_of_pairs(test, found, source, margin_of(test) or 0.0)
        return _all(_sides(label, means, test, bound), absent, on)
    parts = [
        part
        for (cell, baseline), values in found.items()
        for part in _sides(
            _related(test, cell, baseline),
            values,
            test,
            _bound_of_pairs(test, [(cell, baseline)], source, margin_of(test) or 0.0),
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
        return _unanswerable(absent)
    parts = [part for each in answered for part in each.parts]
    on = _on(len(answered), len(sets), "comparisons")
    return ComparisonSet(parts, test.at_least, len(sets), absent, f"{on}at least {test.at_least} must hold: ")


def _difference(
    label: str, quantities: Sequence[str], sides: tuple[BySeed, BySeed], expected: str, source: ValueSource
) -> Comparison:
    """Whether the first side's values are above or below the second's."""
    bound = bound_of(quantities, sides, blocks=source.blocks)
    return Comparison(label, paired(*sides, "difference"), expected, 0.0, bound=bound)


def _monotone(test: Monotone, source: ValueSource) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, test.cells, source)
    if len(found) < min(FEWEST, len(test.cells)):
        return _unanswerable(absent)
    parts = [
        _difference(
            f"{later} minus {earlier}", [test.quantity], (found[later], found[earlier]), SIDE[test.expected], source
        )
        # Neighbours among the cells that were run: one without runs is left out, and those around it are compared.
        for earlier, later in itertools.pairwise(found)
    ]
    path = " → ".join(f"{number(estimate(values, source.blocks).mean)} ({cell})" for cell, values in found.items())
    on = _on(len(found), len(test.cells), "cells")
    return _all(parts, absent, f"{on}{words(test.quantity).text}: {path}, required: {test.expected}; ")


def _peak(test: Peak, source: ValueSource) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, [test.cell, *test.others], source)
    own = found.pop(test.cell, None)
    if not own or len(found) + 1 < min(FEWEST, len(test.others) + 1):
        return _unanswerable(absent)
    parts = [
        _difference(f"{test.cell} minus {cell}", [test.quantity], (own, values), "above", source)
        for cell, values in found.items()
    ]
    on = _on(len(found) + 1, len(test.others) + 1, "cells")
    return _all(parts, absent, f"{on}{words(test.quantity).text}, required: highest for {test.cell}; ")


def _extreme(test: Extreme, source: ValueSource) -> ComparisonSet:
    pairs = [test.pair, *test.others]
    found, absent = _by_pair(pairs, test.quantity, test.over, test.relative, source)
    on, own = _on(len(found), len(pairs), "pairs"), found.pop(test.pair, None)
    if not own or len(found) + 1 < min(FEWEST, len(pairs)):
        return _unanswerable(absent)
    parts = [
        Comparison(
            f"difference from that of {_pair(test, *pair)}",
            # A difference of two ratios may be negative, so it is not tested by logarithms.
            paired(own, values, "difference"),
            SIDE[test.expected],
            0.0,
            bound=_bound_of_pairs(test, [test.pair, pair], source),
        )
        for pair, values in found.items()
    ]
    mean = number(estimate(own, source.blocks, test.relative in RATIOS).mean)
    return _all(parts, absent, f"{on}{_related(test, *test.pair)}: {mean}, required: {test.expected}; ")


def _limits(
    test: Bound | Range, cells: Sequence[str], limits: Sequence[tuple[str, float]], source: ValueSource
) -> ComparisonSet:
    found, absent = _of_cells(test.quantity, cells, source)
    if len(found) < min(FEWEST, len(cells)):
        return _unanswerable(absent)
    parts = [
        Comparison(
            f"{words(test.quantity).text}, {cell}", values, side, limit, bound=bound_of([], [values], 0, source.blocks)
        )
        for cell, values in found.items()
        for side, limit in limits
    ]
    return _all(parts, absent, _on(len(found), len(cells), "cells"))


def _correlation(test: Correlation, source: ValueSource) -> ComparisonSet:
    first, absent = _by_pair(test.pairs, test.quantity, None, test.relative, source)
    second, also_absent = _by_pair(test.pairs, test.other, None, test.other_relative or test.relative, source)
    pairs = [pair for pair in test.pairs if pair in first and pair in second]
    missing = list(dict.fromkeys([*absent, *also_absent]))
    if len(pairs) < min(FEWEST_RANKED, len(test.pairs)):
        return _unanswerable(missing)
    values = {}
    # One coefficient a seed and a test over seeds: the pairs of a seed share its problems and initial policy.
    for seed in sorted(set.intersection(*(set(each[pair]) for each in (first, second) for pair in pairs))):
        ranked = stats.spearmanr(*([each[pair][seed] for pair in pairs] for each in (first, second)))[0]
        # Values that are all equal have no ranks.
        if not math.isnan(ranked):
            values[seed] = float(ranked)
    relations = zip((test.quantity, test.other), (test.relative, test.other_relative or test.relative), strict=True)
    both = " and ".join(
        f"the {relation} of {words(quantity).name}"
        if relation in RATIOS
        else f"the {words(quantity).name} minus the baseline's"
        for quantity, relation in relations
    )
    sides = [
        source.values(quantity, cell) for quantity in (test.quantity, test.other) for pair in pairs for cell in pair
    ]
    bound = bound_of([], sides, 0, source.blocks)
    label = f"rank correlation, over {len(pairs)} pairs such as {' against '.join(pairs[0])}, between {both}"
    part = Comparison(label, values, test.expected, test.threshold, bound=bound)
    return _all([part], missing, _on(len(pairs), len(test.pairs), "pairs"))


def _trend(test: Trend, source: ValueSource) -> ComparisonSet:
    parts, absent = [], []
    for cell in test.cells:
        found = [source.values(quantity, cell) for quantity in test.quantities]
        if not all(found):
            absent.append(cell)
            continue
        for (earlier, later), direction in zip(itertools.pairwise(range(len(found))), test.expected, strict=True):
            label = f"{difference_of(test.quantities[earlier], test.quantities[later])}, {cell}"
            sides = (found[later], found[earlier])
            parts.append(_difference(label, test.quantities, sides, SIDE[direction], source))
    measured = len(test.cells) - len(absent)
    if measured < min(FEWEST, len(test.cells)):
        return _unanswerable(absent)
    return _all(parts, absent, _on(measured, len(test.cells), "cells"))


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
    quantity = words(test.quantity).of_differences
    label = f"largest fall of {quantity} between successive evaluations, {test.cell} minus {test.baseline}"
    values = paired(falls[test.cell], falls[test.baseline], "difference")
    absent = [cell for cell, fall in falls.items() if not fall]
    # Over all policies: a curve that only begins at 0 may fall later.
    ends = [{seed: end(path[seed]) for seed in falls[cell]} for cell, path in paths.items() for end in (min, max)]
    bound = bound_of([test.quantity], ends, blocks=source.blocks)
    return _all([Comparison(label, values, "above", 0.0, bound=bound)], absent)


def _unanswerable(absent: Sequence[str]) -> ComparisonSet:
    return ComparisonSet([], 0, 0, list(absent))


def _on(present: int, total: int, what: str) -> str:
    return f"{present} of {total} {what} have values: " if present < total else ""
