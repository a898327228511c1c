"""Configuration of claims: each has a quotation, a test on runs, and the numbers in the sentence."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import CellName, Config, distinct, invalid
from redraft.config.quantities import PrintedQuantity, RunQuantity, bounds_of_run, canonical
from redraft.config.tables import SignedScale

Pair = tuple[CellName, CellName]
"""A cell and its baseline."""

Relative = Literal["ratio", "difference"]
"""cell/baseline or cell-baseline, by seed."""

KeyPath = tuple[str | int, ...]
"""Path of a key below the validated model."""


def _check_pairs(pairs: Sequence[Pair], quantity: str, over: str | None, at: Sequence[KeyPath]) -> None:
    """Raise a ValueError if a pair compares a value with itself, or occurs twice; `at` has the path of each pair."""
    # Two spellings of one quantity are the same value.
    same = canonical(quantity) == canonical(over or quantity)
    for i, pair in enumerate(pairs):
        if same and pair[0] == pair[1]:
            raise invalid(f"{pair[0]} is compared with itself", "another cell, or another quantity in `over`", at[i])
        if pair in pairs[:i]:
            raise invalid(f"{pair[0]} and {pair[1]} are compared twice", "each pair once", at[i])


def _check_cells(cells: Sequence[str], at: Sequence[KeyPath]) -> None:
    """Raise a ValueError if a cell occurs twice, since it does not differ from itself; `at` has the path of each."""
    for i, cell in enumerate(cells):
        if cell in cells[:i]:
            raise invalid(f"{cell} is compared with itself", "each cell once", at[i])


def _check_side(expected: str, threshold: float, low: float, high: float, key: str = "threshold") -> None:
    """Raise a ValueError for a threshold that no value, or every value, is beyond; values are from `low` to `high`."""
    # `above` and `below` are strict, so nothing is above the largest value; the smallest may equal the threshold.
    never = threshold >= high if expected == "above" else threshold <= low
    always = threshold < low if expected == "above" else threshold > high
    if never or always:
        found = "can never hold" if never else "holds for every value"
        raise invalid(f"{expected} {threshold:g} {found}", f"values are from {low:g} to {high:g}", (key,))


def _check_relative(test: "Compare | Pairs") -> None:
    """Raise a ValueError for a threshold that no relative value, or every one, is beyond."""
    (low, high), (low_of_other, high_of_other) = map(bounds_of_run, (test.quantity, test.over or test.quantity))
    is_ratio = test.relative == "ratio"
    # Ranges of values subtract crosswise: the largest difference is the highest value less the baseline's lowest.
    low, high = (0.0, math.inf) if is_ratio else (low - high_of_other, high - low_of_other)
    # A ratio is at most 1 below its neutral value 1.
    farthest = 1.0 if is_ratio else max(-low, high)
    if test.expected == "within":
        if not 0 < test.threshold < farthest:
            found = "holds for every value" if test.threshold > 0 else "can never hold"
            allowed = f"above 0, below {farthest:g}" if math.isfinite(farthest) else "above 0"
            raise invalid(f"within {test.threshold:g} {found}", allowed, ("threshold",))
        return
    if is_ratio and test.threshold <= 0:
        raise invalid(f"a ratio is above 0, also above {test.threshold:g}", "above 0", ("threshold",))
    _check_side(test.expected, test.threshold, low, high)


class Compare(Config):
    """The paired difference (or ratio) between two cells is beyond a threshold."""

    kind: Literal["compare"] = "compare"
    quantity: RunQuantity
    """Quantity that is compared."""
    over: RunQuantity | None = None
    """The baseline's quantity, if it differs; with it two quantities of one cell can be compared."""
    cell: CellName
    """The cell the claim is about."""
    baseline: CellName
    """Cell to compare with."""
    relative: Relative = "difference"
    """cell/baseline or cell-baseline, by seed."""
    expected: Literal["above", "below", "within"]
    """Side of the threshold that the paper asserts; `within` is at most `threshold` from the neutral value (0 or 1)."""
    threshold: float
    """In the quantity's unit, or a ratio."""

    @model_validator(mode="after")
    def _decidable(self) -> "Compare":
        _check_pairs([(self.cell, self.baseline)], self.quantity, self.over, [("baseline",)])
        _check_relative(self)
        return self


