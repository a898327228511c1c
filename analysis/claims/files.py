"""File of a paper's claims with their verdicts."""

from typing import Any

from redraft.analysis.claims.reported_claims import ReportedTables
from redraft.analysis.claims.verdicts import judge
from redraft.analysis.data.measured import FAMILY, Measured
from redraft.analysis.data.statistics import Families
from redraft.config import Experiments
from redraft.layout import Layout
from redraft.result_files import write_with_hash


def write_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and also on the paper's own tables, if they are transcribed."""
    layout = Layout(preset)
    write_with_hash(layout.claims(paper), judged(layout, paper))


def judged(layout: Layout, paper: str) -> list[dict[str, Any]]:
    """The content of a paper's file of claims."""
    experiments, folder = Experiments(), layout.collected(paper)
    claims, measured = experiments.claims(paper).claims, Measured.load(folder)
    paper_scale = experiments.preset(layout.preset).paper_scale
    return judge(claims, measured, paper_scale, ReportedTables.of(experiments, paper), Families.load(folder / FAMILY))
