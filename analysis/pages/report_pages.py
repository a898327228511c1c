"""Writes all pages of a preset's report, and `summary.json`, which the terminal prints at the end of a campaign."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from redraft.analysis import FOLDER
from redraft.analysis.data.words import machine_text
from redraft.analysis.pages import headline, laboratory_page
from redraft.analysis.pages.figure_page import figure_assets
from redraft.analysis.pages.finished_report import record_report
from redraft.analysis.pages.forest import headline_plot
from redraft.analysis.pages.paper import Paper
from redraft.analysis.pages.run_pages import page_content
from redraft.analysis.pages.sensitivity_table import sensitivities
from redraft.analysis.tables.render import TEMPLATES
from redraft.config import Engine, Experiments
from redraft.config.read import read_yaml
from redraft.files import write_atomically
from redraft.layout import Layout, code_root
from redraft.messages import counted
from redraft.result_files import write_with_hash

TABLES, FIGURES = ("tables.html", "comparison.html"), ("figures.html", "comparison.html")
"""Templates that need the styles and scripts of tables, and those of figures."""


def _machine(manifest: Mapping[str, Any]) -> str:
    """Processor, cores and GPUs of a run; under vLLM on GPUs also how it decoded, for which alone a speedup holds."""
    machine, engine = manifest["machine"], manifest.get("configuration", {}).get("engine", {})
    decoding = ""
    if engine.get("kind") == "verl" and engine.get("device") == "cuda":
        decoding = f", vLLM {'without' if engine.get('eager') else 'with'} CUDA graphs"
    return machine_text(machine) + decoding


def report(preset: str, papers: list[str]) -> None:
    """Write the pages that a person opens (rule `report`)."""
    write_report(Layout(preset), papers, Experiments())


def write_report(layout: Layout, papers: list[str], experiments: Experiments) -> None:
    """Write all pages: `report.html`, which redirects to the first of them, and the folder `report/`.

    A paper without tables, figures, claims, case studies or transcribed tables gets no heading for them. Declared case
    studies that do not exist yet are listed as missing.
    """
    preset, shown = experiments.preset(layout.preset), [Paper(layout, paper, experiments) for paper in papers]
    manifests = [run.manifest for paper in shown for run in paper.run_views]
    common: dict[str, Any] = {
        "preset": preset,
        "papers": shown,
        "blocks": preset.blocks,
        "blocks_run": len({preset.unit(run.seed) for paper in shown for run in paper.run_views}),
        "commits": sorted(
            {(m["git"]["commit"] or "no commit")[:12] + " with changes" * bool(m["git"]["modified"]) for m in manifests}
        ),
        "machines": sorted({_machine(manifest) for manifest in manifests}),
        "runs": list({run.page: run for paper in shown for run in paper.run_views}.values()),  # a base has two papers
        "labels": {f"{paper.name}/{cell}": label for paper in shown for cell, label in paper.labels.items()},
        "own_pages": [(paper.name, paper.method) for paper in shown if paper.own_page],
        "missing": _missing(layout.preset, shown),
        "left_out": {cell: reason for paper in shown for cell, reason in paper.left_out.items()},
        "definitions": _definitions(code_root() / "docs/metrics.md"),
    }
    if observed := [paper for paper in shown if experiments.observed_cell(paper.name)]:
        common["laboratory"] = laboratory_page.content(layout, observed)
        _page(layout, laboratory_page.PAGE, common | common["laboratory"])
    if common["definitions"]:
        _page(layout, "definitions.html", common)
    _page(layout, "index.html", common | {"plots": _plots(shown), "citations": _citations(code_root(), shown)})
    for name in ("tables", "figures", "audit"):
        _page(layout, f"{name}.html", common)
    _page(layout, "runs.html", common | _benchmarks(shown) | {"sensitivities": sensitivities(layout)})
    for paper in shown:
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
        for paper in shown
    }
    summary = {"papers": first_screen, "missing": common["missing"], "left_out": common["left_out"]}
    write_with_hash(layout.pages / "summary.json", summary)
    write_atomically(layout.report, TEMPLATES.get_template("entry.html.j2").render(preset=preset))
    # Last, since the record has the hashes of all pages.
    record_report(layout)


CORES = 2
"""Cores on which the README's times and the estimate of missing runs are."""


def training_time(minutes: float, engine: Engine) -> str:
    """Time of runs as text, on the machine of the README's times; empty if unknown.

    Args:
        minutes: sum of the runs' wall times.
        engine: their engine; runs of one thread go side by side on two cores, those on GPUs one after another.
    """
    if not math.isfinite(minutes) or not minutes:
        return ""
    whole = math.ceil(minutes if engine.gpus else minutes * min(engine.threads, CORES) / CORES)
    how = ", one run after another" if engine.gpus else " on two cores"
    return f"about {counted(whole, 'minute')} of training{how}"


def _missing(preset: str, papers: list[Paper]) -> dict[str, Any]:
    """Untrained cells and missing runs of the papers, the estimated time (empty if unknown), and the command.

    User-defined cells do not count.
    """
    papers = [paper for paper in papers if paper.name not in paper.experiments.own_papers]
    missing = {paper.name: paper.missing for paper in papers}
    minutes = sum(each.minutes for each in missing.values() if each.runs)
    unfinished = ",".join(name for name, each in missing.items() if each.runs)
    seeds = sorted({number for each in missing.values() for number in each.seeds})
    cells, untrained, incomplete, runs = (
        sum(getattr(each, name) for each in missing.values()) for name in ("cells", "untrained", "incomplete", "runs")
    )
    return {
        "cells": cells,
        "trained": cells - untrained - incomplete,
        "seeds": [seeds[0], seeds[-1]] if seeds else [],
        "incomplete": incomplete,
        "untrained": untrained,
        "runs": runs,
        "time": training_time(minutes, papers[0].preset.engine) if papers else "",
        "command": f"snakemake reproduction --config preset={preset} papers={unfinished}",
    }


def _page(layout: Layout, name: str, content: dict[str, Any], template: str = "") -> None:
    """Write a page from its template (`name` by default); `content["root"]` is the relative path to the first page."""
    template = template or name
    folder = FOLDER / "templates"
    named = ["base.css", "claims.js"] + (["table.css", "table.js"] if template in TABLES else [])
    named += ["multiples.css"] if template == laboratory_page.PAGE else []
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
    """Forest plots of the first screen: cost as a factor, and accuracy as a difference."""
    points = [point for paper in papers for point in paper.points]
    noise = max((paper.timing.largest for paper in papers if paper.timing.groups), default=math.nan)
    kinds = (
        ("Cost: reduction factor", True, ("percent fewer", "times")),
        ("Accuracy: difference in points", False, ("points",)),
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
    """docs/metrics.md as HTML without its links to other files; None if the code is installed without docs."""
    if not file.exists():
        return None
    # Without the marks of its generated tables.
    text = re.sub("<!--.*?-->", "", file.read_text(encoding="utf-8"))
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
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