class Pairs(Config):
    """Several comparisons: their mean is beyond a threshold, or each of them is, or at least n of them are."""

    kind: Literal["pairs"] = "pairs"
    quantity: RunQuantity
    """Quantity that is compared."""
    over: RunQuantity | None = None
    """The baselines' quantity, if it differs."""
    pairs: list[Pair] = Field(min_length=2)
    """Each a cell and its baseline."""
    relative: Relative = "difference"
    """cell/baseline or cell-baseline, by seed."""
    statistic: Literal["mean", "each"] = "each"
    """The mean over the pairs in each seed, or each pair separately."""
    at_least: int | None = Field(default=None, ge=1)
    """Number of pairs that must pass, if not all."""
    expected: Literal["above", "below", "within"]
    """Side of the threshold that the paper asserts; `within` is at most `threshold` from the neutral value (0 or 1)."""
    threshold: float
    """In the quantity's unit, or a ratio."""

    @model_validator(mode="after")
    def _countable(self) -> "Pairs":
        # `within` is two comparisons for each pair, so that a count of passes would mean something else.
        if self.at_least and (self.statistic == "mean" or self.expected == "within" or self.at_least > len(self.pairs)):
            raise invalid(
                f"at_least ({self.at_least}) counts pairs above or below, at most {len(self.pairs)}", at=("at_least",)
            )
        return self

    @model_validator(mode="after")
    def _decidable(self) -> "Pairs":
        _check_pairs(self.pairs, self.quantity, self.over, [("pairs", i) for i in range(len(self.pairs))])
        _check_relative(self)
        return self


def margin_of(test: "Test") -> float | None:
    """Difference that a test counts as none, as in "without loss"; None for ratios and where an effect is required.

    A bound on the expected side of 0 is an effect, and one on the other side a margin.
    """
    if not isinstance(test, Compare | Pairs) or test.relative != "difference":
        return None
    if test.expected == "within":
        return test.threshold
    if test.over:  # a share, such as that of a step's time, has no such value
        return None
    allowed = -test.threshold if test.expected == "above" else test.threshold
    return allowed if allowed > 0 else None


class Monotone(Config):
    """A quantity rises or falls along a sequence of cells."""

    kind: Literal["monotone"] = "monotone"
    quantity: RunQuantity
    """Quantity that is compared."""
    cells: list[CellName] = Field(min_length=2)
    """In the order in which the quantity should rise or fall."""
    expected: Literal["rises", "falls"]
    """Direction along `cells`."""

    @model_validator(mode="after")
    def _decidable(self) -> "Monotone":
        _check_cells(self.cells, [("cells", i) for i in range(len(self.cells))])
        return self


class Bound(Config):
    """A quantity of one cell stays on one side of a value."""

    kind: Literal["bound"] = "bound"
    quantity: RunQuantity
    """Quantity that is bounded."""
    cell: CellName
    """The cell."""
    expected: Literal["above", "below"]
    """Side of the threshold."""
    threshold: float
    """In the quantity's unit."""

    @model_validator(mode="after")
    def _decidable(self) -> "Bound":
        _check_side(self.expected, self.threshold, *bounds_of_run(self.quantity))
        return self


class Range(Config):
    """A quantity is between two values in each of several cells."""

    kind: Literal["range"] = "range"
    quantity: RunQuantity
    """Quantity that is bounded."""
    cells: list[CellName] = Field(min_length=1)
    """The cells."""
    low: float
    """In the quantity's unit."""
    high: float
    """In the quantity's unit."""

    @model_validator(mode="after")
    def _decidable(self) -> "Range":
        if self.low >= self.high:
            raise invalid(f"low ({self.low:g}) must be below high ({self.high:g})", at=("low",))
        _check_side("above", self.low, *bounds_of_run(self.quantity), "low")
        _check_side("below", self.high, *bounds_of_run(self.quantity), "high")
        _check_cells(self.cells, [("cells", i) for i in range(len(self.cells))])
        return self


class Peak(Config):
    """A quantity is highest in one cell of several."""

    kind: Literal["peak"] = "peak"
    quantity: RunQuantity
    """Quantity that is compared."""
    cell: CellName
    """The cell that should be highest."""
    others: list[CellName] = Field(min_length=1)
    """Cells it should exceed, each tested separately."""

    @model_validator(mode="after")
    def _decidable(self) -> "Peak":
        _check_cells([self.cell, *self.others], [("cell",), *(("others", i) for i in range(len(self.others)))])
        return self


