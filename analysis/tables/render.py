"""A table for people: Markdown, CSV and HTML from the same slots; LaTeX is `redraft.analysis.tables.render_latex`."""

import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, select_autoescape

from redraft.analysis import FOLDER
from redraft.analysis.data.statistics import KEPT, GainKept
from redraft.analysis.tables.cell_verdicts import (
    AGREES,
    BASELINE,
    DIFFERS,
    INCONCLUSIVE,
    MARKS,
    NOT_APPLICABLE,
    NOT_COMPARABLE,
    UNEVEN,
)
from redraft.analysis.tables.render_latex import latex
from redraft.analysis.tables.sheet import ABSENT, Sheet, SheetRow, Slot, digits, number
from redraft.analysis.tables.sparklines import trajectories
from redraft.config import StepTable

TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=select_autoescape(("html.j2",)),
    trim_blocks=True,
    lstrip_blocks=True,
)


TEMPLATES.globals["MARKS"] = MARKS

MEANINGS = {
    AGREES: "agrees: the interval holds the paper's value",
    "same direction": "same direction: an effect on the paper's side of “no effect”, of another size",
    DIFFERS: "differs from the paper's value",
    "opposite direction": "opposite direction: an effect on the other side of “no effect”",
    INCONCLUSIVE: "inconclusive: the runs cannot tell",
    UNEVEN: "not decided: times that cannot be compared",
    BASELINE: "the baseline of its column",
    NOT_COMPARABLE: "no value of the paper's to compare with",
}
"""Verdicts in words."""


def wide(sheet: Sheet, heading: str = "{}") -> pd.DataFrame:
    """Rows and columns as the paper prints them, each cell as text, the paper's value in the next column.

    A group's heading is a row of empty cells.
    """
    headers = sheet.beside(sheet.headers, ["paper"] * len(sheet.headers))
    labels, rows = [], []
    for line in sheet.lines:
        if line.heading:
            labels.append(heading.format(line.heading))
            rows.append([""] * len(headers))
        labels.append(line.label)
        rows.append(sheet.beside([slot.text for slot in line.slots], [slot.paper for slot in line.slots]))
    return pd.DataFrame(rows, index=labels, columns=headers)


def markdown(sheet: Sheet) -> str:
    """The table in GitHub's Markdown; values are means over seeds ± half the width of their 95 % intervals."""
    note = f"\n{sheet.table.note}\n" if sheet.table.note else ""
    frame = wide(sheet, "**{}**")
    aligned = ("left", *["right"] * len(frame.columns))
    # Numbers stay as they are written: the library would drop their last zeros.
    body = frame.to_markdown(disable_numparse=True, colalign=aligned)
    return f"**{sheet.table.heading}.** {sheet.title}\n\n{body}\n{note}"


def csv(sheet: Sheet) -> str:
    """The table as CSV to be copied: of each column the value, half the width of its interval, and the paper's value.

    Digits are those that are shown; what is missing is empty.
    """
    header, rows = ["group", "row"], []
    # Not by title: columns with equal titles would replace each other.
    for slot in sheet.lines[0].cells if sheet.lines else []:
        header += [slot.column.title, f"{slot.column.title} ±", f"{slot.column.title}, paper"]
    for line in sheet.lines:
        row = [line.group, line.label]
        for slot in line.cells:
            values = (slot.cell["reproduced"], slot.half_width, slot.cell["reported"])
            row += ["" if math.isnan(value) else digits(value, slot.column.decimals) for value in values]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=header).replace("", math.nan).dropna(axis="columns", how="all")
    return str(frame.to_csv(index=False, lineterminator="\n"))


def html(sheet: Sheet, base: Path, name: str = "", data: str = "") -> str:
    """The table as an HTML fragment, for a page that holds `table.css` and `table.js` once.

    A number's details hold links to the manifests of its runs.

    Args:
        sheet: the table.
        base: folder of the page or fragment, to which links are relative.
        name: identifier of the fragment, `table<number>` by default.
        data: link to the CSV file of the cells, if there is one.
    """
    name = name or f"table{sheet.table.number}"
    columns = []
    for i, title in enumerate(sheet.headers):
        slots = [line.slots[i] for line in sheet.lines]
        # The longest interval of a column reserves its width, so that the values are aligned.
        spread, marks = max((slot.spread for slot in slots), key=len, default=""), any(slot.marked for slot in slots)
        columns.append({"title": title, "paper": sheet.papers[i], "spread": spread, "marks": marks})
    return TEMPLATES.get_template("table.html.j2").render(
        sheet=sheet,
        table=sheet.table,
        name=name,
        data=data,
        columns=columns,
        present={line.group for line in sheet.lines if line.was_run},
        details=lambda slot, line: _details(slot, line, base),
        trajectories=trajectories(sheet) if isinstance(sheet.table, StepTable) else None,
        copies={"CSV": csv(sheet), "Markdown": markdown(sheet), "LaTeX": latex(sheet)},
    )


def _details(slot: Slot, line: SheetRow, base: Path) -> dict[str, Any] | None:
    """What a number's details say, by heading; None where there is no number."""
    if slot.verdict in (*ABSENT, NOT_APPLICABLE):
        return None
    found = {column.column.title: _terms(column) for column in (slot, *slot.bracketed) if column.verdict not in ABSENT}
    title = ", ".join(filter(None, (line.group, line.label)))
    paths = [Path(path) for each in (slot, *slot.bracketed) for path in str(each.cell["manifests"]).split()]
    links = [(" ".join(path.parent.parts[-2:]), Path(os.path.relpath(path, base)).as_posix()) for path in paths]
    # A value and its speedup rest on the same runs, which are listed once.
    return {"title": title, "terms": found, "links": list(dict.fromkeys(links))}


def _terms(slot: Slot) -> dict[str, str]:
    """A cell's details, each a word and its text."""
    cell, decimals = slot.cell, slot.column.decimals
    reported, deviation, seeds = cell["reported"], cell["deviation"], str(cell["seeds"]).split()
    # `number` would write an infinite one as a target that was never reached.
    seen = "∞" if math.isinf(cell["detectable"]) else number(cell["detectable"], decimals)
    terms = {
        "Value": slot.value,
        "95 % interval": slot.interval,
        "Verdict": MEANINGS.get(slot.verdict, slot.verdict),
        "Could show": "" if math.isnan(cell["detectable"]) else seen,
        "Corrected p": "" if math.isnan(cell["p_corrected"]) else f"{cell['p_corrected']:.2g}",
        "Paper": "" if math.isnan(reported) else number(reported, decimals),
        "Deviation": f"{deviation:+.{decimals}f}".replace("-", "−") if math.isfinite(deviation) else "",
        "Noise of sampling": "" if math.isnan(cell["noise"]) else f"± {number(cell['noise'], max(decimals, 1))}",
        "Gain kept": "" if math.isnan(cell["baseline_gain"]) else GainKept(*(cell[name] for name in KEPT)).text,
        "Seeds": slot.fewer_seeds or ", ".join(seeds),
    }
    return {word: text for word, text in terms.items() if text}
