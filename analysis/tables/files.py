"""Files of a paper's tables: each table, the main result, and what follows from the paper's transcription alone."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from redraft.analysis.data.measured import FAMILY, Measured
from redraft.analysis.data.reported import ReportedTable, no_reported, read_reported
from redraft.analysis.data.speedups import reported_speedups
from redraft.analysis.data.statistics import Family
from redraft.analysis.data.timing import timed_unevenly
from redraft.analysis.tables import decomposition, published, render, render_reported
from redraft.analysis.tables.budgets import verdicts
from redraft.analysis.tables.columns import expand
from redraft.analysis.tables.comparison import make_table
from redraft.analysis.tables.counterparts import summary, without_counterpart
from redraft.analysis.tables.lines import Source
from redraft.analysis.tables.main_result import fragment
from redraft.analysis.tables.sheet import Sheet
from redraft.config import (
    BudgetTable,
    DecompositionTable,
    Experiments,
    PublishedTable,
    Reported,
    ReportedTimes,
    RunTable,
    Table,
    TableWithoutRuns,
)
from redraft.files import atomic, write_atomically, write_json
from redraft.layout import Layout


def write_tables(preset: str, paper: str) -> None:
    """Regenerate all tables of a paper as CSV, Markdown, LaTeX and HTML, and write what goes with them."""
    layout, experiments = Layout(preset), Experiments()
    folder, paper_scale = layout.collected(paper), experiments.preset(preset).paper_scale
    source = Source(Measured.load(folder), no_reported(), experiments, paper, preset, paper_scale)
    tables, vocabulary = experiments.tables(paper).tables, experiments.reported(paper)
    family = Family.load(folder / FAMILY)
    for table in tables:
        _write_table(table, source, layout, family)
    if tables:
        html, counts = fragment(layout, paper, experiments)
        write_atomically(layout.main_result(paper).with_suffix(".html"), html)
        write_json(layout.main_result(paper).with_suffix(".json"), counts)
    if vocabulary and vocabulary.times:
        _write_reported_speedups(vocabulary, vocabulary.times, source, layout)
    compared = [t for t in tables if not isinstance(t, TableWithoutRuns) and not t.beyond_paper]
    if vocabulary and any(t.reported_number is not None for t in compared):
        _write_counterparts({t.number: t for t in compared}, vocabulary, source, layout)


def _write_table(table: Table, source: Source, layout: Layout, family: Family) -> None:
    sheet = _sheet(table, replace(source, reported=_reported(table, source)), family)
    stem = layout.table(source.paper, table.number)
    _write_csv(sheet.cells.assign(stand_in=sheet.stand_in), stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.markdown(sheet))
    write_atomically(stem.with_suffix(".tex"), render.latex(sheet))
    page = render.html(sheet, stem.parent, f"{source.paper}-table{table.number}", data=f"{stem.name}.csv")
    write_atomically(stem.with_suffix(".html"), page)


def _sheet(table: Table, source: Source, family: Family) -> Sheet:
    """A table with its columns and cells."""
    if isinstance(table, PublishedTable):
        cells = published.make_published(table, source.reported)
        return Sheet(table, published.columns_of(table), cells)  # the paper's own curves: no stand-in
    if isinstance(table, DecompositionTable):
        cells = decomposition.make_decomposition(table, source.reported)
        return Sheet(table, decomposition.columns_of(table), cells)  # the paper's own models
    benchmarks = source.experiments.preset_of(source.preset, source.paper).benchmarks
    whole = expand(table, benchmarks, source.experiments.reported(source.paper), source.preset)
    stand_in = source.experiments.preset(source.preset).stand_in
    cells = make_table(whole, source, family)
    if isinstance(whole, BudgetTable):
        found = verdicts(whole, cells, bool(timed_unevenly(source.runs)))
        whole = whole.model_copy(update={"note": " ".join([*found, whole.note]).strip()})
    return Sheet(whole, whole.columns, cells, stand_in)


def _reported(table: Table, source: Source) -> ReportedTable:
    """The transcription that stands beside a table, without rows if there is none."""
    vocabulary = source.experiments.reported(source.paper)
    if vocabulary is None or table.reported_number is None:
        return no_reported()
    return read_reported(source.experiments.folder_of(source.paper), table.reported_number, vocabulary)


def _write_reported_speedups(vocabulary: Reported, times: ReportedTimes, source: Source, layout: Layout) -> None:
    """Every kind of speedup, computed from the table of reported times alone."""
    number = times.table
    speedups = reported_speedups(read_reported(source.experiments.folder_of(source.paper), number, vocabulary), times)
    stem, name = layout.reported_speedups(source.paper, number), f"{source.paper}-table{number}-reported"
    _write_csv(speedups, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render_reported.speedups_markdown(speedups, number))
    write_atomically(stem.with_suffix(".html"), render_reported.speedups_html(speedups, number, name))


def _write_counterparts(tables: dict[int, RunTable], vocabulary: Reported, source: Source, layout: Layout) -> None:
    """The reported rows that no regenerated row stands beside at this preset."""
    folder = source.experiments.folder_of(source.paper)
    reported = {number: read_reported(folder, number, vocabulary) for number in sorted(tables)}
    missing = without_counterpart(tables, source, reported, vocabulary)
    stem, counts = layout.without_counterpart(source.paper), summary(missing, reported)
    text = render_reported.counterparts_markdown(missing, counts, source.preset, vocabulary)
    _write_csv(missing, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), text)


def _write_csv(frame: pd.DataFrame, file: Path) -> None:
    with atomic(file) as temporary:
        frame.to_csv(temporary, index=False)
