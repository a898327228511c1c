"""`redraft results`, `redraft claims` and `redraft share`: the report's first screen, its verdicts, and a zip of it."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Preset, Wide
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.config import Preset as PresetModel


def results(preset: Preset = DEFAULT_PRESET, as_json: AsJson = False) -> None:
    """Print what the report says first: sentences and verdicts of each paper, and what was not run."""
    from redraft.analysis.pages.finished_report import headline_summary, summary_text
    from redraft.layout import Layout, require

    require("results")
    layout = Layout(preset)
    summary = headline_summary(layout)
    if as_json:
        rows = [{"paper": name} | content for name, content in summary["papers"].items()]
        missing = summary["missing"]
        notes = [f"{missing['runs']} runs are missing: {missing['command']}"] if missing["runs"] else []
        echo(document("results", {"preset": preset}, rows, notes))
    else:
        echo(summary_text(summary, layout))


def claims(
    papers: Annotated[list[str] | None, typer.Argument(help="Folders under experiments/; all if empty.")] = None,
    reported: Annotated[
        bool, typer.Option("--reported", help="Check claims against the papers' own tables; needs no runs.")
    ] = False,
    preset: Preset = DEFAULT_PRESET,
    as_json: AsJson = False,
) -> None:
    """Print the verdicts on claims of papers; with --reported, the sentences that their own tables do not support."""
    from redraft.analysis.pages.claims_page import about_text, verdicts
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    # Reported tables are part of the package: no results are needed.
    if not reported:
        require("results")
    layout, experiments = Layout(preset), Experiments()
    chosen = papers or experiments.papers
    rows = [row for paper in chosen for row in verdicts(layout, paper, experiments, reported)]
    if as_json:
        echo(document("claims", {"preset": preset, "reported": reported, "papers": chosen}, rows))
        return
    without = [
        paper for paper in chosen if experiments.claims(paper).claims and not any(r["paper"] == paper for r in rows)
    ]
    for paper in dict.fromkeys(row["paper"] for row in rows):
        own = [row for row in rows if row["paper"] == paper]
        counted = Counter(row["verdict"] for row in own)
        echo(f"{paper}: " + ", ".join(f"{count} {verdict}" for verdict, count in counted.most_common()))
        for row in own:
            # Of the papers' own tables only the sentences that they do not support are news.
            if not reported or row["verdict"] == "not supported":
                echo(filled(f"  {row['verdict']}: {about_text(row)}“{row['quotation']}” (§ {row['section']})", "    "))
                echo(filled(f"    {row['evidence']} [{row['id']}]", "    "))
                if row["weak"] and not reported:
                    echo(filled(f"    Weak test: {row['weak']}", "    "))
        echo()
    if without:
        reason = "no reported tables" if reported else f"no verdicts yet at the preset {preset}"
        echo(filled(f"{reason}: {', '.join(without)}"))
        if not (rows or reported):
            echo(filled("published verdicts are in the folder that `redraft report results/reference/PRESET` makes"))


def seeds(
    claim: Annotated[
        str,
        typer.Argument(
            help="A claim (its id as `redraft claims` prints it, or paper/id). Or a paper: how many of its claims a "
            "campaign with fewer blocks of seeds would have decided."
        ),
    ],
    preset: Preset = DEFAULT_PRESET,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Print how small an effect the runs of a claim can show, and how many seeds would decide it."""
    from redraft.analysis.pages.claims_page import about_text
    from redraft.analysis.pages.seeds_needed import advice, judged_claim, seeds_needed
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    require("results")
    layout, experiments = Layout(preset), Experiments()
    settings = experiments.preset(preset)
    if claim in experiments.papers:
        _decided(claim, settings, as_json)
        return
    paper, judged = judged_claim(layout, experiments, claim)
    rows = seeds_needed(judged)
    unit = "block" if settings.blocks > 1 else "seed"
    notes = [f"{paper}/{judged['id']}: {about_text(judged)}“{judged['quotation']}”: {judged['verdict']}"]
    notes += advice(judged, rows, paper, experiments, settings, layout)
    if as_json:
        echo(document("seeds", {"preset": preset, "claim": claim}, map(asdict, rows), notes))
        return
    header = ["comparison", f"{unit}s", "measured", "required", "could show", "needs"]
    figures = [[_figures(value) for value in (row.mean, row.required)] for row in rows]
    shown = [
        [row.comparison, str(row.units), *values, row.could_show, str(row.needed or "–")]
        for row, values in zip(rows, figures, strict=True)
    ]
    lines = [filled(notes[0], "  "), *([table(header, shown, wraps=["comparison"], wide=wide)] if rows else [])]
    echo("\n\n".join([*lines, "\n".join(filled(note, "  ") for note in notes[1:])]).rstrip())


def _decided(paper: str, preset: "PresetModel", as_json: bool) -> None:
    """Print how many claims of a paper its first blocks decide."""
    from redraft.analysis.decided import decided_claims

    rows = decided_claims(preset.name, paper)
    if as_json:
        echo(document("seeds", {"preset": preset.name, "claim": paper}, map(asdict, rows)))
        return
    unit = "blocks" if preset.blocks > 1 else "seeds"
    header = [unit, "runs", "hours", "reproduced", "contradicted", "inconclusive", "primary decided"]
    shown = []
    for row in rows:
        counts = [row.reproduced, row.contradicted, row.inconclusive, f"{row.primary} of {row.of_primary}"]
        shown.append([str(each) for each in (row.units, row.runs, f"{row.hours:.2f}", *counts)])
    echo(table(header, shown))


def _figures(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def share(
    preset: Preset = DEFAULT_PRESET,
    file: Annotated[Path | None, typer.Option(help="Zip file; results/<preset>/report.zip if empty.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Also pack all generations and rollouts.")] = False,
) -> None:
    """Pack the report, its data, and the records, grades and code of its runs into one zip."""
    from redraft.analysis.pages.finished_report import pack_report
    from redraft.layout import REOPENED, Layout, require

    require("results")
    layout = Layout(preset)
    if full and (layout.folder / REOPENED).exists():
        raise UserError(
            "these are published results, unpacked for a report: generations and rollouts are in their archive",
            file=layout.folder,
            key="--full",
        )
    target = file or layout.folder / "report.zip"
    number = pack_report(layout, target, full=full)
    echo(f"{number} files, {target.stat().st_size / 1e6:.1f} MB: {target}\nopen results/{preset}/report.html in it")
