"""What the workflow's analysis rules run."""

from pathlib import Path
from typing import TypeVar

import pandas as pd

from analysis.collect import Runs, collect
from analysis.reported import no_reported, read_reported
from analysis.tables import Source, expand, make_table
from redraft.config import Experiments, Figure, Table
from redraft.errors import UserError
from redraft.files import atomic, read_json, write_atomically, write_json
from redraft.layout import Layout

T = TypeVar("T", Table, Figure)

TIMES = 4
"""Number of the table that reports seconds by stage."""


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
        reported=no_reported() if spec.beyond_paper else read_reported(experiments.folder / paper, number),
        experiments=experiments,
        paper=paper,
        preset=preset,
        paper_scale=scale.paper_scale,
    )
    cells = make_table(spec, source)
    stem = layout.table(paper, number)
    _write_csv(cells, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.markdown(spec, cells))
    write_atomically(stem.with_suffix(".tex"), render.latex(spec, cells))
    write_atomically(stem.with_suffix(".html"), render.html(spec, cells, stem.parent))


def reported_speedups(preset: str, paper: str) -> None:
    """Every kind of speedup, computed from the table of reported times alone, as CSV, Markdown and HTML."""
    from analysis import render
    from analysis.speedups import reported_speedups as computed

    folder = Experiments().folder / paper
    speedups, stem = computed(read_reported(folder, TIMES)), Layout(preset).reported_speedups(paper)
    _write_csv(speedups, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.speedups_markdown(speedups, TIMES))
    write_atomically(stem.with_suffix(".html"), render.speedups_html(speedups, TIMES))


def counterparts(preset: str, paper: str) -> None:
    """List the reported rows that no regenerated row stands beside at this preset, as CSV and Markdown."""
    from analysis import render
    from analysis.counterparts import summary, without_counterpart

    layout, experiments = Layout(preset), Experiments()
    tables = {table.number: table for table in experiments.tables(paper).tables if not table.beyond_paper}
    reported = {number: read_reported(experiments.folder / paper, number) for number in sorted(tables)}
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    source = Source(runs, no_reported(), experiments, paper, preset, paper_scale)
    missing = without_counterpart(tables, source, reported)
    stem = layout.without_counterpart(paper)
    _write_csv(missing, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.counterparts_markdown(missing, summary(missing, reported), preset))


def figure(preset: str, paper: str, number: int) -> None:
    """Regenerate a figure as CSV, PNG and SVG."""
    from analysis.figures import draw, figure_data, reported_bars

    layout, experiments = Layout(preset), Experiments()
    spec = _find(experiments.figures(paper).figures, number)
    paper_scale = experiments.preset(preset).paper_scale
    reported = reported_bars(spec, experiments, paper) if paper_scale else {}
    data = figure_data(spec, Runs.load(layout.collected(paper)), paper_scale, reported)
    stem = layout.figure(paper, number)
    _write_csv(data, stem.with_suffix(".csv"))
    draw(spec, data, stem)


def judge_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and beside that on the paper's own tables."""
    from analysis.claims import judge
    from analysis.reported_claims import ReportedTables

    layout, experiments = Layout(preset), Experiments()
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    tables = ReportedTables(experiments.folder / paper, experiments)
    write_json(layout.claims(paper), judge(experiments.claims(paper).claims, runs, paper_scale, tables))


def cases(preset: str, paper: str) -> None:
    """Render the case studies that were chosen from a run, as HTML and Markdown."""
    from analysis import case_studies

    stem, numbers = Layout(preset).cases(paper), _case_numbers(paper)
    content = read_json(stem.with_suffix(".json"))
    write_atomically(stem.with_suffix(".html"), case_studies.html(content, numbers))
    write_atomically(stem.with_suffix(".md"), case_studies.markdown(content, numbers))


def _case_numbers(paper: str) -> list[int]:
    experiments = Experiments()
    if declared := experiments.figures(paper).cases:
        return declared.numbers
    raise UserError("this paper has no case studies", file=experiments.folder / paper / "figures.yaml", key="cases")


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
