"""Text of what follows from reported tables: speedups with verification counted, and rows without a counterpart."""

import pandas as pd

from redraft.analysis.data.speedups import KINDS, TITLES
from redraft.analysis.tables.sheet import number
from redraft.config import Reported

FROM_REPORTED = "computed from the numbers that the paper reports, nothing reproduced"


def speedups_markdown(speedups: pd.DataFrame, table: int) -> str:
    """`redraft.analysis.data.speedups.reported_speedups` in Markdown."""
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
    told = [name for name in names if speedups[name].iloc[:-1].nunique() > 1] or names[:1]
    labels = [" ".join(filter(None, row)) for row in speedups[told].itertuples(index=False)]
    if names[0] not in told:
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
        "of the run never stands in for one that is missing, and nothing is interpolated.",
        "",
        summary.to_markdown(index=False),
        "",
        grouped.rename("steps").reset_index().to_markdown(index=False, disable_numparse=True),
        "",
    ]
    return "\n".join(parts)
