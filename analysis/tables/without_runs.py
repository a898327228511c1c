"""Cells of tables that no run is needed for: one value each, judged by the digits that the paper prints."""

import math

from redraft.analysis.tables.verdicts import AGREES, DIFFERS, NOT_APPLICABLE, NOT_COMPARABLE

Record = dict[str, object]


def record(group: str, row: str, column: str, value: float, reported: float, verdict: str) -> Record:
    """A cell as in `redraft.analysis.tables.comparison.COLUMNS`, without interval, seeds and manifests."""
    return {
        "group": group,
        "row": row,
        "column": column,
        "reproduced": value,
        "low": math.nan,
        "high": math.nan,
        "n_seeds": int(not math.isnan(value)),
        "reported": reported,
        "deviation": value - reported if math.isfinite(value) else math.nan,
        "verdict": verdict,
        **dict.fromkeys(("bootstrap_low", "bootstrap_high", "p", "p_corrected", "noise"), math.nan),
        "iqm": value,
        "step": "",
        "cell": "",
        "seeds": "",
        "missing_seeds": "",
        "manifests": "",
    }


def as_printed(value: float, reported: float, decimals: int) -> str:
    """Verdict on a value: it agrees if it is the reported one as far as that is printed, and differs otherwise."""
    if math.isnan(value):
        return NOT_APPLICABLE
    if math.isnan(reported):
        return NOT_COMPARABLE
    if math.isinf(value) or math.isinf(reported):
        return AGREES if value == reported else DIFFERS
    return AGREES if abs(value - reported) <= 0.5 * 10**-decimals + 1e-9 else DIFFERS
