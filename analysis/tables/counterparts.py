"""Reported rows that no regenerated row stands beside, and why: what a preset leaves of the paper's tables."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from redraft.analysis.data.reported import Key, ReportedTable, match_of
from redraft.analysis.tables.lines import Line, Source, lines_of, lookup
from redraft.config import Reported, RunTable
from redraft.errors import UserError

NO_ROW = "no row of the regenerated table refers to it"


def columns(spec: Reported) -> list[str]:
    """Columns of the list of rows without a counterpart."""
    return ["table", *spec.row, "cell", "reason"]


def without_counterpart(
    tables: Mapping[int, RunTable], source: Source, reported: Mapping[int, ReportedTable], spec: Reported
) -> pd.DataFrame:
    """Every reported row that no line of the regenerated tables with finished runs refers to, with the reason.

    Columns are as in `columns`; tables go by number, and each reported one replaces that of the source.
    """
    finished = set(source.runs.runs["cell"])
    lines = []
    for number, table in reported.items():
        candidates = lines_of(tables[number], replace(source, reported=table)) if number in tables else []
        taken: dict[Key, Line] = {}
        for line in candidates:
            row = line.row
            if line.known and (key := table.key(lookup(source, row.cell), row.reported, line.share, line.clock)):
                taken[key] = line
        for key in table.rows:
            cell, reason = _reason(key, taken, candidates, source, finished, spec)
            if reason:
                lines.append((number, *key, cell, reason))
    return pd.DataFrame(lines, columns=columns(spec))


def _reason(
    key: Key, taken: Mapping[Key, Line], lines: list[Line], source: Source, finished: set[str], spec: Reported
) -> tuple[str, str | None]:
    """The cell that a reported row is about, and why it has no counterpart; None if it has one."""
    if key in taken:
        cell = taken[key].row.cell
        return cell, None if cell in finished else _missing(cell, source)
    for line in lines:
        if not _about(key, line, source, spec):
            continue
        if line.row.cell not in finished:
            return line.row.cell, _missing(line.row.cell, source)
        run = source.experiments.run(f"{source.paper}/{line.row.cell}", 0, source.preset)
        done = ", ".join(str(other.at) for other in lines if other.row == line.row)
        steps = f"evaluated after {done} of {run.steps} {line.clock.replace('_', ' ')}"
        return line.row.cell, f"no policy at that share of the run ({steps})"
    return "", NO_ROW


def _about(key: Key, line: Line, source: Source, spec: Reported) -> bool:
    """Test for a reported row of a line's cell, at any step."""
    match = match_of(lookup(source, line.row.cell), spec)
    named = dict(zip(spec.row, key, strict=True))
    return line.at != 0 and match is not None and (match | line.row.reported).items() <= named.items()


def _missing(cell: str, source: Source) -> str:
    try:
        source.experiments.run(f"{source.paper}/{cell}", 0, source.preset)
    except UserError as error:
        return f"{error.message}: {error.value}"
    return "its cell was not run"


def summary(missing: pd.DataFrame, reported: Mapping[int, ReportedTable]) -> pd.DataFrame:
    """Count of reported rows of each table that have a counterpart and how many have none."""
    rows = [(n, len(table.rows), int((missing["table"] == n).sum())) for n, table in reported.items()]
    return pd.DataFrame(
        [(number, total, total - without, without) for number, total, without in rows],
        columns=["table", "reported rows", "with counterpart", "without"],
    )
