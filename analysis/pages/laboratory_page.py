"""The bias laboratory's page: enumerated distributions, and observed drafts of training runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from redraft.analysis.pages.laboratory_distributions import enumerated_parts
from redraft.analysis.pages.laboratory_parts import LaboratoryPart, marked
from redraft.analysis.pages.laboratory_runs import draft_part, observation_files, observed, training_part
from redraft.analysis.pages.multiples import Style, multiples, palette
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.run_pages import link
from redraft.files import atomic
from redraft.layout import Layout
from redraft.result_files import read_with_hash

PAGE = "laboratory.html"


def content(layout: Layout, papers: Sequence[Paper]) -> dict[str, Any]:
    """Content of the page for papers with a laboratory; also writes the data of each part as CSV."""
    enumerated = read_with_hash(layout.distributions) if layout.distributions.exists() else None
    parts = [("", part) for part in enumerated_parts(enumerated)]
    for paper in papers:
        pairs = observed(paper)
        parts += [(f"{paper.name}-", part) for part in (draft_part(paper, pairs), training_part(paper, pairs))]
    # One palette for the page: a rule has the same line in all diagrams.
    styles = palette(label for _, part in parts for diagram in part.diagrams for label in diagram.lines)
    shown = [_shown(layout, part, prefix, styles) for prefix, part in parts]
    files = [file for paper in papers for file in observation_files(paper).values()]
    sources = [
        (file.relative_to(layout.folder).as_posix(), link(layout, file)) for file in (layout.distributions, *files)
    ]
    # The first source is the enumeration's file, which is missing without one.
    return {"parts": shown, "sources": sources if enumerated else sources[1:], "of": papers}


def _shown(layout: Layout, part: LaboratoryPart, prefix: str, styles: Mapping[str, Style]) -> dict[str, Any]:
    """A part for the template, with its diagrams and a link to its data; line styles are the same on the whole page."""
    file = layout.pages / "laboratory" / f"{prefix}{part.question.name}.csv"
    if len(part.data):
        with atomic(file) as temporary:
            part.data.to_csv(temporary, index=False)
    return {
        "name": f"{prefix}{part.question.name}",
        "part": part,
        "drawing": multiples(part.diagrams, styles),
        "note": marked(part.note),
        "missing": marked(part.missing),
        "csv": file.relative_to(layout.pages).as_posix() if len(part.data) else "",
    }
