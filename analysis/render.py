"""A table for people: Markdown, LaTeX and HTML from the same cells."""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, select_autoescape

from analysis.verdicts import BASELINE, MARKS, MISSING, NO_DATA, NOT_APPLICABLE
from redraft.config import Column
from redraft.config.tables import AnyTable

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(("html.j2",)),
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


TEMPLATES.globals["MARKS"] = MARKS

NEVER = "†"
"""Text of a target that was never reached."""


@dataclass(frozen=True)
class Sheet:
    """A made table: what its declaration says of it, its columns at one preset, and its cells.

    `stand_in` says that the runs are not of the paper's models and data, if they are not.
    """

    table: AnyTable
    columns: list[Column]
    cells: pd.DataFrame
    stand_in: str = ""

    @property
    def title(self) -> str:
        """The table's title, behind the word that it is not of what the title names, where it is not."""
        return f"{self.stand_in}. {self.table.title}" if self.stand_in else self.table.title

    @property
    def headers(self) -> list[str]:
        """Titles of the columns that stand by themselves."""
        return [column.title for column in self.columns if not column.in_brackets]

    def rows(self) -> Iterator[tuple[str | None, str, list[list[tuple[pd.Series, Column]]]]]:
        """The lines in order: the group that begins there, the label, and for each header its cells.

        The first of a header's cells is its own; those behind it stand in brackets.
        """
        before = ""
        for (group, label), part in self.cells.fillna({"group": ""}).groupby(["group", "row"], sort=False):
            indexed = part.set_index("column")
            heading = str(group) if group and group != before else None
            slots: list[list[tuple[pd.Series, Column]]] = []
            for column in self.columns:
                cell = (indexed.loc[column.name], column)
                slots[-1].append(cell) if column.in_brackets else slots.append([cell])
            yield heading, str(label), slots
            before = group


def number(value: float, decimals: int) -> str:
    """A number with so many decimals, `–` for NaN, † for infinity."""
    return "–" if math.isnan(value) else NEVER if math.isinf(value) else f"{value:.{decimals}f}"


def cell_text(cell: pd.Series, column: Column) -> str:
    """`0.31 [0.28, 0.34] (paper 0.33)`; what is missing says so, what cannot be is `–`."""
    text = value_text(cell, column)
    if interval := _interval(cell, column):
        text += f" {interval}"
    if missing := _missing_seeds(cell):
        text += f" ({missing})"
    if not math.isnan(cell["reported"]):
        text += f" (paper {number(cell['reported'], column.decimals)})"
    return text


def value_text(cell: pd.Series, column: Column) -> str:
    """The value alone; what was not run or has no data says so."""
    if cell["verdict"] in (MISSING, NO_DATA):
        return str(cell["verdict"])
    return number(cell["reproduced"], column.decimals)


def slot_text(slot: list[tuple[pd.Series, Column]]) -> str:
    """A cell's text, and behind it in brackets those that belong to it: `7.6 (3.4 ×) (paper 7.6)`."""
    (cell, column), *behind = slot
    brackets = "".join(f" ({bracket_text(*other)})" for other in behind if _has_bracket(other[0]))
    text = cell_text(cell, column)
    return text.replace(" (paper", f"{brackets} (paper", 1) if " (paper" in text else text + brackets


def bracket_text(cell: pd.Series, column: Column) -> str:
    """`3.4 ×`, and the paper's if there is one; † where one of the two compared never reached the target."""
    text = NEVER if cell["verdict"] == NOT_APPLICABLE else f"{number(cell['reproduced'], column.decimals)} ×"
    return text if math.isnan(cell["reported"]) else f"{text}, paper {number(cell['reported'], column.decimals)} ×"


def _has_bracket(cell: pd.Series) -> bool:
    return cell["verdict"] not in (MISSING, NO_DATA, BASELINE)


def _interval(cell: pd.Series, column: Column) -> str:
    if math.isnan(cell["low"]) or cell["verdict"] in (BASELINE, NOT_APPLICABLE):
        return ""
    return f"[{number(cell['low'], column.decimals)}, {number(cell['high'], column.decimals)}]"


def _missing_seeds(cell: pd.Series) -> str:
    """`n = 2, without seed 1`, where a value rests on fewer seeds than the preset has; else nothing."""
    missing = str(cell["missing_seeds"]).split()
    return f"n = {cell['n_seeds']}, without seed{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else ""


def wide(sheet: Sheet, heading: str = "{}") -> pd.DataFrame:
    """Rows and columns as the paper prints them, each cell as text; a group's heading is a row of empty cells."""
    labels, rows = [], []
    for group, label, slots in sheet.rows():
        if group:
            labels.append(heading.format(group))
            rows.append([""] * len(slots))
        labels.append(label)
        rows.append([slot_text(slot) for slot in slots])
    return pd.DataFrame(rows, index=labels, columns=sheet.headers)


def markdown(sheet: Sheet) -> str:
    """The table in GitHub's Markdown."""
    note = f"\n{sheet.table.note}\n" if sheet.table.note else ""
    return f"**{sheet.table.heading}.** {sheet.title}\n\n{wide(sheet, '**{}**').to_markdown()}\n{note}"


def latex(sheet: Sheet) -> str:
    """The table for `\\input`, with booktabs."""
    caption = f"{sheet.title}. Mean over seeds [95\\,\\% Student interval] (reported value)."
    text = wide(sheet).to_latex(escape=True, caption=caption, label=f"tab:{sheet.table.number}", position="ht")
    text = re.sub(r"^([^&\n]+?)((?: & ?)+ *\\\\)$", r"\\midrule \\emph{\1}\2", text, flags=re.MULTILINE)
    for symbol, command in LATEX.items():
        text = text.replace(symbol, command)
    return text


LATEX = {
    "–": "--", "∞": "$\\infty$", "ℓ": "$\\ell$", "Δ": "$\\Delta$", "×": "$\\times$", "†": "$\\dagger$",
}  # fmt: skip


def html(sheet: Sheet, base: Path, name: str = "") -> str:
    """The table as an HTML fragment; each number links to the manifests of its runs, relative to `base`.

    Args:
        sheet: the table.
        base: folder of the page or fragment.
        name: identifier of the fragment, `table<number>` by default.
    """
    rows = [(group, label, [_html_slot(slot, base) for slot in slots]) for group, label, slots in sheet.rows()]
    return TEMPLATES.get_template("table.html.j2").render(
        table=sheet.table,
        title=sheet.title,
        headers=sheet.headers,
        rows=rows,
        name=name or f"table{sheet.table.number}",
    )


def _html_slot(slot: list[tuple[pd.Series, Column]], base: Path) -> dict:
    (cell, column), *behind = slot
    links = [(path, _relative(Path(path), base)) for path in str(cell["manifests"]).split()]
    return {
        "verdict": cell["verdict"],
        "value": number(cell["reproduced"], column.decimals),
        "interval": _interval(cell, column),
        "missing_seeds": _missing_seeds(cell),
        "noise": "" if math.isnan(cell["noise"]) else number(cell["noise"], max(column.decimals, 1)),
        "p": "" if math.isnan(cell["p_corrected"]) else f"{cell['p_corrected']:.2g}",
        "reported": "" if math.isnan(cell["reported"]) else number(cell["reported"], column.decimals),
        "deviation": f"{cell['deviation']:+.{column.decimals}f}" if math.isfinite(cell["deviation"]) else "",
        "links": links,
        "brackets": [
            {"text": bracket_text(*other), "verdict": other[0]["verdict"]} for other in behind if _has_bracket(other[0])
        ],
    }


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()
