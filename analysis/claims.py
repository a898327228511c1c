"""Verdicts on what a paper asserts: each claim is a declared test on the reproduced runs."""

from collections.abc import Mapping
from typing import Any

from analysis.collect import Runs
from analysis.quantities import by_seed
from analysis.statistics import NEUTRAL, Estimate, Interval, consecutive, estimate, paired
from redraft.config import Bound, Claim, Compare, Monotone, Peak

REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "reproduced", "contradicted", "inconclusive", "not run"
Values = Mapping[str, Mapping[int, float]]
"""Cell to seed to a quantity's value."""

FEWEST = 3
"""Cells of a monotone claim that must have been run; those that were not are named in the evidence."""


def judge(claim: Claim, runs: Runs, paper_scale: bool) -> dict[str, Any]:
    """The verdict on a claim, with its evidence as text and the manifests it rests on.

    A verdict rests on the 95 % Student interval over seeds: `reproduced` if all of it lies where the paper says,
    `contradicted` if all of it lies elsewhere, else `inconclusive`.
    """
    cells = cells_of(claim)
    values = {cell: by_seed(runs, claim.test.quantity, cell) for cell in cells}
    match claim.test:
        case Compare() as test:
            result, evidence = _compare(test, values)
        case Monotone() as test:
            result, evidence = _monotone(test, values)
        case Peak() as test:
            result, evidence = _peak(test, values)
        case Bound() as test:
            result, evidence = _bound(test, values)
    if claim.scale == "paper" and not paper_scale and result != NOT_RUN:
        result, evidence = INCONCLUSIVE, f"{evidence}; this cannot be decided at a scale other than the paper's"
    return {
        "id": claim.id,
        "quotation": claim.quotation,
        "section": claim.section,
        "verdict": result,
        "evidence": evidence,
        "test": claim.test.model_dump(mode="json"),
        "note": claim.note,
        "manifests": {cell: runs.manifests(cell, values[cell]) for cell in cells},
    }


def cells_of(claim: Claim) -> list[str]:
    """The cells that a claim is about."""
    match claim.test:
        case Compare(cell=cell, baseline=baseline):
            return [cell, baseline]
        case Monotone(cells=cells):
            return cells
        case Peak(cell=cell, others=others):
            return [cell, *others]
        case Bound(cell=cell):
            return [cell]


def _compare(test: Compare, values: Values) -> tuple[str, str]:
    found = estimate(paired(values[test.cell], values[test.baseline], test.relative))
    if not found.seeds:
        return NOT_RUN, _absent(*(cell for cell in (test.cell, test.baseline) if not values[cell]))
    sign = "/" if test.relative == "ratio" else "-"
    asserted = f"asserted {test.expected} {test.threshold:g}"
    text = f"{test.quantity} of {test.cell} {sign} {test.baseline}: {show(found)}; {asserted}"
    if test.expected == "within":
        return _within(found.tested, NEUTRAL[test.relative], test.threshold), text
    return _sided(found.tested, test.expected, test.threshold), text


def _monotone(test: Monotone, values: Values) -> tuple[str, str]:
    present = [cell for cell in test.cells if values[cell]]
    absent = [cell for cell in test.cells if not values[cell]]
    if len(present) < min(FEWEST, len(test.cells)):
        return NOT_RUN, _absent(*absent)
    side = "above" if test.expected == "rises" else "below"
    results = [_sided(step.tested, side, 0.0) for step in consecutive([values[cell] for cell in present])]
    path = " → ".join(f"{estimate(values[cell]).mean:.4g} ({cell})" for cell in present)
    steps = ", ".join(f"step {i + 1} {result}" for i, result in enumerate(results))
    on = f"on {len(present)} of {len(test.cells)} cells: " if absent else ""
    return _all(results), f"{on}{test.quantity} {path}; asserted: {test.expected}; {steps}"


def _peak(test: Peak, values: Values) -> tuple[str, str]:
    present = [cell for cell in test.others if values[cell]]
    if not values[test.cell] or not present:
        return NOT_RUN, _absent(*(cell for cell in (test.cell, *test.others) if not values[cell]))
    found = {cell: estimate(paired(values[test.cell], values[cell], "difference")) for cell in present}
    over = ", ".join(f"{cell} {show(difference)}" for cell, difference in found.items())
    text = f"{test.quantity} of {test.cell} minus that of {over}; asserted: the highest of all"
    on = f"on {len(present) + 1} of {len(test.others) + 1} cells: " if len(present) < len(test.others) else ""
    return _all([_sided(difference.tested, "above", 0.0) for difference in found.values()]), on + text


def _bound(test: Bound, values: Values) -> tuple[str, str]:
    found = estimate(values[test.cell])
    if not found.seeds:
        return NOT_RUN, _absent(test.cell)
    text = f"{test.quantity} of {test.cell}: {show(found)}; asserted {test.expected} {test.threshold:g}"
    return _sided(found.tested, test.expected, test.threshold), text


def _all(results: list[str]) -> str:
    """The verdict on a claim whose every part must hold."""
    if all(result == REPRODUCED for result in results):
        return REPRODUCED
    return CONTRADICTED if CONTRADICTED in results else INCONCLUSIVE


def _sided(interval: Interval, side: str, threshold: float) -> str:
    """Where an interval lies relative to a threshold."""
    above, below = interval.low > threshold, interval.high < threshold
    if (above and side == "above") or (below and side == "below"):
        return REPRODUCED
    return CONTRADICTED if above or below else INCONCLUSIVE


def _within(interval: Interval, neutral: float, distance: float) -> str:
    """Whether an interval stays so close to the neutral value."""
    if neutral - distance < interval.low and interval.high < neutral + distance:
        return REPRODUCED
    outside = interval.low > neutral + distance or interval.high < neutral - distance
    return CONTRADICTED if outside else INCONCLUSIVE


def show(found: Estimate) -> str:
    """`0.31 [0.28, 0.34], 3 seeds`, with the interval that is tested."""
    plural = "s" if len(found.seeds) != 1 else ""
    return f"{found.mean:.4g} [{found.tested.low:.4g}, {found.tested.high:.4g}], {len(found.seeds)} seed{plural}"


def _absent(*cells: str) -> str:
    return f"no finished run of {', '.join(cells)}"
