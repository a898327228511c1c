"""A figure in a page: interactive lines, and a drawing for browsers without JavaScript.

The page contains the styles and the script of `figure_assets` once, and each figure's fragment with its points as JSON.
"""

import json
import math
import os
import re
from collections.abc import Set
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pandas as pd
from markupsafe import Markup

from redraft.analysis import FOLDER
from redraft.analysis.figures.figure_drawing import MOST_COLUMNS
from redraft.analysis.figures.figure_parts import (
    FIRST_REUSE,
    INTERVAL,
    LINES,
    PAPER,
    absent,
    axis_label,
    cells_not_run,
    has_gaps,
    hues,
    is_cut,
    panel_view,
    smoothed,
    still_drawing,
    whole_ticks,
    with_data,
)
from redraft.analysis.figures.svg import address
from redraft.analysis.figures.view import View, cut_points
from redraft.analysis.tables.render import TEMPLATES
from redraft.config import Figure, Panel
from redraft.files import errors_of_reading
from redraft.result_files import check_derived

LIBRARY = FOLDER / "vendor" / "uplot"
DIGITS = 5
"""Significant digits of numbers in a page; the CSV file has all digits."""
POINTS = ("panel", "label", "x", "reproduced", "low", "high", "reported", "first_reuse", "seeds")
"""Columns without which points of a figure cannot be drawn."""
NUMBERS = ("x", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "upper", "y")


def figure_assets() -> tuple[str, str]:
    """Styles and script that all figures of a page share; each is inlined once."""
    styles = [LIBRARY / "uPlot.min.css", FOLDER / "templates" / "figure.css"]
    scripts = [LIBRARY / "uPlot.iife.min.js", FOLDER / "templates" / "figure.js"]
    licence = f"/*\n{(LIBRARY / 'LICENSE').read_text(encoding='utf-8')}\n*/\n"
    css, js = ("\n".join(file.read_text(encoding="utf-8") for file in files) for files in (styles, scripts))
    return css, licence + js


