"""File of a paper's claims with their verdicts."""

from redraft.analysis.claims.reported_claims import ReportedTables
from redraft.analysis.claims.verdicts import judge
from redraft.analysis.data.measured import FAMILY, Measured
from redraft.analysis.data.statistics import Families
from redraft.config import Experiments
from redraft.layout import Layout
from redraft.result_files import write_with_hash


def write_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and also on the paper's own tables, if they are transcribed."""
    layout, experiments = Layout(preset), Experiments()
    folder, paper_scale = layout.collected(paper), experiments.preset(preset).paper_scale
    spec = experiments.reported(paper)
    tables = ReportedTables(experiments.folder_of(paper), spec, experiments) if spec else None
    claims, measured = experiments.claims(paper).claims, Measured.load(folder)
    families = Families.load(folder / FAMILY)
    write_with_hash(layout.claims(paper), judge(claims, measured, paper_scale, tables, families))
