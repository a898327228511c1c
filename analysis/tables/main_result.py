"""The main result: the relative columns of a paper's first table, without its baselines; compares at any scale."""

from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.tables.cells import relation
from redraft.analysis.tables.columns import expand
from redraft.analysis.tables.render import html
from redraft.analysis.tables.sheet import Sheet
from redraft.analysis.tables.verdicts import MISSING
from redraft.config import Experiments, RunTable, TableWithoutRuns, id_of
from redraft.layout import Layout


def main_table(experiments: Experiments, paper: str) -> RunTable | None:
    """The paper's first table, if it compares runs."""
    tables = experiments.tables(paper).tables
    first = tables[0] if tables else None
    return None if first is None or isinstance(first, TableWithoutRuns) else first


def fragment(layout: Layout, paper: str, experiments: Experiments) -> tuple[str, dict[str, Any]]:
    """The comparisons of the first table as HTML, empty if none was run; and how many were, of how many."""
    table = main_table(experiments, paper)
    if table is None:
        return "", {"run": 0, "of": 0, "heading": ""}
    preset = experiments.preset_of(layout.preset, paper)
    whole = expand(table, preset.benchmarks, experiments.reported(paper), preset.name)
    relative = [column.model_copy(update={"in_brackets": False}) for column in whole.columns if relation(column)]
    compared = [row for row in whole.rows if row.at == "end" and row.cell != (row.baseline or whole.baseline)]
    cells = read_table(layout.table(paper, table.number))
    cells = cells[cells["column"].isin([column.name for column in relative])]
    keys = pd.MultiIndex.from_tuples([(row.label, id_of(paper, row.cell)) for row in compared], names=["row", "cell"])
    cells = cells[cells.set_index(["row", "cell"]).index.isin(keys)]
    run = len(cells.loc[cells["verdict"] != MISSING, ["row", "cell"]].drop_duplicates())
    sheet = Sheet(whole.model_copy(update={"note": ""}), relative, cells, preset.stand_in)
    if not relative:
        return "", {"run": 0, "of": 0, "heading": table.heading}
    text = html(sheet, layout.main_result(paper).parent, f"{paper}-main-result") if run else ""
    return text, {"run": run, "of": len(compared), "heading": table.heading}


TEXTS = ("group", "step", "seeds", "missing_seeds", "manifests", "stand_in")
"""Columns of a made table that are texts, also where every cell is empty or looks like a number."""


def read_table(stem: Path) -> pd.DataFrame:
    """A made table's cells."""
    frame = pd.read_csv(stem.with_suffix(".csv"), dtype=dict.fromkeys(TEXTS, str))
    texts = [column for column in TEXTS if column in frame]
    return frame.fillna(dict.fromkeys(texts, ""))
