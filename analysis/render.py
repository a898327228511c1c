"""A table for people: Markdown, LaTeX and HTML from the same cells."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, select_autoescape

from analysis.speedups import KINDS, TITLES
from analysis.tables import BASELINE, MISSING, NOT_APPLICABLE
from redraft.config import Column, Table

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(("html.j2",)),
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip

FROM_REPORTED = "computed from the numbers that the paper reports, nothing reproduced"


def name(table: Table) -> str:
    """`Table 3`, or `Extra 1` for a table that the paper does not have."""
    return f"Extra {table.number - 100}" if table.beyond_paper else f"Table {table.number}"


def number(value: float, decimals: int) -> str:
    """A number with so many decimals, `–` for NaN."""
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def cell_text(cell: pd.Series, column: Column) -> str:
    """`0.31 [0.28, 0.34] (paper 0.33)`; what is missing says so, what cannot be is `–`."""
    text = MISSING if cell["verdict"] == MISSING else number(cell["reproduced"], column.decimals)
    if interval := _interval(cell, column):
        text += f" {interval}"
    if not math.isnan(cell["reported"]):
        text += f" (paper {number(cell['reported'], column.decimals)})"
    return text


def _interval(cell: pd.Series, column: Column) -> str:
    if math.isnan(cell["low"]) or cell["verdict"] in (BASELINE, NOT_APPLICABLE):
        return ""
    return f"[{number(cell['low'], column.decimals)}, {number(cell['high'], column.decimals)}]"


def _rows(table: Table, cells: pd.DataFrame) -> Iterator[tuple[str | None, str, list[pd.Series]]]:
    """The lines of a table in order: the group that begins there, the label, a cell a column."""
    before = ""
    for (group, label), part in cells.fillna({"group": ""}).groupby(["group", "row"], sort=False):
        indexed = part.set_index("column")
        heading = str(group) if group and group != before else None
        yield heading, str(label), [indexed.loc[column.name] for column in table.columns]
        before = group


def wide(table: Table, cells: pd.DataFrame, heading: str = "{}") -> pd.DataFrame:
    """Rows and columns as the paper prints them, each cell as text; a group's heading is a row of empty cells."""
    labels, rows = [], []
    for group, label, row in _rows(table, cells):
        if group:
            labels.append(heading.format(group))
            rows.append([""] * len(row))
        labels.append(label)
        rows.append([cell_text(cell, column) for cell, column in zip(row, table.columns, strict=True)])
    return pd.DataFrame(rows, index=labels, columns=[column.title for column in table.columns])


def markdown(table: Table, cells: pd.DataFrame) -> str:
    """The table in GitHub's Markdown."""
    note = f"\n{table.note}\n" if table.note else ""
    return f"**{name(table)}.** {table.title}\n\n{wide(table, cells, '**{}**').to_markdown()}\n{note}"


def latex(table: Table, cells: pd.DataFrame) -> str:
    """The table for `\\input`, with booktabs."""
    caption = f"{table.title}. Mean over seeds [95\\,\\% bootstrap interval] (reported value)."
    text = wide(table, cells).to_latex(escape=True, caption=caption, label=f"tab:{table.number}", position="ht")
    text = re.sub(r"^([^&\n]+?)((?: & ?)+ *\\\\)$", r"\\midrule \\emph{\1}\2", text, flags=re.MULTILINE)
    for symbol, command in {"–": "--", "∞": "$\\infty$", "ℓ": "$\\ell$", "Δ": "$\\Delta$", "×": "$\\times$"}.items():
        text = text.replace(symbol, command)
    return text


def html(table: Table, cells: pd.DataFrame, base: Path) -> str:
    """The table as an HTML fragment; each number links to the manifests of its runs, relative to `base`."""
    rows = [
        (group, label, [_html_cell(cell, column, base) for cell, column in zip(row, table.columns, strict=True)])
        for group, label, row in _rows(table, cells)
    ]
    return TEMPLATES.get_template("table.html.j2").render(table=table, name=name(table), rows=rows)


def _html_cell(cell: pd.Series, column: Column, base: Path) -> dict:
    links = [(path, _relative(Path(path), base)) for path in str(cell["manifests"]).split()]
    return {
        "verdict": cell["verdict"],
        "value": number(cell["reproduced"], column.decimals),
        "interval": _interval(cell, column),
        "noise": "" if math.isnan(cell["noise"]) else number(cell["noise"], max(column.decimals, 1)),
        "p": "" if math.isnan(cell["p_corrected"]) else f"{cell['p_corrected']:.2g}",
        "reported": "" if math.isnan(cell["reported"]) else number(cell["reported"], column.decimals),
        "deviation": "" if math.isnan(cell["deviation"]) else f"{cell['deviation']:+.{column.decimals}f}",
        "links": links,
    }


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()


def speedups_markdown(speedups: pd.DataFrame, table: int) -> str:
    """`analysis.speedups.reported_speedups` in Markdown."""
    body = _speedups(speedups).to_markdown(disable_numparse=True)
    return f"**Table {table}'s reported numbers, honest** ({FROM_REPORTED})\n\n{body}\n"


def speedups_html(speedups: pd.DataFrame, table: int) -> str:
    """The same as an HTML fragment."""
    body = _speedups(speedups).to_html(border=0)
    caption = f"<b>Table {table}'s reported numbers, honest</b> ({FROM_REPORTED})."
    return f'<figure class="table" id="table{table}-reported">\n<figcaption>{caption}</figcaption>\n{body}\n</figure>\n'


def _speedups(speedups: pd.DataFrame) -> pd.DataFrame:
    labels = [" ".join(filter(None, row)) for row in speedups[["model", "algorithm"]].itertuples(index=False)]
    texts = {TITLES[kind]: [number(value, 2) for value in speedups[kind]] for kind in KINDS}
    return pd.DataFrame(texts, index=labels)


def counterparts_markdown(missing: pd.DataFrame, summary: pd.DataFrame, preset: str) -> str:
    """Which reported rows have no counterpart at a preset: how many of each table, then every reason with its rows."""
    total, without = int(summary["reported rows"].sum()), int(summary["without"].sum())
    reasons = missing.assign(point=missing["gen_step"].where(missing["gen_step"] != "", missing["step"]))
    names = ["table", "cell", "model", "algorithm", "method", "lenience", "reason"]
    grouped = reasons.groupby(names, sort=False)["point"].agg(lambda points: ", ".join(filter(None, points)))
    parts = [
        "**Reported rows without a reproduced counterpart**", "",
        f"At the preset `{preset}`, {without} of the {total} reported rows have none. A reported row at another share "
        "of the run never stands in for one that is missing, and nothing is interpolated.", "",
        summary.to_markdown(index=False), "",
        grouped.rename("steps").reset_index().to_markdown(index=False, disable_numparse=True), "",
    ]  # fmt: skip
    return "\n".join(parts)
