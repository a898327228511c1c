"""Reported rows without a regenerated counterpart, and speedups computed from reported times alone."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from redraft.analysis.data.reported_tables import Key, ReportedTable
from redraft.analysis.data.timing import KINDS, TITLES
from redraft.analysis.tables.comparison import TableLine, TableSource, lines_of
from redraft.analysis.tables.sheet import number
from redraft.config import RunTable

NO_ROW = "no row of the regenerated table refers to it"


def without_counterpart(
    tables: Mapping[int, RunTable], source: TableSource, reported: Mapping[int, ReportedTable]
) -> pd.DataFrame:
    """Every reported row that no line of the regenerated tables with finished runs refers to, with the reason.

    Columns are `table`, those that name a reported row, `cell` and `reason`. Tables go by number, and each reported one
    replaces that of the source.
    """
    finished = set(source.measured.runs.runs["cell"])
    rows, names = [], next(iter(reported.values())).spec.row
    for n, table in reported.items():
        lines = lines_of(tables[n], replace(source, reported=table)) if n in tables else []
        line_of_key: dict[Key, TableLine] = {}
        for line in lines:
            match = source.resolved.cell(line.row.cell).reported
            if line.known and (key := table.matching(match, line.row.reported, line.share, line.clock)):
                line_of_key[key] = line
        for key in table.rows:
            named = dict(zip(names, key, strict=True))
            about = [line_of_key[key]] if key in line_of_key else []
            # Without a line of its own, the row is about the lines of its cell at any step.
            for line in [] if about else lines:
                match = source.resolved.cell(line.row.cell).reported
                if line.at != 0 and match is not None and (match | line.row.reported).items() <= named.items():
                    about.append(line)
            name, reason = "", NO_ROW
            if about:
                row, clock = about[0].row, about[0].clock
                name, cell = row.cell, source.resolved.cell(row.cell)
                done = ", ".join(str(other.at) for other in lines if other.row == row)
                steps = f"evaluated after {done} of {cell.steps} {clock.replace('_', ' ')}"
                reason = "" if key in line_of_key else f"no policy at that share of the run ({steps})"
                if name not in finished:
                    reason = cell.lacks_run or "its cell was not run"
            if reason:
                rows.append((n, *key, name, reason))
    return pd.DataFrame(rows, columns=["table", *names, "cell", "reason"])


FROM_REPORTED = "computed from the numbers that the paper reports, nothing reproduced"


def speedups_texts(speedups: pd.DataFrame, table: int, name: str) -> dict[str, str]:
    """`redraft.analysis.data.timing.reported_speedups` in Markdown and as an HTML fragment with the identifier `name`,
    by suffix; a line a setting and method, labelled by what tells them apart."""
    names = [column for column in speedups if column not in KINDS]
    # Without the last line, the mean, whose setting is empty.
    varying = [column for column in names if speedups[column].iloc[:-1].nunique() > 1] or names[:1]
    labels = [" ".join(filter(None, row)) for row in speedups[varying].itertuples(index=False)]
    if names[0] not in varying:
        labels[-1] = str(speedups[names[0]].iloc[-1])
    texts = {TITLES[kind]: [number(value, 2) for value in speedups[kind]] for kind in KINDS}
    frame = pd.DataFrame(texts, index=labels)
    title = f"Table {table}'s reported numbers, verification counted"
    body = f'<div class="scroll">{frame.to_html(border=0)}</div>'
    caption = f"<b>{title}</b> ({FROM_REPORTED})."
    return {
        ".md": f"**{title}** ({FROM_REPORTED})\n\n{frame.to_markdown(disable_numparse=True)}\n",
        ".html": f'<figure class="table" id="{name}">\n<figcaption>{caption}</figcaption>\n{body}\n</figure>\n',
    }


def counterparts_markdown(missing: pd.DataFrame, reported: Mapping[int, ReportedTable], preset: str) -> str:
    """Reported rows without a counterpart at a preset: how many of each table, then every reason with its rows."""
    spec = next(iter(reported.values())).spec
    counts = [(n, len(table.rows), int((missing["table"] == n).sum())) for n, table in reported.items()]
    summary = pd.DataFrame(
        [(n, total, total - without, without) for n, total, without in counts],
        columns=["table", "reported rows", "with counterpart", "without"],
    )
    total, without = int(summary["reported rows"].sum()), int(summary["without"].sum())
    points = pd.Series("", index=missing.index)
    for position in spec.positions:
        # Where a row has several clocks the last declared one is named.
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
