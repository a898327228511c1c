"""Files of a paper's tables: each table, the main result, and what follows from the paper's transcription alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.measured import FAMILY, RECORD, Measured
from redraft.analysis.data.reported_tables import ReportedTable, no_reported, read_reported
from redraft.analysis.data.statistics import Family
from redraft.analysis.data.timing import reported_speedups, timed_unevenly
from redraft.analysis.tables import render, reported_only, without_runs
from redraft.analysis.tables.cell_verdicts import MISSING, budget_verdicts
from redraft.analysis.tables.comparison import TableSource, make_table, relation
from redraft.analysis.tables.reported_only import summary, without_counterpart
from redraft.analysis.tables.sheet import Sheet
from redraft.analysis.tables.table_columns import expand
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
    id_of,
)
from redraft.files import atomic, write_atomically
from redraft.layout import Layout
from redraft.result_files import check_derived, record_derived, write_with_hash


def write_tables(preset: str, paper: str) -> None:
    """Regenerate all tables of a paper as CSV, Markdown, LaTeX and HTML, and write what goes with them."""
    layout, experiments = Layout(preset), Experiments()
    folder, paper_scale = layout.collected(paper), experiments.preset(preset).paper_scale
    source = TableSource(Measured.load(folder), no_reported(), experiments, paper, preset, paper_scale)
    tables, vocabulary = experiments.tables(paper).tables, experiments.reported(paper)
    family = Family.load(folder / FAMILY)
    for table in tables:
        _write_table(table, source, layout, family)
    if tables:
        html, counts = main_result(layout, paper, experiments)
        write_atomically(layout.main_result(paper).with_suffix(".html"), html)
        write_with_hash(layout.main_result(paper).with_suffix(".json"), counts)
    if vocabulary and vocabulary.times:
        _write_reported_speedups(vocabulary, vocabulary.times, source, layout)
    compared = [t for t in tables if not isinstance(t, TableWithoutRuns) and not t.beyond_paper]
    if vocabulary and any(t.reported_number is not None for t in compared):
        _write_counterparts({t.number: t for t in compared}, vocabulary, source, layout)
    written = layout.tables(paper)
    record_derived(written, (file for file in written.glob("*") if file.is_file()), folder / RECORD)


def _write_table(table: Table, source: TableSource, layout: Layout, family: Family) -> None:
    sheet = _sheet(table, replace(source, reported=_reported(table, source)), family)
    stem = layout.table(source.paper, table.number)
    _write_csv(sheet.cells.assign(stand_in=sheet.stand_in), stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), render.markdown(sheet))
    write_atomically(stem.with_suffix(".tex"), render.latex(sheet))
    page = render.html(sheet, stem.parent, f"{source.paper}-table{table.number}", data=f"{stem.name}.csv")
    write_atomically(stem.with_suffix(".html"), page)


def _sheet(table: Table, source: TableSource, family: Family) -> Sheet:
    """A table with its columns and cells."""
    if isinstance(table, PublishedTable):
        cells = without_runs.make_published(table, source.reported)
        return Sheet(table, without_runs.published_columns(table), cells)  # the paper's own curves: no stand-in
    if isinstance(table, DecompositionTable):
        cells = without_runs.make_decomposition(table, source.reported)
        return Sheet(table, without_runs.decomposition_columns(table), cells)  # the paper's own models
    benchmarks = source.experiments.preset_of(source.preset, source.paper).benchmarks
    whole = expand(table, benchmarks, source.experiments.reported(source.paper), source.preset)
    stand_in = source.experiments.preset(source.preset).stand_in
    cells = make_table(whole, source, family)
    if isinstance(whole, BudgetTable):
        found = budget_verdicts(whole, cells, bool(timed_unevenly(source.runs)))
        whole = whole.model_copy(update={"note": " ".join([*found, whole.note]).strip()})
    return Sheet(whole, whole.columns, cells, stand_in)


def _reported(table: Table, source: TableSource) -> ReportedTable:
    """The transcription of the paper's table; without rows if there is none."""
    vocabulary = source.experiments.reported(source.paper)
    if vocabulary is None or table.reported_number is None:
        return no_reported()
    return read_reported(source.experiments.folder_of(source.paper), table.reported_number, vocabulary)


