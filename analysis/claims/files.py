"""File of a paper's claims with their verdicts."""

from collections import Counter

from redraft.analysis.claims.reported_claims import ReportedTables
from redraft.analysis.claims.verdicts import judge
from redraft.analysis.data.measured import FAMILY, Measured
from redraft.analysis.data.statistics import Family
from redraft.config import Experiments, TableWithoutRuns
from redraft.files import write_json
from redraft.layout import Layout


def write_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and also on the paper's own tables, if they are transcribed."""
    layout, experiments = Layout(preset), Experiments()
    folder, paper_scale = layout.collected(paper), experiments.preset(preset).paper_scale
    spec = experiments.reported(paper)
    tables = ReportedTables(experiments.folder_of(paper), spec, experiments) if spec else None
    claims, measured = experiments.claims(paper).claims, Measured.load(folder)
    family, titles = Family.load(folder / FAMILY), cell_titles(experiments, paper)
    write_json(layout.claims(paper), judge(claims, measured, paper_scale, tables, family, titles))


def cell_titles(experiments: Experiments, paper: str) -> dict[str, str]:
    """Title of each cell that has a row in a table of the paper, such as `GRPO (Qwen3-1.7B-Base)`.

    The first table that has the cell decides. A label alone may mean several cells: without a group, or where two
    titles are equal, the cell's name follows it in brackets.
    """
    labels: dict[str, tuple[str, str]] = {}
    for table in experiments.tables(paper).tables:
        if isinstance(table, TableWithoutRuns):
            continue
        group = ""
        for row in table.rows:
            group = row.group or group
            if row.at != "start":
                labels.setdefault(row.cell, (row.label.removeprefix("+ "), group))
    counts = Counter(labels.values())
    return {
        cell: f"{label} ({group})" if group and counts[label, group] == 1 else f"{label} [{cell}]"
        for cell, (label, group) in labels.items()
    }
