"""Files of a paper's tables: each table, the main result, and what follows from the paper's transcription alone."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.data.measured import FAMILY, RECORD, Measured
from redraft.analysis.data.reported_tables import ReportedTable, no_reported, read_reported
from redraft.analysis.data.statistics import Families
from redraft.analysis.data.timing import reported_speedups, timed_unevenly
from redraft.analysis.tables import render, reported_only, without_runs
from redraft.analysis.tables.cell_verdicts import MISSING, budget_verdicts
from redraft.analysis.tables.comparison import TableSource, make_table, relation
from redraft.analysis.tables.resolved import Resolved
from redraft.analysis.tables.sheet import Sheet
from redraft.analysis.tables.table_columns import expand
from redraft.config import BudgetTable, DecompositionTable, PublishedTable, Table, TableWithoutRuns, id_of
from redraft.config.paper_files import PaperFiles
from redraft.config.tables import TableOfCells
from redraft.files import write_atomically
from redraft.layout import Layout
from redraft.result_files import check_derived, record_derived, write_with_hash


def write_tables(preset: str, paper: str) -> None:
    """Make all tables of a paper from what the stage `measure` wrote, as CSV, Markdown, LaTeX and HTML, and write what
    goes with them."""
    layout = Layout(preset)
    folder = layout.collected(paper)
    measured, resolved, families = Measured.load(folder), Resolved.load(folder), Families.load(folder / FAMILY)
    source, tables, spec = TableSource(measured, no_reported(), resolved), resolved.tables, resolved.reported
    reported: dict[int, ReportedTable] = {}
    compared = {t.number: t for t in tables if not isinstance(t, TableWithoutRuns) and not t.beyond_paper}
    if spec:
        transcribed = {table.reported_number for table in tables} | {spec.times.table if spec.times else None}
        numbers = sorted(number for number in {*transcribed, *compared} if number)
        reported = {number: read_reported(PaperFiles().folder_of(paper), number, spec) for number in numbers}
    sheets = []
    for table in tables:
        sheet = _sheet(
            table, replace(source, reported=reported.get(table.reported_number or 0, no_reported())), families
        )
        stem = layout.table(paper, table.number)
        write_atomically(stem.with_suffix(".csv"), sheet.cells.assign(stand_in=sheet.stand_in).to_csv(index=False))
        write_atomically(stem.with_suffix(".md"), render.markdown(sheet))
        write_atomically(stem.with_suffix(".tex"), render.latex(sheet))
        page = render.html(sheet, stem.parent, f"{paper}-table{table.number}", data=f"{stem.name}.csv")
        write_atomically(stem.with_suffix(".html"), page)
        sheets.append(sheet)
    if sheets:
        stem = layout.main_result(paper)
        shown, counts = main_result(sheets[0], paper)
        html = render.html(shown, stem.parent, f"{paper}-main-result") if counts["run"] else ""
        write_atomically(stem.with_suffix(".html"), html)
        write_atomically(stem.with_suffix(".md"), render.markdown(shown) if counts["run"] else "")
        write_with_hash(stem.with_suffix(".json"), counts)
    if spec and spec.times:
        number, stem = spec.times.table, layout.reported_speedups(paper, spec.times.table)
        speedups = reported_speedups(reported[number], spec.times)
        write_atomically(stem.with_suffix(".csv"), speedups.to_csv(index=False))
        for suffix, text in reported_only.speedups_texts(speedups, number, f"{paper}-table{number}-reported").items():
            write_atomically(stem.with_suffix(suffix), text)
    if compared and spec:
        rows = {number: reported[number] for number in sorted(compared)}
        missing, stem = reported_only.without_counterpart(compared, source, rows), layout.without_counterpart(paper)
        write_atomically(stem.with_suffix(".csv"), missing.to_csv(index=False))
        write_atomically(stem.with_suffix(".md"), reported_only.counterparts_markdown(missing, rows, preset))
    written = layout.tables(paper)
    # Last, since the record has the hashes of all files, those of earlier calls included.
    record_derived(written, (file for file in written.glob("*") if file.is_file()), folder / RECORD)


def _sheet(table: Table, source: TableSource, families: Families) -> Sheet:
    """A table with its columns and cells."""
    if isinstance(table, PublishedTable):
        cells = without_runs.make_published(table, source.reported)
        return Sheet(table, without_runs.published_columns(table), cells)  # the paper's own curves: no stand-in
    if isinstance(table, DecompositionTable):
        cells = without_runs.make_decomposition(table, source.reported)
        return Sheet(table, without_runs.decomposition_columns(table), cells)  # the paper's own models
    resolved = source.resolved
    whole = expand(table, resolved.benchmarks, resolved.reported, resolved.preset)
    cells = make_table(whole, source, families)
    if isinstance(whole, BudgetTable):
        pairs = combinations(dict.fromkeys(whole.cells), 2)
        found = budget_verdicts(whole, cells, timed_unevenly(source.measured.runs, pairs))
        whole = whole.model_copy(update={"note": " ".join([*found, whole.note]).strip()})
    return Sheet(whole, whole.columns, cells, resolved.stand_in)


def main_result(sheet: Sheet, paper: str) -> tuple[Sheet, dict[str, Any]]:
    """The comparisons of a paper's first table that were run, and how many there are, of how many."""
    table = sheet.table
    if not isinstance(table, TableOfCells):
        return sheet, {"run": 0, "of": 0, "heading": ""}
    # A column in brackets needs one before it, which may not be among these.
    relative = [column.model_copy(update={"in_brackets": False}) for column in sheet.columns if relation(column)]
    if not relative:
        return sheet, {"run": 0, "of": 0, "heading": table.heading}
    compared = [row for row in table.rows if row.at == "end" and row.cell != (row.baseline or table.baseline)]
    # By label and cell: a cell may have several rows, at its start and its end.
    keys = pd.MultiIndex.from_tuples([(row.label, id_of(paper, row.cell)) for row in compared], names=["row", "cell"])
    cells = sheet.cells[sheet.cells["column"].isin([column.name for column in relative])]
    cells = cells[cells.set_index(["row", "cell"]).index.isin(keys)]
    run = len(cells.loc[cells["verdict"] != MISSING, ["row", "cell"]].drop_duplicates())
    shown = Sheet(table.model_copy(update={"note": ""}), relative, cells, sheet.stand_in)
    return shown, {"run": run, "of": len(compared), "heading": table.heading}


TEXTS = ("group", "step", "seeds", "missing_seeds", "manifests", "stand_in")
"""Columns of a made table that are texts, also where every cell is empty or looks like a number."""


def read_table(stem: Path) -> pd.DataFrame:
    """A made table's cells; a UserError if the file is not the one that was made."""
    check_derived(stem.with_suffix(".csv"))
    return read_cells(stem.with_suffix(".csv"))


def read_cells(file: Path) -> pd.DataFrame:
    """A made table's cells from its CSV file, which may lack columns."""
    frame = pd.read_csv(file, dtype=dict.fromkeys(TEXTS, str))
    texts = [column for column in TEXTS if column in frame]
    return frame.fillna(dict.fromkeys(texts, ""))