class Extreme(Config):
    """A ratio or difference is highest, or lowest, in one pair of cells of several."""

    kind: Literal["extreme"] = "extreme"
    quantity: RunQuantity
    """Quantity that is compared within each pair."""
    over: RunQuantity | None = None
    """The baselines' quantity, if it differs."""
    pair: Pair
    """The pair that should be the extreme."""
    others: list[Pair] = Field(min_length=1)
    """Pairs it should exceed or stay below, each tested separately."""
    relative: Relative = "ratio"
    """cell/baseline or cell-baseline, by seed."""
    expected: Literal["highest", "lowest"]
    """Kind of extreme."""

    @model_validator(mode="after")
    def _decidable(self) -> "Extreme":
        at: list[KeyPath] = [("pair",), *(("others", i) for i in range(len(self.others)))]
        _check_pairs([self.pair, *self.others], self.quantity, self.over, at)
        return self


class Correlation(Config):
    """Over several pairs of cells, two ratios (or differences) have a rank correlation beyond a threshold."""

    kind: Literal["correlation"] = "correlation"
    quantity: RunQuantity
    """One quantity."""
    other: RunQuantity
    """The other one."""
    pairs: list[Pair] = Field(min_length=3)
    """Each a cell and its baseline."""
    relative: Relative = "ratio"
    """cell/baseline or cell-baseline, by seed."""
    other_relative: Relative | None = None
    """The same for the other quantity, if it differs."""
    expected: Literal["above", "below"] = "above"
    """Side of the threshold."""
    threshold: float
    """Threshold of Spearman's coefficient, which is computed in each seed."""

    @model_validator(mode="after")
    def _decidable(self) -> "Correlation":
        _check_side(self.expected, self.threshold, -1.0, 1.0)
        _check_pairs(self.pairs, self.quantity, None, [("pairs", i) for i in range(len(self.pairs))])
        same = canonical(self.quantity) == canonical(self.other)
        if same and self.other_relative in (None, self.relative):
            raise invalid(f"{self.quantity} is correlated with itself", "another quantity", ("other",))
        return self


class Trend(Config):
    """Within each run of several cells, quantities of successive parts of the run rise or fall."""

    kind: Literal["trend"] = "trend"
    quantities: list[RunQuantity] = Field(min_length=2)
    """In the order of training."""
    cells: list[CellName] = Field(min_length=1)
    """Cells that must all pass."""
    expected: list[Literal["rises", "falls"]]
    """Direction from each quantity to the next."""

    @model_validator(mode="after")
    def _complete(self) -> "Trend":
        if len(self.expected) != len(self.quantities) - 1:
            number = len(self.quantities)
            raise invalid(f"{number} quantities need {number - 1} directions", at=("expected",))
        return self

    @model_validator(mode="after")
    def _decidable(self) -> "Trend":
        names = list(map(canonical, self.quantities))
        for i, name in enumerate(names):
            if name in names[:i]:
                raise invalid(f"{self.quantities[i]} occurs twice", "each quantity once", ("quantities", i))
        _check_cells(self.cells, [("cells", i) for i in range(len(self.cells))])
        return self


class Fluctuation(Config):
    """The largest fall between two successive evaluations of a run is larger in one cell than in another."""

    kind: Literal["fluctuation"] = "fluctuation"
    quantity: RunQuantity
    """An accuracy, which is measured for every saved policy."""
    cell: CellName
    """The cell that should be less stable."""
    baseline: CellName
    """Cell to compare with."""

    @model_validator(mode="after")
    def _decidable(self) -> "Fluctuation":
        _check_cells([self.cell, self.baseline], [("cell",), ("baseline",)])
        return self


class Several(Config):
    """Of several comparisons, which may be of different quantities, at least n pass."""

    kind: Literal["several"] = "several"
    tests: list[Compare] = Field(min_length=2)
    """The comparisons."""
    at_least: int = Field(ge=1)
    """Number of comparisons that must pass."""

    @model_validator(mode="after")
    def _countable(self) -> "Several":
        if self.at_least > len(self.tests) or any(test.expected == "within" for test in self.tests):
            message = f"at_least ({self.at_least}) counts tests above or below, at most {len(self.tests)}"
            raise invalid(message, at=("at_least",))
        return self

    @model_validator(mode="after")
    def _decidable(self) -> "Several":
        for i, test in enumerate(self.tests):
            if test in self.tests[:i]:
                raise invalid(f"{test.cell} and {test.baseline} are compared twice", "each test once", ("tests", i))
        return self


