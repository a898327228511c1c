"""Costs as text for the terminal, and as rows for CSV and JSON."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from redraft.analysis.cost.campaign_cost import CellCost, PartCost, total, unit, wall_hours
from redraft.analysis.cost.hour_estimates import WEIGHT_BYTES
from redraft.cli.terminal import filled, table
from redraft.config import Preset
from redraft.messages import counted

COLUMNS = (
    "kind",
    "name",
    "cells",
    "runs",
    "hours_per_run",
    "hours",
    "added",
    "cumulative",
    "policy_bytes",
    "rollout_bytes",
    "draft_bytes",
    "source",
    "stored_bytes",
    "stored_source",
    "unit",
)
COUNTS = {"cells", "runs"}


def rows_of(costs: list[CellCost], lines: list[PartCost], preset: Preset) -> list[dict[str, Any]]:
    """Costs as rows with `COLUMNS`: one per cell, then one per table or figure; hours and bytes, None if unknown."""
    cells = [
        {
            "kind": "cell",
            "name": c.cell,
            "cells": 1,
            "runs": c.runs,
            "hours_per_run": c.hours,
            "hours": c.device_hours,
            "policy_bytes": c.policies,
            "rollout_bytes": c.rollouts,
            "draft_bytes": c.drafts,
            "source": c.source,
            "stored_bytes": c.stored,
            "stored_source": c.stored_source,
        }
        for c in costs
    ]
    needed = [
        {
            "kind": "part",
            "name": p.part,
            "cells": p.cells,
            "hours": p.device_hours,
            "added": p.added,
            "cumulative": p.cumulative,
            "source": _unknown(p),
        }
        for p in lines
    ]
    rows: list[dict[str, Any]] = [{**row, "unit": unit(preset)} for row in (*cells, *needed)]
    return [{name: _plain(name, row.get(name)) for name in COLUMNS} for row in rows]


def _plain(column: str, value: Any) -> Any:
    """The value; hours and bytes as floats, so that integral sums print like other values."""
    return value if value is None or isinstance(value, str) or column in COUNTS else float(value)


def write_csv(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of `rows_of` as CSV, numbers with ten digits."""
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        rows = list(rows)
        writer.writerow(rows[0] if rows else COLUMNS)
        # Ten digits: the last ones of a sum of floats depend on its order.
        writer.writerows([f"{v:.10g}" if isinstance(v, float) else v for v in row.values()] for row in rows)


def tables(costs: list[CellCost], lines: list[PartCost], preset: Preset, *, wide: bool = False) -> str:
    """A table of cells, and one of tables and figures; `wide` adds parts of the storage and each cell's source."""
    per_part = [
        [p.part, str(p.cells), _number(p.device_hours), _number(p.added), _number(p.cumulative), _unknown(p)]
        for p in lines
    ]
    of_parts = ["table or figure", "cells", unit(preset), "of them new", "sum so far", ""]
    per_cell = _wide(costs, preset) if wide else _narrow(costs, preset)
    return f"{per_cell}\n\n{table(of_parts, per_part, left=[''], wide=wide)}"


def _narrow(costs: list[CellCost], preset: Preset) -> str:
    """Cells with hours and storage; letters refer to a list of sources."""
    # Letters, so that the table fits into 80 columns.
    letters = {source: _letter(i) for i, source in enumerate(dict.fromkeys(map(_sources, costs)))}
    rows = [
        [c.cell, str(c.runs), _number(c.hours), _number(c.device_hours), _gigabytes(c.stored), letters[_sources(c)]]
        for c in costs
    ]
    legend = [filled(f"{letter}: {source}", "   ") for source, letter in letters.items()]
    header = ["cell", "runs", "h/run", unit(preset), "GB", "source"]
    about = "source of the hours; of the storage (parts of the storage: --wide)"
    return "\n".join([table(header, rows, left=["source"]), "", about, *legend])


def _letter(index: int) -> str:
    """a to z, then aa, ab and so on."""
    first, last = divmod(index, 26)
    return (_letter(first - 1) if first else "") + chr(ord("a") + last)


