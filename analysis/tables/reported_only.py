"""Reported rows without a regenerated counterpart, and speedups computed from reported times alone."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from redraft.analysis.data.reported_tables import Key, ReportedTable, match_of
from redraft.analysis.data.timing import KINDS, TITLES
from redraft.analysis.tables.comparison import TableLine, TableSource, lines_of, lookup
from redraft.analysis.tables.sheet import number
from redraft.config import Reported, RunTable
from redraft.errors import UserError

NO_ROW = "no row of the regenerated table refers to it"


def counterpart_columns(spec: Reported) -> list[str]:
    """Columns of the list of rows without a counterpart."""
    return ["table", *spec.row, "cell", "reason"]


def without_counterpart(
    tables: Mapping[int, RunTable], source: TableSource, reported: Mapping[int, ReportedTable], spec: Reported
) -> pd.DataFrame:
    """Every reported row that no line of the regenerated tables with finished runs refers to, with the reason.

    Columns are as in `counterpart_columns`; tables go by number, and each reported one replaces that of the source.
    """
    finished = set(source.runs.runs["cell"])
    lines = []
    for n, table in reported.items():
        candidates = lines_of(tables[n], replace(source, reported=table)) if n in tables else []
        line_of_key: dict[Key, TableLine] = {}
        for line in candidates:
            row = line.row
            if line.known and (key := table.key(lookup(source, row.cell), row.reported, line.share, line.clock)):
                line_of_key[key] = line
        for key in table.rows:
            cell, reason = _reason(key, line_of_key, candidates, source, finished, spec)
            if reason:
                lines.append((n, *key, cell, reason))
    return pd.DataFrame(lines, columns=counterpart_columns(spec))


def _reason(
    key: Key,
    line_of_key: Mapping[Key, TableLine],
    lines: list[TableLine],
    source: TableSource,
    finished: set[str],
    spec: Reported,
) -> tuple[str, str | None]:
    """The cell that a reported row is about, and why it has no counterpart; None if it has one."""
    if key in line_of_key:
        cell = line_of_key[key].row.cell
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


def _about(key: Key, line: TableLine, source: TableSource, spec: Reported) -> bool:
    """Test for a reported row of a line's cell, at any step."""
    match = match_of(lookup(source, line.row.cell), spec)
    named = dict(zip(spec.row, key, strict=True))
    return line.at != 0 and match is not None and (match | line.row.reported).items() <= named.items()


def _missing(cell: str, source: TableSource) -> str:
    try:
        source.experiments.run(f"{source.paper}/{cell}", 0, source.preset)
    except UserError as error:
        return f"{error.message}: {error.value}"
    return "its cell was not run"


def summary(missing: pd.DataFrame, reported: Mapping[int, ReportedTable]) -> pd.DataFrame:
    """Count of reported rows of each table that have a counterpart and how many have none."""
    rows = [(n, len(table.rows), int((missing["table"] == n).sum())) for n, table in reported.items()]
    return pd.DataFrame(
        [(n, total, total - without, without) for n, total, without in rows],
        columns=["table", "reported rows", "with counterpart", "without"],
    )


FROM_REPORTED = "computed from the numbers that the paper reports, nothing reproduced"


def speedups_markdown(speedups: pd.DataFrame, table: int) -> str:
    """`redraft.analysis.data.timing.reported_speedups` in Markdown."""
    body = _speedups(speedups).to_markdown(disable_numparse=True)
    return f"**Table {table}'s reported numbers, verification counted** ({FROM_REPORTED})\n\n{body}\n"


def speedups_html(speedups: pd.DataFrame, table: int, name: str) -> str:
    """The same as an HTML fragment with this identifier."""
    body = f'<div class="scroll">{_speedups(speedups).to_html(border=0)}</div>'
    caption = f"<b>Table {table}'s reported numbers, verification counted</b> ({FROM_REPORTED})."
    return f'<figure class="table" id="{name}">\n<figcaption>{caption}</figcaption>\n{body}\n</figure>\n'


def _speedups(speedups: pd.DataFrame) -> pd.DataFrame:
    """A line a setting and method, labelled by what tells them apart."""
    names = [name for name in speedups if name not in KINDS]
    varying = [name for name in names if speedups[name].iloc[:-1].nunique() > 1] or names[:1]
    labels = [" ".join(filter(None, row)) for row in speedups[varying].itertuples(index=False)]
    if names[0] not in varying:
        labels[-1] = str(speedups[names[0]].iloc[-1])
    texts = {TITLES[kind]: [number(value, 2) for value in speedups[kind]] for kind in KINDS}
    return pd.DataFrame(texts, index=labels)


def counterparts_markdown(missing: pd.DataFrame, summary: pd.DataFrame, preset: str, spec: Reported) -> str:
    """Reported rows without a counterpart at a preset: how many of each table, then every reason with its rows."""
    total, without = int(summary["reported rows"].sum()), int(summary["without"].sum())
    points = pd.Series("", index=missing.index)
    for position in spec.positions:
        points = missing[position].where(missing[position] != "", points)
    names = ["table", "cell", *spec.key, "reason"]
    grouped = missing.assign(point=points).groupby(names, sort=False)["point"]
    grouped = grouped.agg(lambda points: ", ".join(filter(None, points)))
    parts = [
        "**Reported rows without a reproduced counterpart**",
        "",
        f"At the preset `{preset}`, {without} of the {total} reported rows have none. A reported row at another share "
        "of the run never replaces one that is missing, and nothing is interpolated.",
        "",
        summary.to_markdown(index=False),
        "",
        grouped.rename("steps").reset_index().to_markdown(index=False, disable_numparse=True),
        "",
    ]
    return "\n".join(parts)
