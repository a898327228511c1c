"""Configuration of claims: each has a quotation, a test on runs, and the numbers in the sentence."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from redraft.config.base import CellName, Config, distinct, invalid
from redraft.config.quantities import PrintedQuantity, RunQuantity
from redraft.config.tables import SignedScale

Pair = tuple[CellName, CellName]
"""A cell and its baseline."""

Relative = Literal["ratio", "difference"]
"""cell/baseline or cell-baseline, by seed."""


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
        if self.at_least and (self.statistic == "mean" or self.expected == "within" or self.at_least > len(self.pairs)):
            raise invalid(
                f"at_least ({self.at_least}) counts pairs above or below, at most {len(self.pairs)}", at=("at_least",)
            )
        return self


class Monotone(Config):
    """A quantity rises or falls along a sequence of cells."""

    kind: Literal["monotone"] = "monotone"
    quantity: RunQuantity
    """Quantity that is compared."""
    cells: list[CellName] = Field(min_length=2)
    """In the order in which the quantity should rise or fall."""
    expected: Literal["rises", "falls"]
    """Direction along `cells`."""


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
    def _ordered(self) -> "Range":
        if self.low >= self.high:
            raise invalid(f"low ({self.low:g}) must be below high ({self.high:g})", at=("low",))
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
    threshold: float = Field(ge=-1, le=1)
    """Threshold of Spearman's coefficient, which is computed in each seed."""


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


class Fluctuation(Config):
    """The largest fall between two successive evaluations of a run is larger in one cell than in another."""

    kind: Literal["fluctuation"] = "fluctuation"
    quantity: RunQuantity
    """An accuracy, which is measured for every saved policy."""
    cell: CellName
    """The cell that should be less stable."""
    baseline: CellName
    """Cell to compare with."""


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
            raise ValueError(f"at_least ({self.at_least}) counts tests above or below, at most {len(self.tests)}")
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
    ends: bool = False
    """The ends of a range must equal the lowest and the highest value; otherwise they only must enclose all values."""

    @model_validator(mode="after")
    def _whole(self) -> "Printed":
        if (self.quantity is None) != (self.cell is None) or (self.baseline and not self.cell):
            missing = "quantity" if self.quantity is None else "cell"
            raise invalid("a printed number needs both a quantity and a cell, or neither", at=(missing,))
        return self

    @property
    def limits(self) -> tuple[float, float, float]:
        """Lowest and highest printed value and the tolerance, in the test's unit."""
        numbers = self.number.split("–")
        decimals = max(len(number.partition(".")[2]) for number in numbers)
        tolerance = 0.5 * 10**-decimals if self.tolerance is None else self.tolerance
        return float(numbers[0]) * self.scale, float(numbers[-1]) * self.scale, tolerance * abs(self.scale)


class Claim(Config):
    """A sentence of the paper that asserts a direction or a number, as a test."""

    id: str
    """Short name."""
    quotation: str
    """The paper's words, shortened to the assertion."""
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
    weak: str = ""
    """Reason why the verdict has little value, if so: true by construction, or true of all methods."""


class ClaimFile(Config):
    """`experiments/<paper>/claims.yaml`."""

    claims: Annotated[list[Claim], distinct("claim", "id")] = []
    """All claims."""