def _wide(costs: list[CellCost], preset: Preset) -> str:
    rows = [
        [
            c.cell,
            str(c.runs),
            _number(c.hours),
            _number(c.device_hours),
            _gigabytes(c.policies),
            _gigabytes(c.rollouts),
            _gigabytes(c.drafts),
            _gigabytes(c.stored),
            _sources(c),
        ]
        for c in costs
    ]
    sources = "source of the hours; of the storage"
    header = ["cell", "runs", "h/run", unit(preset), "policies GB", "rollouts GB", "drafts GB", "all GB", sources]
    return table(header, rows, left=[sources], wide=True)


def ending(costs: list[CellCost], preset: Preset, available: int, hardware: str | None = None) -> str:
    """The totals, and costs that they do not include.

    Args:
        costs: costs by cell.
        preset: preset of the runs.
        available: number of available GPUs or cores.
        hardware: hardware of the estimated hours; None if none is estimated.
    """
    return "\n".join([*_totals(costs, preset, available), "", *map(filled, _left_out(costs, preset, hardware))])


def _totals(costs: list[CellCost], preset: Preset, available: int) -> list[str]:
    name = counted(available, "GPU" if preset.engine.gpus else "core")
    known = [c for c in costs if c.device_hours is not None]
    if not known:
        return [f"no hours are known: {counted(len(costs), 'cell')}, none with a finished run"]
    hours, wall = total(costs), wall_hours(costs, available)
    unknown = f"; {len(costs) - len(known)} of {len(costs)} cells unknown" if len(known) < len(costs) else ""
    stored = [c.stored for c in costs if c.stored is not None]
    days = f" ({wall / 24:,.1f} days)" if wall and wall >= 24 else ""
    sizes = sorted({c.devices for c in costs})
    each = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    too_large = [c for c in costs if c.devices > available]
    lasting = f"at least {_number(wall or 0.0)} wall hours{days} on {name}, {each} a run"
    if len(too_large) == len(costs):
        lasting = f"on {name} none of these runs can start: each takes {each}"
    elif too_large:
        number, all_runs = sum(c.runs for c in too_large), sum(c.runs for c in costs)
        lasting = f"on {name} {number} of {all_runs} runs cannot start: a run takes {each}"
    without = f"; {len(costs) - len(stored)} of {len(costs)} cells unknown" if len(stored) < len(costs) else ""
    sum_of_hours = f"{hours:,.0f}" if hours and hours >= 10 else _number(hours or 0.0)
    return [
        f"{sum(c.runs for c in known)} runs, {sum_of_hours} {unit(preset)}{unknown}",
        lasting,
        f"{sum(stored) / 1e12:,.4g} TB of storage{without}" if stored else "storage is not estimated at this scale",
    ]


def _left_out(costs: list[CellCost], preset: Preset, hardware: str | None) -> list[str]:
    if not preset.paper_scale or hardware is None:
        return ["Evaluation is not counted. Hours are those of training, from the source beside them."]
    # Cells may sample other numbers of fresh responses or have other group sizes.
    shares = " or ".join(f"{share:.1%}" for share in sorted({cost.fresh_share for cost in costs}))
    return [
        "Not counted: evaluation, whose hours the paper does not report; checkpoints but for their draft stores, where "
        f"nothing is measured; and {shares} more rollouts, sampled to log the reward of the policy itself.",
        f"Hours are of the paper's GPUs ({hardware}). Policies: {WEIGHT_BYTES} bytes a parameter at every evaluated "
        "step. Rollouts, and drafts of one run in memory: of the mean length that the paper's token counts give, "
        "before compression.",
    ]


def _sources(cost: CellCost) -> str:
    return cost.source if cost.stored_source == cost.source else f"{cost.source}; {cost.stored_source}"


def _unknown(part: PartCost) -> str:
    return f"{counted(part.unknown, 'cell')} unknown" if part.unknown else ""


def _number(value: float | None) -> str:
    """Hours; minutes of a run are hours with two digits."""
    if value is None:
        return "unknown"
    return f"{value:,.1f}" if value >= 1 or value == 0 else f"{value:.2g}"


def _gigabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:,.1f}"
