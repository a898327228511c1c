"""All pages of a preset's report, and the few sentences that also end a campaign on the terminal."""

import math
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from redraft.analysis import FOLDER
from redraft.analysis.pages import headline, laboratory
from redraft.analysis.pages.figure import figure_assets
from redraft.analysis.pages.forest import headline_plot
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.runs import page_content
from redraft.analysis.tables.render import TEMPLATES
from redraft.config import Experiments
from redraft.config.read import read_yaml
from redraft.files import write_atomically, write_json
from redraft.layout import Layout, code_root

TABLES, FIGURES = ("tables.html", "comparison.html"), ("figures.html", "comparison.html")
"""Templates of pages with tables, and with figures: others do without their styles and scripts."""


def write_report(layout: Layout, papers: list[str], experiments: Experiments) -> None:
    """Write all pages: `report.html`, which leads to them, and `report/`.

    What a paper does not have (tables, figures, claims, case studies, transcribed tables) has no heading. Case studies
    that were declared and not made are said to be missing.
    """
    preset, told = experiments.preset(layout.preset), [Paper(layout, paper, experiments) for paper in papers]
    manifests = [run.manifest for paper in told for run in paper.run_views]
    common: dict[str, Any] = {
        "preset": preset,
        "papers": told,
        "blocks": preset.blocks,
        "commits": sorted(
            {(m["git"]["commit"] or "no commit")[:12] + " with changes" * bool(m["git"]["modified"]) for m in manifests}
        ),
        "machines": sorted({f"{m['machine']['processor']}, {m['machine']['cores']} cores" for m in manifests}),
        "runs": list({run.page: run for paper in told for run in paper.run_views}.values()),  # a base has two papers
        "own_pages": [(paper.name, paper.method) for paper in told if paper.own_page],
        "missing": _missing(layout.preset, told),
        "definitions": _definitions(code_root() / "docs/metrics.md"),
    }
    if observed := [paper for paper in told if experiments.observed_cell(paper.name)]:
        common["laboratory"] = laboratory.content(layout, observed)
        _page(layout, laboratory.PAGE, common | common["laboratory"])
    if common["definitions"]:
        _page(layout, "definitions.html", common)
    _page(layout, "index.html", common | {"plots": _plots(told), "citations": _citations(code_root(), told)})
    for name in ("tables", "figures", "audit"):
        _page(layout, f"{name}.html", common)
    _page(layout, "runs.html", common | _benchmarks(told))
    for paper in told:
        if paper.own_page:
            _page(layout, f"{paper.name}.html", common | {"paper": paper}, "comparison.html")
        for run in paper.run_views:
            steps = paper.runs.steps_of(run.cell)
            content = page_content(layout, run, steps[steps["seed"] == run.seed])
            _page(layout, run.page, common | content | {"root": "../../"}, "run.html")
    first_screen = {
        paper.name: {
            "method": paper.method,
            "title": paper.title,
            "headlines": headline.as_data(paper.points),
            "claims": paper.counts,
        }
        for paper in told
    }
    write_json(layout.pages / "summary.json", {"papers": first_screen, "missing": common["missing"]})
    write_atomically(layout.report, TEMPLATES.get_template("entry.html.j2").render(preset=preset))


def _missing(preset: str, papers: list[Paper]) -> dict[str, Any]:
    """What of the papers was not run: runs, minutes (None if unknown) and the command.

    Cells of one's own do not count.
    """
    papers = [paper for paper in papers if paper.name not in paper.experiments.own_papers]
    found = [paper.missing for paper in papers]
    minutes = sum(minutes for runs, minutes in found if runs)
    asked = ",".join(paper.name for paper, (runs, _) in zip(papers, found, strict=True) if runs)
    command = f"snakemake reproduction --config preset={preset} papers={asked}"
    return {
        "runs": sum(runs for runs, _ in found),
        "minutes": minutes if math.isfinite(minutes) else None,
        "command": command,
    }


def _page(layout: Layout, name: str, content: dict[str, Any], template: str = "") -> None:
    """Write a page; `template` is the name of its template where that is not its own, and `root` where pages lie."""
    template = template or name
    folder = FOLDER / "templates"
    named = ["base.css", "claims.js"] + (["table.css", "table.js"] if template in TABLES else [])
    named += ["multiples.css"] if template == laboratory.PAGE else []
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in named}
    css, js = ([text for name, text in texts.items() if name.endswith(kind)] for kind in (".css", ".js"))
    if template in FIGURES:
        figure_css, figure_js = figure_assets()
        css.append(figure_css)
        js.append(figure_js)
    text = TEMPLATES.get_template(f"{template}.j2").render(
        **{"root": ""}
        | content
        | {
            "page": name,
            "style": Markup("\n".join(css)),
            "script": Markup("\n".join(js)),
        }
    )
    write_atomically(layout.pages / name, text)


def _plots(papers: list[Paper]) -> list[dict[str, Any]]:
    """The two forest plots of the first screen: factors of cost, and differences of accuracy."""
    points = [point for paper in papers for point in paper.points]
    noise = max((t.largest for paper in papers if (t := paper.timing)), default=math.nan)
    kinds = (
        ("Cost: times less", True, ("percent fewer", "times")),
        ("Accuracy: points of difference", False, ("points",)),
    )
    plots = [
        {"title": title, "svg": headline_plot([p for p in points if p.form in forms], log, noise)}
        for title, log, forms in kinds
    ]
    return [plot for plot in plots if plot["svg"]]


def _benchmarks(papers: list[Paper]) -> dict[str, Any]:
    """The benchmarks that papers are evaluated on, with their names: those with the same ones together."""
    found: list[dict[str, Any]] = []
    for paper in papers:
        same = next((each for each in found if each["benchmarks"] == paper.preset.benchmarks), None)
        if same:
            same["papers"].append(paper.name)
        else:
            found.append({"papers": [paper.name], "benchmarks": paper.preset.benchmarks})
    return {"evaluations": found, "benchmarks": list(dict.fromkeys(n for each in found for n in each["benchmarks"]))}


def _definitions(file: Path) -> Markup | None:
    """What every number means, with links to other files as plain text; None where the code has no documentation."""
    if not file.exists():
        return None
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(file.read_text(encoding="utf-8"))
    return Markup(re.sub(r'<a href="[^"]*">(.*?)</a>', r"\1", html, flags=re.DOTALL))


def _citations(root: Path, papers: list[Paper]) -> str:
    """BibTeX of each paper on arXiv; without authors if `CITATION.cff` under the root has none for it."""
    file = root / "CITATION.cff"
    references = read_yaml(file).get("references", []) if file.exists() else []
    authors = {
        str(identifier["value"]): " and ".join(f"{a['family-names']}, {a['given-names']}" for a in reference["authors"])
        for reference in references
        for identifier in reference.get("identifiers", [])
    }
    entries = []
    for paper in papers:
        if paper.source.startswith("arXiv "):
            number = paper.source.removeprefix("arXiv ")
            fields = {
                "title": f"{{{paper.title}}}",
                "author": authors.get(paper.source.replace(" ", ":", 1)),
                "year": f"20{number[:2]}",
                "eprint": number,
                "archivePrefix": "arXiv",
            }
            lines = [f"  {key} = {{{value}}}" for key, value in fields.items() if value]
            entries.append(f"@misc{{{paper.name},\n" + ",\n".join(lines) + "\n}")
    return "\n\n".join(entries)
