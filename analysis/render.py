"""A table for people: Markdown, LaTeX and HTML from the same cells."""

import math
import os
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, select_autoescape

from redraft.config import Column, Table

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(("html.j2",)),
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
MISSING = "missing"


def number(value: float, decimals: int) -> str:
    """A number with so many decimals, `–` for NaN."""
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def cell_text(cell: pd.Series, column: Column) -> str:
    """`0.31 [0.28, 0.34] (paper 0.33)`; what is missing says so."""
    text = MISSING if cell["verdict"] == MISSING else number(cell["reproduced"], column.decimals)
    if not math.isnan(cell["low"]) and cell["verdict"] != "baseline":
        text += f" [{number(cell['low'], column.decimals)}, {number(cell['high'], column.decimals)}]"
    if not math.isnan(cell["reported"]):
        text += f" (paper {number(cell['reported'], column.decimals)})"
    return text


def wide(table: Table, cells: pd.DataFrame) -> pd.DataFrame:
    """Rows and columns as the paper prints them, each cell as text."""
    indexed = cells.set_index(["row", "column"])
    return pd.DataFrame(
        {c.title: [cell_text(indexed.loc[(row.label, c.name)], c) for row in table.rows] for c in table.columns},
        index=[row.label for row in table.rows],
    )


def markdown(table: Table, cells: pd.DataFrame) -> str:
    """The table in GitHub's Markdown."""
    note = f"\n{table.note}\n" if table.note else ""
    return f"**Table {table.number}.** {table.title}\n\n{wide(table, cells).to_markdown()}\n{note}"


def latex(table: Table, cells: pd.DataFrame) -> str:
    """The table for `\\input`, with booktabs."""
    caption = f"{table.title}. Mean over seeds [95\\,\\% bootstrap interval] (reported value)."
    text = wide(table, cells).to_latex(escape=True, caption=caption, label=f"tab:{table.number}", position="ht")
    for symbol, command in {"–": "--", "∞": "$\\infty$", "ℓ": "$\\ell$", "Δ": "$\\Delta$", "×": "$\\times$"}.items():
        text = text.replace(symbol, command)
    return text


def html(table: Table, cells: pd.DataFrame, base: Path) -> str:
    """The table as an HTML fragment; each number links to the manifests of its runs, relative to `base`."""
    indexed = cells.set_index(["row", "column"])
    rows = [
        (row.label, [_html_cell(indexed.loc[(row.label, c.name)], c, base) for c in table.columns])
        for row in table.rows
    ]
    return TEMPLATES.get_template("table.html.j2").render(table=table, rows=rows)


def _html_cell(cell: pd.Series, column: Column, base: Path) -> dict:
    links = [(path, _relative(Path(path), base)) for path in str(cell["manifests"]).split()]
    return {
        "verdict": cell["verdict"],
        "value": number(cell["reproduced"], column.decimals),
        "interval": "" if math.isnan(cell["low"]) or cell["verdict"] == "baseline"
        else f"[{number(cell['low'], column.decimals)}, {number(cell['high'], column.decimals)}]",
        "reported": "" if math.isnan(cell["reported"]) else number(cell["reported"], column.decimals),
        "deviation": "" if math.isnan(cell["deviation"]) else f"{cell['deviation']:+.{column.decimals}f}",
        "links": links,
    }  # fmt: skip


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()
