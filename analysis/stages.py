"""Stages of the analysis, as the workflow's rules run them: each reads files, writes files and runs nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pandas as pd

from analysis.collect import Runs, collect
from analysis.columns import expand
from analysis.lines import Source
from analysis.reported import ReportedTable, no_reported, read_reported
from analysis.tables import make_table
from redraft.config import Experiments, Figure, PublishedTable, Reported, Table
from redraft.errors import UserError
from redraft.files import atomic, read_json, write_atomically, write_json
from redraft.layout import Layout, published_data

if TYPE_CHECKING:
    from analysis.render import Sheet

T = TypeVar("T", bound=Table | Figure)


def collect_runs(preset: str, paper: str) -> None:
    """Gather all finished runs of a paper."""
    layout = Layout(preset)
    collect(layout, paper, Experiments()).save(layout.collected(paper))


def table(preset: str, paper: str, number: int) -> None:
    """Regenerate a table as CSV, Markdown, LaTeX and HTML."""
    from analysis import render

    layout, experiments = Layout(preset), Experiments()
    spec = _find(experiments.tables(paper).tables, number)
    sheet = _sheet(spec, _reported(experiments, paper, spec), layout, paper, experiments)
    stem = layout.table(paper, number)
    _write_csv(sheet.cells, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.markdown(sheet))
    write_atomically(stem.with_suffix(".tex"), render.latex(sheet))
    write_atomically(stem.with_suffix(".html"), render.html(sheet, stem.parent, f"{paper}-table{number}"))


def _sheet(spec: Table, reported: ReportedTable, layout: Layout, paper: str, experiments: Experiments) -> "Sheet":
    """A table with its columns and cells."""
    from analysis import published
    from analysis.render import Sheet

    if isinstance(spec, PublishedTable):
        cells = published.make_published(spec, published_data(), reported)
        return Sheet(spec, published.columns_of(spec), cells)
    scale = experiments.preset(layout.preset)
    whole = expand(spec, scale.benchmarks, experiments.reported(paper))
    runs = Runs.load(layout.collected(paper))
    source = Source(runs, reported, experiments, paper, layout.preset, scale.paper_scale)
    return Sheet(whole, whole.columns, make_table(whole, source))


def _reported(experiments: Experiments, paper: str, spec: Table) -> ReportedTable:
    """The transcription that stands beside a table, without rows if there is none."""
    vocabulary = experiments.reported(paper)
    if vocabulary is None or spec.reported_number is None:
        return no_reported()
    return read_reported(experiments.folder / paper, spec.reported_number, vocabulary)


def _vocabulary(experiments: Experiments, paper: str) -> Reported:
    """The paper's vocabulary of reported tables.

    Raises:
        UserError: if it has none.
    """
    if found := experiments.reported(paper):
        return found
    raise UserError("nothing of this paper is transcribed", file=experiments.folder / paper / "reported.yaml")


def main_result(preset: str, paper: str) -> None:
    """Write the comparisons of the paper's first table that were run, as an HTML fragment and counts."""
    from analysis.main_result import fragment

    layout, experiments = Layout(preset), Experiments()
    html, counts = fragment(layout, paper, experiments)
    write_atomically(layout.main_result(paper).with_suffix(".html"), html)
    write_json(layout.main_result(paper).with_suffix(".json"), counts)


def reported_speedups(preset: str, paper: str) -> None:
    """Every kind of speedup, computed from the table of reported times alone, as CSV, Markdown and HTML."""
    from analysis import render_reported
    from analysis.speedups import reported_speedups as computed

    experiments = Experiments()
    spec = _vocabulary(experiments, paper)
    if spec.times is None:
        file = experiments.folder / paper / "reported.yaml"
        raise UserError("this paper reports no seconds by stage", file=file, key="times")
    number = spec.times.table
    speedups = computed(read_reported(experiments.folder / paper, number, spec), spec.times)
    stem = Layout(preset).reported_speedups(paper, number)
    _write_csv(speedups, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render_reported.speedups_markdown(speedups, number))
    name = f"{paper}-table{number}-reported"
    write_atomically(stem.with_suffix(".html"), render_reported.speedups_html(speedups, number, name))


def counterparts(preset: str, paper: str) -> None:
    """List the reported rows that no regenerated row stands beside at this preset, as CSV and Markdown."""
    from analysis import render_reported
    from analysis.counterparts import summary, without_counterpart

    layout, experiments = Layout(preset), Experiments()
    spec, declared = _vocabulary(experiments, paper), experiments.tables(paper).tables
    tables = {t.number: t for t in declared if not t.beyond_paper and not isinstance(t, PublishedTable)}
    reported = {number: read_reported(experiments.folder / paper, number, spec) for number in sorted(tables)}
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    source = Source(runs, no_reported(), experiments, paper, preset, paper_scale)
    missing = without_counterpart(tables, source, reported, spec)
    stem, counts = layout.without_counterpart(paper), summary(missing, reported)
    _write_csv(missing, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render_reported.counterparts_markdown(missing, counts, preset, spec))


def figure(preset: str, paper: str, number: int) -> None:
    """Regenerate a figure as CSV, PNG and SVG."""
    from analysis.figure_data import figure_data, reported_bars
    from analysis.figures import draw

    layout, experiments = Layout(preset), Experiments()
    spec = _find(experiments.figures(paper).figures, number)
    paper_scale = experiments.preset(preset).paper_scale
    reported = reported_bars(spec, experiments, paper) if paper_scale else {}
    cells = {name: experiments.cell(f"{paper}/{name}") for panel in spec.panels for name in panel.cells}
    data = figure_data(spec, Runs.load(layout.collected(paper)), paper_scale, reported, cells)
    stem = layout.figure(paper, number)
    _write_csv(data, stem.with_suffix(".csv"))
    draw(spec, data, stem)


def judge_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and beside that on the paper's own tables, if they are transcribed."""
    from analysis.claims import judge
    from analysis.reported_claims import ReportedTables

    layout, experiments = Layout(preset), Experiments()
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    spec = experiments.reported(paper)
    tables = ReportedTables(experiments.folder / paper, spec, experiments) if spec else None
    write_json(layout.claims(paper), judge(experiments.claims(paper).claims, runs, paper_scale, tables))


def cases(preset: str, paper: str) -> None:
    """Render the case studies that were chosen from a run, as HTML and Markdown."""
    from analysis import case_studies

    stem, numbers = Layout(preset).cases(paper), _case_numbers(paper)
    content = read_json(stem.with_suffix(".json"))
    write_atomically(stem.with_suffix(".html"), case_studies.html(content, numbers, paper))
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
