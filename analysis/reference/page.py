"""The page of published results (results/README.md), written from their records, tables, figures and claims alone."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.claims.verdicts import CONTRADICTED, NOT_RUN
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.words import machine_text, with_minus
from redraft.analysis.pages.claims_page import CLAIMS, about_text, seen_text
from redraft.analysis.pages.headline import HeadlineNumber, directed, points
from redraft.analysis.reference.published import Published
from redraft.analysis.tables.cell_verdicts import INCONCLUSIVE, MISSING, NOT_COMPARABLE, UNEVEN
from redraft.analysis.tables.files import read_cells
from redraft.config import Experiments, Preset
from redraft.errors import UserError
from redraft.files import errors_of_reading, write_atomically
from redraft.result_files import read_with_hash

START, END = "<!-- published results, written by `redraft publish` -->", "<!-- end of published results -->"
"""Lines of a page between which published results are."""
NOT_SHOWN = "smoke"
"""Preset that is published only for `redraft check`: its models learn next to nothing."""
FIGURES = 2
"""Figures of a paper on the page."""


def write_page(root: Path, page: Path) -> None:
    """Write all published results into a page, between its two marks.

    Args:
        root: folder with one folder of published results per preset.
        page: Markdown file with both marks.

    Raises:
        UserError: if the page lacks a mark, or published results are damaged.
    """
    experiments, parts = Experiments(), []
    for published in _shown(root):
        preset = experiments.preset(published.layout.preset)
        parts.append(f"# Preset `{preset.name}`\n\n{preset.description}")
        for paper in _papers(published, experiments):
            parts.append("\n\n".join(_paper(published, paper, experiments, page.parent)))
    _between_marks(page, parts)


def write_summary(root: Path, page: Path) -> None:
    """Write the headline numbers of all published papers, and one figure, into a page; arguments as of `write_page`."""
    experiments, rows, figures, shown = Experiments(), [], [], _shown(root)
    for published in shown:
        preset = published.layout.preset
        heading, named = (f"here (preset `{preset}`)", {}) if len(shown) == 1 else ("here", {"preset": f"`{preset}`"})
        for paper in _papers(published, experiments):
            numbers = [each for each in _headlines(published, paper, experiments) if each.verdict != MISSING]
            rows += [named | _summary_row(heading, each) for each in numbers]
            figures += [*_figures(published, paper, experiments, page.parent)]
    parts = [str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))] if rows else []
    _between_marks(page, parts + figures[1:2])


def _headlines(published: Published, paper: str, experiments: Experiments) -> list[HeadlineNumber]:
    """The headline numbers of a paper's published tables, in today's words."""
    declared = experiments.tables(paper)
    layout, runs = published.layout, Measured.load(published.layout.collected(paper)).runs
    # Published results lack a table that was declared later.
    made = [each for each in declared.headlines if layout.table(paper, each.table).with_suffix(".csv").exists()]
    # The hashes of published tables are in the paper's record, which has been checked.
    return points(layout, paper, made, declared.tables, runs, read=lambda stem: read_cells(stem.with_suffix(".csv")))


def _summary_row(heading: str, number: HeadlineNumber) -> dict[str, str]:
    """A headline number, in the column `heading`, beside the paper's."""
    word = ("less" if number.timed else "fewer") if number.form == "percent fewer" else ""
    reported, verdict = number.reported, number.verdict
    if verdict == NOT_COMPARABLE:
        effect = "an effect" if number.finding == "yes" else UNEVEN if number.uneven else INCONCLUSIVE
        verdict = f"{effect}; no comparable number"
    return {
        "": number.short,
        heading: directed(number.mean, number.form, word, number.low, number.high),
        "paper": "–" if math.isnan(reported) else directed(reported, number.form, word),
        "verdict": verdict,
    }


def _papers(published: Published, experiments: Experiments) -> list[str]:
    """Published papers in the order of the preset's default runs, then the others."""
    default = experiments.preset(published.layout.preset).default
    return [paper for paper in dict.fromkeys([*default, *experiments.papers]) if paper in published.records]


def _shown(root: Path) -> list[Published]:
    """All published results but those of the smoke preset; the preset with most papers first."""
    folders = sorted({file.parent for file in root.glob("*/*.json")})
    found = [Published.read(folder) for folder in folders if folder.name != NOT_SHOWN]
    return sorted(found, key=lambda published: -len(published.records))


def require_marks(page: Path) -> tuple[str, str]:
    """What is before and after the marks of a page, or a UserError if it lacks one."""
    with errors_of_reading(page):
        text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        lacking = END if start else START
        raise UserError("this page lacks a mark for published results", file=page, key="mark", value=lacking)
    return before, after


def _between_marks(page: Path, parts: Iterable[str]) -> None:
    """Replace what is between the two marks of a page."""
    before, after = require_marks(page)
    write_atomically(page, "\n\n".join([f"{before}{START}", *parts, f"{END}{after}"]))


