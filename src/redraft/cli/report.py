"""`redraft results`, `redraft claims` and `redraft share`: the report's first screen, its verdicts, and a zip of it."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Preset
from redraft.cli.terminal import document, filled


def results(preset: Preset = DEFAULT_PRESET, as_json: AsJson = False) -> None:
    """Print the report's first screen: main results and verdicts of each paper, and the missing runs."""
    from redraft.analysis.pages.outcome import outcome, text
    from redraft.layout import Layout, require

    require("results")
    layout = Layout(preset)
    content = outcome(layout)
    if as_json:
        rows = [{"paper": name} | result for name, result in content["papers"].items()]
        missing = content["missing"]
        notes = [f"{missing['runs']} runs are missing: {missing['command']}"] if missing["runs"] else []
        typer.echo(document("results", {"preset": preset}, rows, notes))
    else:
        typer.echo(text(content, layout))


def claims(
    papers: Annotated[list[str] | None, typer.Argument(help="Folders under experiments/; all if empty.")] = None,
    reported: Annotated[
        bool, typer.Option("--reported", help="Check claims against the papers' own tables; needs no runs.")
    ] = False,
    preset: Preset = DEFAULT_PRESET,
    as_json: AsJson = False,
) -> None:
    """Print the verdicts on the papers' claims; with --reported, the claims that their own tables do not support."""
    from redraft.analysis.pages.claims import verdicts
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    if not reported:
        require("results")
    layout, experiments = Layout(preset), Experiments()
    chosen = papers or experiments.papers
    rows = [row for paper in chosen for row in verdicts(layout, paper, experiments, reported)]
    if as_json:
        typer.echo(document("claims", {"preset": preset, "reported": reported, "papers": chosen}, rows))
        return
    without = [
        paper for paper in chosen if experiments.claims(paper).claims and not any(r["paper"] == paper for r in rows)
    ]
    for paper in dict.fromkeys(row["paper"] for row in rows):
        own = [row for row in rows if row["paper"] == paper]
        counted = Counter(row["verdict"] for row in own if not row["same_as"])
        typer.echo(f"{paper}: " + ", ".join(f"{count} {verdict}" for verdict, count in counted.most_common()))
        for row in own:
            if not reported or row["verdict"] == "not supported":
                typer.echo(filled(f"  {row['verdict']}: “{row['quotation']}” (§ {row['section']})", "    "))
                typer.echo(filled(f"    {row['evidence']} [{row['id']}]", "    "))
        typer.echo()
    if without:
        reason = "no reported tables" if reported else f"no verdicts yet at the preset {preset}"
        typer.echo(filled(f"{reason}: {', '.join(without)}"))


def share(
    preset: Preset = DEFAULT_PRESET,
    file: Annotated[Path | None, typer.Option(help="Zip file; results/<preset>/report.zip if empty.")] = None,
) -> None:
    """Pack the report and all files that it links to into one zip."""
    from redraft.analysis.pages.share import share as pack
    from redraft.layout import Layout, require

    require("results")
    layout = Layout(preset)
    target = file or layout.folder / "report.zip"
    count = pack(layout, target)
    typer.echo(f"{count} files, {target.stat().st_size / 1e6:.1f} MB: {target}\nopen {preset}/report.html in it")