def figure_fragment(
    figure: Figure, stem: Path, paper: str, folder: Path, stand_in: str, unsampled: Set[str] = frozenset()
) -> str:
    """The HTML of one figure, `<figure id="<paper>-figure<number>">`; a paragraph with that id if it has no data.

    Its files are those of `redraft.analysis.figures.figure_files`.

    Args:
        folder: that of the page, to which links are relative.
        stand_in: note that the page has and its drawings need not repeat.
    """
    data = read_points(stem.with_suffix(".csv"))
    shown = with_data(figure, data)
    lines = [panel for panel in shown if figure.axis(panel) in LINES]
    # Only with both kinds of panels: else all are interactive, or all are in the one drawing.
    still = still_drawing(stem) if lines and len(lines) < len(shown) else None
    # The keys above a figure are of its interactive panels; a drawing has its own legend.
    of_lines = data[data["panel"].isin([panel.title for panel in lines])]
    marks = {
        ("band", "▒", INTERVAL): of_lines["low"].notna(),
        ("paper", "◇", PAPER): of_lines["reported"].notna(),
        ("first", "▲", FIRST_REUSE): of_lines["first_reuse"],
    }
    named, points = set(of_lines["label"]), [panel_points(figure, panel, data) for panel in lines]
    # `</script>` in a label would end the script.
    script = json.dumps(points, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATES.get_template("figure.html.j2").render(
        figure=figure,
        id=f"{paper}-figure{figure.number}",
        columns=min(figure.columns, len(shown), MOST_COLUMNS),
        statistics=bool(data["low"].notna().any()),
        cut=is_cut(figure, shown, data),
        absent=absent(figure, data, unsampled),
        panels=[(panel, cells_not_run(panel, data[data["panel"] == panel.title])) for panel in lines],
        keys=[
            {"key": i, "label": label, "hue": hue}
            for i, (label, hue) in enumerate(hues(figure).items())
            if label in named
        ],
        marks=[mark for mark, there in marks.items() if there.any()],
        points=Markup(script),
        drawing=_image(stem, stand_in) if shown else "",
        still=_image(still, stand_in) if still else "",
        # Published results have no PNG, and a figure without data has the CSV file alone.
        files={
            file.suffix.removeprefix("."): os.path.relpath(file, folder)
            for file in map(stem.with_suffix, (".csv", ".svg", ".png"))
            if file.exists()
        },
    )


def read_points(file: Path) -> pd.DataFrame:
    """The points of a figure from its CSV file; text that looks like a number stays text.

    Raises:
        UserError: if the file is not the one that was made, or has not the columns of a figure's points, as published
            results of someone else may.
    """
    check_derived(file)
    with errors_of_reading(file, ValueError):
        columns = pd.read_csv(file, nrows=0).columns
        if missing := next((name for name in POINTS if name not in columns), None):
            raise ValueError(f"it has no column {missing}")
        numbers = [name for name in columns if name in NUMBERS]
        text = {name: str for name in columns if name not in numbers}
        # Without pandas' words for missing values, so that a label such as None stays a label.
        data = pd.read_csv(file, dtype=text, keep_default_na=False, na_values={name: [""] for name in numbers})
        return data.astype(dict.fromkeys(numbers, float)).assign(first_reuse=data["first_reuse"] == "True")


def panel_points(figure: Figure, panel: Panel, data: pd.DataFrame) -> dict[str, Any]:
    """A line panel for the script: rounded points as one array per column, one entry per series."""
    points, names = data[data["panel"] == panel.title], list(hues(figure))
    whole, shown = figure.axis(panel) in ("step", "epoch"), panel_view(figure, panel, points)
    labels = [label for label in panel.names if label in set(points["label"])]
    return {
        "title": panel.title,
        "x": axis_label(figure, panel),
        "log": panel.log,
        "gaps": has_gaps(figure, panel),
        "ticks": whole_ticks(int(points["x"].min()), int(points["x"].max())) if whole else None,
        "series": [_series(panel, names.index(label), label, points, shown) for label in labels],
        **({"view": _rounded(pd.Series(shown))} if is_cut(figure, [panel], points) else {}),
    }


def _series(panel: Panel, key: int, label: str, points: pd.DataFrame, shown: View) -> dict[str, Any]:
    """The points of one line without empty columns; equal seeds of all points are written once."""
    line = points[points["label"] == label].sort_values("x", kind="stable")
    found: dict[str, Any] = {"key": key, "label": label, "x": _rounded(line["x"]), "mean": _rounded(line["reproduced"])}
    for name, column in (("low", "low"), ("high", "high"), ("paper", "reported")):
        if line[column].notna().any():
            found[name] = _rounded(line[column])
    if cut := cut_points(line, shown):
        found["cut"] = {end: [i for i, at in cut if at == end] for end in ("low", "high")}
    if panel.smoothing is not None:
        found["smooth"] = _rounded(smoothed(line["reproduced"], panel.smoothing))
    if line["first_reuse"].any():
        found["first"] = [i for i, marked in enumerate(line["first_reuse"]) if marked]
    seeds = list(line["seeds"])
    return found | {"seeds": seeds[0] if len(set(seeds)) == 1 else seeds}


def _rounded(values: pd.Series) -> list[float | int | None]:
    """Numbers with `DIGITS` significant digits, None for NaN."""
    # JSON has no NaN, and whole numbers without `.0` are shorter.
    rounded = [float(f"{value:.{DIGITS}g}") for value in values]
    return [None if math.isnan(value) else int(value) if value.is_integer() else value for value in rounded]


def _image(stem: Path, stand_in: str) -> Markup:
    """A drawing as a data URL, without the note on stand-ins, which a page shows once."""
    check_derived(file := stem.with_suffix(".svg"))
    svg = file.read_text(encoding="utf-8")
    return Markup(address(re.sub(rf"<text[^>]*>{re.escape(escape(stand_in))}</text>", "", svg) if stand_in else svg))