def _write_reported_speedups(vocabulary: Reported, times: ReportedTimes, source: TableSource, layout: Layout) -> None:
    """Every kind of speedup, computed from the table of reported times alone."""
    number = times.table
    speedups = reported_speedups(read_reported(source.experiments.folder_of(source.paper), number, vocabulary), times)
    stem, name = layout.reported_speedups(source.paper, number), f"{source.paper}-table{number}-reported"
    _write_csv(speedups, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), reported_only.speedups_markdown(speedups, number))
    write_atomically(stem.with_suffix(".html"), reported_only.speedups_html(speedups, number, name))


def _write_counterparts(tables: dict[int, RunTable], vocabulary: Reported, source: TableSource, layout: Layout) -> None:
    """Write the reported rows without a regenerated row at this preset."""
    folder = source.experiments.folder_of(source.paper)
    reported = {number: read_reported(folder, number, vocabulary) for number in sorted(tables)}
    missing = without_counterpart(tables, source, reported, vocabulary)
    stem, counts = layout.without_counterpart(source.paper), summary(missing, reported)
    text = reported_only.counterparts_markdown(missing, counts, source.preset, vocabulary)
    _write_csv(missing, stem.with_suffix(".csv"))
    write_atomically(stem.with_suffix(".md"), text)


def _write_csv(frame: pd.DataFrame, file: Path) -> None:
    with atomic(file) as temporary:
        frame.to_csv(temporary, index=False)


def main_table(experiments: Experiments, paper: str) -> RunTable | None:
    """The paper's first table, if it compares runs."""
    tables = experiments.tables(paper).tables
    first = tables[0] if tables else None
    return None if first is None or isinstance(first, TableWithoutRuns) else first


def main_result(layout: Layout, paper: str, experiments: Experiments) -> tuple[str, dict[str, Any]]:
    """The comparisons of the first table as HTML, empty if none was run; and how many were, of how many."""
    table = main_table(experiments, paper)
    if table is None:
        return "", {"run": 0, "of": 0, "heading": ""}
    preset = experiments.preset_of(layout.preset, paper)
    whole = expand(table, preset.benchmarks, experiments.reported(paper), preset.name)
    relative = [column.model_copy(update={"in_brackets": False}) for column in whole.columns if relation(column)]
    compared = [row for row in whole.rows if row.at == "end" and row.cell != (row.baseline or whole.baseline)]
    cells = _cells(layout.table(paper, table.number))
    cells = cells[cells["column"].isin([column.name for column in relative])]
    keys = pd.MultiIndex.from_tuples([(row.label, id_of(paper, row.cell)) for row in compared], names=["row", "cell"])
    cells = cells[cells.set_index(["row", "cell"]).index.isin(keys)]
    run = len(cells.loc[cells["verdict"] != MISSING, ["row", "cell"]].drop_duplicates())
    sheet = Sheet(whole.model_copy(update={"note": ""}), relative, cells, preset.stand_in)
    if not relative:
        return "", {"run": 0, "of": 0, "heading": table.heading}
    text = render.html(sheet, layout.main_result(paper).parent, f"{paper}-main-result") if run else ""
    return text, {"run": run, "of": len(compared), "heading": table.heading}


TEXTS = ("group", "step", "seeds", "missing_seeds", "manifests", "stand_in")
"""Columns of a made table that are texts, also where every cell is empty or looks like a number."""


def read_table(stem: Path) -> pd.DataFrame:
    """A made table's cells; a UserError if the file is not the one that was made."""
    check_derived(stem.with_suffix(".csv"))
    return _cells(stem)


def _cells(stem: Path) -> pd.DataFrame:
    frame = pd.read_csv(stem.with_suffix(".csv"), dtype=dict.fromkeys(TEXTS, str))
    texts = [column for column in TEXTS if column in frame]
    return frame.fillna(dict.fromkeys(texts, ""))
