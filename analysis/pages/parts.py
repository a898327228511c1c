"""Parts that several pages show of a paper: its made tables, figures and case studies, and what has no counterpart."""

import posixpath
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.pages.figure import figure_fragment
from redraft.analysis.tables.main_result import read_table
from redraft.analysis.tables.verdicts import MISSING
from redraft.config import Experiments, Figure, Preset, StepTable, Table, TableWithoutRuns
from redraft.files import read_json
from redraft.layout import Layout


def link(layout: Layout, path: Path | str) -> str:
    """A result's file as a page links to it."""
    return "../" + Path(path).relative_to(layout.folder).as_posix()


def main_result(layout: Layout, paper: str) -> dict[str, Any] | None:
    """The fragment and counts that `tables.main_result` made; None where there is nothing to compare."""
    stem = layout.main_result(paper)
    counts: dict[str, Any] = read_json(stem.with_suffix(".json"))
    return counts | {"html": fragment(layout, stem.with_suffix(".html"))} if counts["of"] else None


def table(layout: Layout, paper: str, declared: Table, preset: Preset) -> dict[str, Any]:
    """A rendered table, and how much of it is there."""
    stem = layout.table(paper, declared.number)
    verdicts = read_table(stem)["verdict"]
    honest = stem.with_name(f"{stem.name}_reported.html")
    return {
        "number": declared.number,
        "name": declared.heading,
        "title": declared.title,
        "stand_in": "" if isinstance(declared, TableWithoutRuns) else preset.stand_in,
        "open": not declared.beyond_paper and not isinstance(declared, StepTable),
        "missing": float((verdicts == MISSING).mean()),
        "html": fragment(layout, stem.with_suffix(".html")) + (fragment(layout, honest) if honest.exists() else ""),
    }


def fragment(layout: Layout, file: Path) -> str:
    """A rendered fragment, its links made relative to the pages' folder instead of its own."""
    folder = link(layout, file.parent)

    def moved(match: re.Match[str]) -> str:
        return f'href="{posixpath.normpath(posixpath.join(folder, match[1]))}"'

    return re.sub(r'href="([^"#:][^":]*)"', moved, file.read_text(encoding="utf-8"))


def figure(layout: Layout, paper: str, declared: Figure, unsampled: Set[str]) -> dict[str, Any]:
    """A figure's fragment; benchmarks that the preset leaves out are `unsampled`."""
    html = figure_fragment(declared, layout.figure(paper, declared.number), paper, layout.pages, unsampled)
    return {"number": declared.number, "name": declared.heading, "title": declared.title, "html": html}


def cases(layout: Layout, paper: str, experiments: Experiments, preset: Preset) -> dict[str, Any] | None:
    """Case studies of a paper that declares some; without text if they are not made."""
    declared = experiments.figures(paper).cases
    if declared is None:
        return None
    file = layout.cases(paper).with_suffix(".html")
    html = file.read_text(encoding="utf-8") if file.exists() else ""
    return {"numbers": declared.numbers, "run": f"{declared.cell} seed {preset.seeds[0]}", "html": html}


def without_counterpart(layout: Layout, paper: str) -> dict[str, Any] | None:
    """Why reported rows have no reproduced counterpart, with counts; a reason's details are in the file."""
    file = layout.without_counterpart(paper).with_suffix(".csv")
    if not file.exists():
        return None
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    kinds = frame["reason"].str.replace(r" \(.*\)", "", regex=True)
    reasons = frame.groupby(kinds, sort=False)["table"].agg(["size", lambda t: ", ".join(dict.fromkeys(t))])
    return {
        "total": len(frame),
        "reasons": [(reason, int(count), tables) for reason, count, tables in reasons.itertuples()],
        "file": link(layout, file),
    }
