"""Verdicts on what a paper asserts: each claim is a declared test on the reproduced runs."""

import math
from typing import Any

from analysis.collect import Runs
from analysis.quantities import by_seed
from analysis.statistics import NEUTRAL, Estimate, consecutive, estimate, paired
from redraft.config import Bound, Claim, Compare, Monotone

REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "reproduced", "contradicted", "inconclusive", "not run"
FEWEST = 3
"""Cells of a monotone claim that must have been run; those that were not are named in the evidence."""


def judge(claim: Claim, runs: Runs) -> dict[str, Any]:
    """The verdict on a claim, with its evidence as text and numbers.

    A verdict rests on the 95 % interval over seeds: `reproduced` if all of it lies where the paper says,
    `contradicted` if all of it lies elsewhere, else `inconclusive`.
    """
    match claim.test:
        case Compare() as test:
            result, evidence = _compare(test, runs)
        case Monotone() as test:
            result, evidence = _monotone(test, runs)
        case Bound() as test:
            result, evidence = _bound(test, runs)
    return {
        "id": claim.id, "quotation": claim.quotation, "section": claim.section, "verdict": result,
        "evidence": evidence, "test": claim.test.model_dump(mode="json"), "note": claim.note,
    }  # fmt: skip


def _compare(test: Compare, runs: Runs) -> tuple[str, str]:
    values, baseline = by_seed(runs, test.quantity, test.cell), by_seed(runs, test.quantity, test.baseline)
    found = estimate(paired(values, baseline, test.relative))
    if not found.seeds:
        return NOT_RUN, _absent(test.cell if not values else test.baseline)
    sign = "/" if test.relative == "ratio" else "-"
    asserted = f"asserted {test.expected} {test.threshold:g}"
    text = f"{test.quantity} of {test.cell} {sign} {test.baseline}: {show(found)}; {asserted}"
    if test.expected == "within":
        neutral = NEUTRAL[test.relative]
        return _sided(abs_interval(found, neutral), "below", test.threshold), text
    return _sided(found, test.expected, test.threshold), text


def _monotone(test: Monotone, runs: Runs) -> tuple[str, str]:
    values = {cell: by_seed(runs, test.quantity, cell) for cell in test.cells}
    present = [cell for cell in test.cells if values[cell]]
    absent = [cell for cell in test.cells if not values[cell]]
    if len(present) < min(FEWEST, len(test.cells)):
        return NOT_RUN, _absent(*absent)
    side = "above" if test.expected == "rises" else "below"
    results = [_sided(step, side, 0.0) for step in consecutive([values[cell] for cell in present])]
    path = " → ".join(f"{cell} {estimate(values[cell]).mean:.4g}" for cell in present)
    steps = ", ".join(f"step {i + 1} {result}" for i, result in enumerate(results))
    text = f"{test.quantity}: {path}; asserted: {test.expected}; {steps}" + (f"; {_absent(*absent)}" if absent else "")
    if all(result == REPRODUCED for result in results):
        return REPRODUCED, text
    return (CONTRADICTED if CONTRADICTED in results else INCONCLUSIVE), text


def _bound(test: Bound, runs: Runs) -> tuple[str, str]:
    found = estimate(by_seed(runs, test.quantity, test.cell))
    if not found.seeds:
        return NOT_RUN, _absent(test.cell)
    text = f"{test.quantity} of {test.cell}: {show(found)}; asserted {test.expected} {test.threshold:g}"
    return _sided(found, test.expected, test.threshold), text


def _sided(found: Estimate, side: str, threshold: float) -> str:
    """Where an interval lies relative to a threshold."""
    if math.isnan(found.low):
        return INCONCLUSIVE
    above, below = found.low > threshold, found.high < threshold
    if (above and side == "above") or (below and side == "below"):
        return REPRODUCED
    return CONTRADICTED if above or below else INCONCLUSIVE


def abs_interval(found: Estimate, neutral: float) -> Estimate:
    """The interval of the distance from the neutral value that an estimate's interval admits."""
    ends = (abs(found.low - neutral), abs(found.high - neutral))
    low = 0.0 if found.low <= neutral <= found.high else min(ends)
    return Estimate(abs(found.mean - neutral), math.nan if math.isnan(found.low) else low, max(ends), found.seeds)


def show(found: Estimate) -> str:
    """`0.31 [0.28, 0.34], 3 seeds`."""
    plural = "s" if len(found.seeds) != 1 else ""
    return f"{found.mean:.4g} [{found.low:.4g}, {found.high:.4g}], {len(found.seeds)} seed{plural}"


def _absent(*cells: str) -> str:
    return f"no finished run of {', '.join(cells)}"