class Unmeasured(Config):
    """Nothing that a run of this suite measures. The claim is listed, with its numbers next to the paper's tables."""

    kind: Literal["unmeasured"] = "unmeasured"
    quantity: RunQuantity
    """Quantity of runs that is closest; it chooses the heading on the report."""
    because: str = Field(min_length=10)
    """Why no run decides the claim."""


Test = Annotated[
    Compare
    | Pairs
    | Monotone
    | Peak
    | Extreme
    | Bound
    | Range
    | Correlation
    | Trend
    | Fluctuation
    | Several
    | Unmeasured,
    Field(discriminator="kind"),
]


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
        case Several(tests=tests):
            cells = [cell for each in tests for cell in cells_of(each)]
        case Unmeasured():
            cells = []
    # Each once, in the test's order.
    return list(dict.fromkeys(cells))


def compared_in(test: Test) -> list[tuple[str, ...]]:
    """The pairs of cells that a test compares with each other, and the cells that it compares with nothing."""
    match test:
        case Compare(cell=cell, baseline=baseline) | Fluctuation(cell=cell, baseline=baseline):
            return [(cell, baseline)]
        case Monotone(cells=several):
            return [*pairwise(several)]
        case Peak(cell=cell, others=others):
            return [(cell, other) for other in others]
        case Pairs(pairs=pairs) | Correlation(pairs=pairs):
            return [*pairs]
        case Extreme(pair=pair, others=pairs):
            return [pair, *pairs]
        case Several(tests=tests):
            return [cells for each in tests for cells in compared_in(each)]
    return [(cell,) for cell in cells_of(test)]


def _compares_ratios(test: Test) -> bool:
    """True if the values that a test compares with its thresholds are ratios."""
    match test:
        case Compare(relative=relative) | Pairs(relative=relative):
            return relative == "ratio"
        case Several(tests=tests):
            return all(each.relative == "ratio" for each in tests)
    return False


class Printed(Config):
    """A number as printed in the quotation. It is compared with the paper's own tables, never with a run."""

    number: str = Field(pattern=r"^-?\d+(\.\d+)?(–\d+(\.\d+)?)?$")
    """The digits, or a range `1.66–2.46`; the number of decimals is the precision of rounding."""
    scale: SignedScale = 1.0
    """Factor from the printed unit to the test's, negative if a fall is printed as a positive number."""
    tolerance: float | None = Field(default=None, ge=0)
    """In the printed unit; half a unit of the last digit if empty."""
    quantity: PrintedQuantity | None = None
    """Quantity of the number; if empty, all values that the claim's test compares."""
    cell: CellName | None = None
    """Cell of the number."""
    baseline: CellName | None = None
    """Cell that the number is relative to, for relative numbers."""
    relative: Literal["ratio", "speedup", "difference"] = "ratio"
    """Relation to the baseline."""
    fewer: bool = False
    """The number is a percentage below the baseline: 66 is the ratio 0.34. Without a `cell` the test must compare
    ratios."""
    ends: bool = False
    """The ends of a range must equal the lowest and the highest value; otherwise they only must enclose all values."""

    @model_validator(mode="after")
    def _whole(self) -> "Printed":
        if (self.quantity is None) != (self.cell is None) or (self.baseline and not self.cell):
            missing = "quantity" if self.quantity is None else "cell"
            raise invalid("a printed number needs both a quantity and a cell, or neither", at=(missing,))
        if self.cell and self.cell == self.baseline:
            raise invalid(f"{self.cell} is compared with itself", "another cell", ("baseline",))
        if self.fewer and (self.scale != 1 or (self.cell and (not self.baseline or self.relative != "ratio"))):
            raise invalid("a percentage below the baseline is a ratio", "no `scale`, and a baseline", ("fewer",))
        if self.relative != "ratio" and not self.baseline:
            raise invalid(f"relative ({self.relative}) needs a baseline", at=("relative",))
        first, _, last = self.number.partition("–")
        if self.ends and not last:
            raise invalid("a single number has no ends", "a range such as 1.66–2.46", ("ends",))
        # An en dash separates the numbers, since a hyphen is a minus.
        if last and float(first) >= float(last):
            raise invalid(f"the range {self.number} must rise", f"{last}–{first}", ("number",))
        return self

    def is_of(self, test: Compare) -> bool:
        """True if it is the number that a comparison of two cells gives."""
        if self.quantity != test.quantity or test.over or self.scale != 1 or self.fewer:
            return False
        # A speedup is baseline over cell, and a test's ratio is cell over baseline.
        cells = (self.baseline, self.cell) if self.relative == "speedup" else (self.cell, self.baseline)
        return cells == (test.cell, test.baseline) and (self.relative == "difference") == (
            test.relative == "difference"
        )

    @property
    def limits(self) -> tuple[float, float, float]:
        """Lowest and highest printed value and the tolerance, in the test's unit."""
        numbers = self.number.split("–")
        decimals = max(len(number.partition(".")[2]) for number in numbers)
        # Half a unit of the last printed digit.
        tolerance = 0.5 * 10**-decimals if self.tolerance is None else self.tolerance
        if self.fewer:
            low, high = sorted(1 - float(number) / 100 for number in (numbers[0], numbers[-1]))
            return low, high, tolerance / 100
        # A negative scale exchanges the ends.
        low, high = sorted(float(number) * self.scale for number in (numbers[0], numbers[-1]))
        return low, high, tolerance * abs(self.scale)


