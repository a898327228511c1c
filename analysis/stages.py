"""Stages of the analysis, as the workflow's rules run them: each reads files, writes files and runs nothing.

What only one stage needs is imported in it.
"""

from redraft.analysis.data.collect import collect
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.layout import Layout
from redraft.result_files import OBJECT, read_with_hash, write_with_hash


def collect_runs(preset: str, paper: str) -> None:
    """Gather all finished runs of a paper."""
    layout = Layout(preset)
    collect(layout, paper, Experiments()).save(layout.collected(paper))


def cases(preset: str, paper: str) -> None:
    """Render the case studies that were chosen from a run, as HTML and Markdown."""
    from redraft.analysis.pages import case_studies

    stem, numbers = Layout(preset).cases(paper), _case_numbers(paper)
    content = read_with_hash(stem.with_suffix(".json"), OBJECT, "run", "cases")
    write_with_hash(stem.with_suffix(".html"), case_studies.html(content, numbers, paper))
    write_atomically(stem.with_suffix(".md"), case_studies.markdown(content, numbers))


def _case_numbers(paper: str) -> list[int]:
    experiments = Experiments()
    if declared := experiments.figures(paper).cases:
        return declared.numbers
    raise UserError("this paper has no case studies", file=experiments.path(paper, "figures.yaml"), key="cases")


def report(preset: str, papers: list[str]) -> None:
    """Write the pages that a person opens."""
    from redraft.analysis.pages.report_pages import write_report

    write_report(Layout(preset), papers, Experiments())
