"""What the workflow's analysis rules run."""

from pathlib import Path
from typing import TypeVar

import pandas as pd

from analysis.collect import Runs, collect
from analysis.reported import read_reported
from analysis.tables import Source, expand, make_table
from redraft.config import Experiments, Figure, Table
from redraft.errors import UserError
from redraft.files import atomic, write_atomically, write_json
from redraft.layout import Layout

T = TypeVar("T", Table, Figure)


def collect_runs(preset: str, paper: str) -> None:
    """Gather all finished runs of a paper."""
    layout = Layout(preset)
    collect(layout, paper, Experiments()).save(layout.collected(paper))


def table(preset: str, paper: str, number: int) -> None:
    """Regenerate a table as CSV, Markdown, LaTeX and HTML."""
    from analysis import render

    layout, experiments = Layout(preset), Experiments()
    scale = experiments.preset(preset)
    spec = expand(_find(experiments.tables(paper).tables, number), scale.benchmarks)
    source = Source(
        runs=Runs.load(layout.collected(paper)),
        reported=read_reported(experiments.folder / paper, number),
        experiments=experiments,
        paper=paper,
        paper_scale=scale.paper_scale,
    )
    cells = make_table(spec, source)
    stem = layout.table(paper, number)
    _write_csv(cells, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.markdown(spec, cells))
    write_atomically(stem.with_suffix(".tex"), render.latex(spec, cells))
    write_atomically(stem.with_suffix(".html"), render.html(spec, cells, stem.parent))


def figure(preset: str, paper: str, number: int) -> None:
    """Regenerate a figure as CSV, PNG and SVG."""
    from analysis.figures import draw, figure_data

    layout, experiments = Layout(preset), Experiments()
    spec = _find(experiments.figures(paper).figures, number)
    data = figure_data(spec, Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale)
    stem = layout.figure(paper, number)
    _write_csv(data, stem.with_suffix(".csv"))
    draw(spec, data, stem)


def judge_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper."""
    from analysis.claims import judge

    layout, experiments = Layout(preset), Experiments()
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    claims = experiments.claims(paper).claims
    write_json(layout.claims(paper), [judge(claim, runs, paper_scale) for claim in claims])


def report(preset: str, papers: list[str]) -> None:
    """Write the page a person opens."""
    from analysis.report import write_report

    write_report(Layout(preset), papers, Experiments())


def _find(items: list[T], number: int) -> T:
    for item in items:
        if item.number == number:
            return item
    raise UserError("no such number", key="number", value=number, allowed=[str(item.number) for item in items])


def _write_csv(frame: pd.DataFrame, file: Path) -> None:
    with atomic(file) as temporary:
        frame.to_csv(temporary, index=False)