def tests_of(test: Test) -> list[Test]:
    """A test, or those that `several` counts."""
    return list(test.tests) if isinstance(test, Several) else [test]


class Claim(Config):
    """A sentence of the paper that asserts a direction or a number, as a test."""

    id: str
    """Short name."""
    quotation: str
    """The paper's words, shortened to the assertion."""
    about: str = ""
    """Subject of the quotation, or the part of it that is tested, which the report shows before it."""
    section: str
    """Section of the quotation."""
    test: Test
    """The statistic and its threshold."""
    printed: list[Printed] = []
    """The numbers in the quotation."""
    scale: Literal["any", "paper"] = "any"
    """Scale at which the test can decide. `paper` is for absolute values, and for effects that change with the model or
    the task; at any other scale the evidence is shown and the verdict is inconclusive."""
    note: str = ""
    """Limits of the test, or the reason for its threshold."""
    primary: bool = False
    """True for the few claims that a paper is about, such as those of its abstract. With the headline numbers they are
    corrected as a family of their own."""
    weak: str = ""
    """Reason why the verdict has little value, if so: true by construction, or true of all methods."""

    @model_validator(mode="after")
    def _fewer_of_ratios(self) -> "Claim":
        for i, printed in enumerate(self.printed):
            if printed.fewer and not printed.cell and not _compares_ratios(self.test):
                message = f"a percentage below the baseline is a ratio, and this test ({self.test.kind}) compares none"
                allowed = "`relative: ratio` in the test, or the number's own quantity, cell and baseline"
                raise invalid(message, allowed, ("printed", i, "fewer"))
        return self

    @property
    def printed_of_test(self) -> str:
        """The number that the paper prints of what the test compares; empty if it prints none."""
        test = self.test
        for printed in self.printed if not isinstance(test, Unmeasured | Extreme | Peak | Several) else ():
            direct = printed.quantity is None and printed.scale == 1
            if direct or (isinstance(test, Compare) and printed.is_of(test)):
                return printed.number
        return ""


class ClaimFile(Config):
    """`experiments/<paper>/claims.yaml`."""

    claims: Annotated[list[Claim], distinct("claim", "id")] = []
    """All claims."""
    margin: str = ""
    """Reason for the margins of claims such as "without loss", which allow a difference; required if there are any."""

    @model_validator(mode="after")
    def _margin_has_a_reason(self) -> "ClaimFile":
        allowing = [claim.id for claim in self.claims if any(margin_of(test) for test in tests_of(claim.test))]
        if allowing and not self.margin.strip():
            message = f"claims allow a difference ({', '.join(allowing[:3])}); give the reason for so large a margin"
            raise invalid(message, "a sentence", ("margin",))
        return self
