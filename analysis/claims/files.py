"""File of a paper's claims with their verdicts."""

from redraft.analysis.claims.family import family_of
from redraft.analysis.claims.reported_claims import ReportedTables
from redraft.analysis.claims.verdicts import judge
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.reported import no_reported
from redraft.analysis.tables.lines import Source
from redraft.config import Experiments
from redraft.files import write_json
from redraft.layout import Layout


def write_claims(preset: str, paper: str) -> None:
    """Judge every claim of a paper on its runs, and also on the paper's own tables, if they are transcribed."""
    layout, experiments = Layout(preset), Experiments()
    runs, paper_scale = Runs.load(layout.collected(paper)), experiments.preset(preset).paper_scale
    spec = experiments.reported(paper)
    tables = ReportedTables(experiments.folder_of(paper), spec, experiments) if spec else None
    family = family_of(Source(runs, no_reported(), experiments, paper, preset, paper_scale))
    write_json(layout.claims(paper), judge(experiments.claims(paper).claims, runs, paper_scale, tables, family))