def _paper(published: Published, paper: str, experiments: Experiments, page: Path) -> Iterator[str]:
    """Parts of a paper's section."""
    layout, record = published.layout, published.records[paper]
    file = experiments.cell_file(paper)
    source = file.source.removeprefix("arXiv ")
    linked = f"[{file.title}](https://arxiv.org/abs/{source})" if source != file.source else file.title
    yield f"## {record['method']}\n\n{linked}"
    yield "\n".join(f"- {each.sentence}" for each in _headlines(published, paper, experiments))
    main = layout.main_result(paper).with_suffix(".md")
    if main.exists() and (text := main.read_text(encoding="utf-8").strip()):
        yield text
    yield from list(_figures(published, paper, experiments, page))[:FIGURES]
    if layout.claims(paper).exists():
        yield from _claims(read_with_hash(layout.claims(paper), CLAIMS), record, _link(layout.claims(paper), page))
    preset = experiments.preset(record["preset"])
    yield f"{_campaign(record, preset)} {_not_trained(record, paper, experiments)}".strip()
    data = {"tables": layout.tables(paper), "figures": layout.figures(paper), "records": layout.collected(paper)}
    yield "All " + ", ".join(f"[{name}]({_link(folder, page)})" for name, folder in data.items()) + "."


def _figures(published: Published, paper: str, experiments: Experiments, page: Path) -> Iterator[str]:
    """Drawings of a paper's figures, in the order of their numbers."""
    for figure in experiments.figures(paper).figures:
        drawing = published.layout.figure(paper, figure.number).with_suffix(".svg")
        if drawing.exists():
            title = f"{figure.heading}: {figure.title}"
            yield f"![{title}]({_link(drawing, page)})\n\n*{title}*"


def _claims(claims: Iterable[Mapping[str, Any]], record: Mapping[str, Any], link: str) -> Iterator[str]:
    """Table of the primary and the contradicted claims with runs, and counts of all."""
    shown = [c for c in claims if (c["primary"] and c["verdict"] != NOT_RUN) or c["verdict"] == CONTRADICTED]
    rows = [
        {
            "claim": f"{about_text(claim)}“{claim['quotation']}” (§ {claim['section']})",
            "verdict": claim["verdict"] + " (weak test)" * bool(claim["weak"]),
            "evidence": with_minus(claim["evidence"]),
            "could show": with_minus(seen_text(claim)),
        }
        for claim in shown
    ]
    if rows:
        yield str(
            pd.DataFrame(rows)
            .map(lambda text: text.replace("|", "\\|"))
            .to_markdown(index=False, disable_numparse=True)
        )
    counted = ", ".join(f"{count} {verdict}" for verdict, count in record["claims"].items())
    total = sum(record["claims"].values())
    also = (
        "The table has the primary claims and all contradicted ones. *Could show* is the smallest difference or factor "
        "that this number of blocks shows with a probability of 80 %. A *weak test* passes by construction or with "
        "nearly every method. "
    )
    yield f"{also * bool(rows)}All {total} [claims]({link}): {counted}."


def _campaign(record: Mapping[str, Any], preset: Preset) -> str:
    """Cost and origin of a campaign."""
    runs = sum(map(len, record["cells"].values()))
    machines = "; ".join(f"{machine_text(m)}, Python {m['python']}" for m in record["machines"])
    archive = record["archive"]
    doi = f"[{archive['doi']}](https://doi.org/{archive['doi']})" if archive["doi"] else "not deposited yet"
    commits = ", ".join(commit[:12] for commit in record["commits"])
    seeds = max(map(len, record["cells"].values()))
    # Without blocks a seed is an own unit of the statistics.
    blocks = f"in {record['blocks']} blocks" if preset.blocks > 1 else "all of one initial policy and its problems"
    return (
        f"{runs} runs of {len(record['cells'])} cells, with up to {seeds} seeds, {blocks}; "
        f"{record['hours']:.1f} hours of training. Code: {commits}. Machine: {machines}. Archive of all rollouts, "
        f"generations and grades: `{archive['file']}`, {archive['bytes'] / 1e6:.0f} MB ({doi})."
    )


def _not_trained(record: Mapping[str, Any], paper: str, experiments: Experiments) -> str:
    """How many of the paper's cells these results lack, and the command that trains them; empty if none."""
    preset, cells = experiments.preset(record["preset"]), experiments.cells(paper, experiments.grids(paper, False))
    possible = [cell.id for cell in cells if experiments.has_run(cell, preset)]
    missing = sum(name not in record["cells"] for name in possible)
    if not missing:
        return ""
    command = f"snakemake reproduction --config preset={preset.name} papers={paper}"
    return (
        f"This preset can run {len(possible)} of the paper's {len(cells)} cells; {missing} of these were not trained "
        f"for these results. `{command}` trains them."
    )


def _link(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page)).as_posix()
