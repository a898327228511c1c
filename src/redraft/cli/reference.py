"""`redraft publish`, `report` and `check`: published results, their report, and comparison with them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Preset, Wide
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.analysis.reference.checking import Comparison
    from redraft.analysis.reference.numbers import ComparedNumber
    from redraft.layout import Layout

WORDS = {"agrees": "agree", "differs": "differ", "not comparable": "not comparable"}
"""Outcomes of several."""
SHOWN = 20
"""Differing runs and numbers of a paper that are printed; `--wide` and `--json` print all."""


PAGES = (Path("results/README.md"), Path("README.md"))
"""Pages that show published results: all of them, and a summary."""


def publish(
    paper: Annotated[str, typer.Argument(help="Paper: a folder under experiments/.")],
    preset: Preset = DEFAULT_PRESET,
    archives: Annotated[
        Path, typer.Option(help="Folder for the archive of all rollouts, generations and grades.")
    ] = Path("build/reference"),
) -> None:
    """Publish a paper's finished runs in results/reference, and update results/README.md and README.md."""
    from redraft.analysis.reference.packing import publish as pack
    from redraft.analysis.reference.page import require_marks, write_page, write_summary
    from redraft.analysis.reference.published import REFERENCE
    from redraft.config import Experiments
    from redraft.layout import Layout, require

    require("results")
    Experiments().cell_file(paper)  # before files of a paper that there is not
    for page in PAGES:
        require_marks(page)
    record = pack(Layout(preset), paper, Layout(preset, REFERENCE), archives)
    write_page(REFERENCE, PAGES[0])
    write_summary(REFERENCE, PAGES[1])
    runs, size = sum(map(len, record["cells"].values())), sum(f.stat().st_size for f in REFERENCE.rglob("*"))
    echo(f"{paper}: {runs} runs published; all of {REFERENCE}: {size / 1e6:.1f} MB")
    echo(f"archive: {archives / record['archive']['file']}, {record['archive']['bytes'] / 1e6:.0f} MB")


def report(
    folder: Annotated[Path, typer.Argument(help="Published results of a preset, such as results/reference/tiny.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder in which results/PRESET is made; build/report/PRESET if empty.")
    ] = None,
    update: Annotated[
        bool, typer.Option(help="Replace the published tables and claims by those made again, and update both pages.")
    ] = False,
) -> None:
    """Write the report of published results, from their collected runs; tables and claims are made again."""
    from redraft.analysis.reference.page import require_marks
    from redraft.analysis.reference.published import REFERENCE
    from redraft.analysis.reference.reopening import reopen

    if update:
        if folder.resolve().parent != REFERENCE.resolve():
            raise UserError("`--update` is for results published here", file=folder, allowed=f"{REFERENCE}/PRESET")
        for page in PAGES:
            require_marks(page)
    layout, differing = reopen(folder, output or Path("build/report") / folder.resolve().name, again=update)
    for paper, files in differing.items():
        for file in files:
            echo(filled(f"warning: {paper}: this version makes another {file} than the published one", "  "), err=True)
    if not any(differing.values()):
        echo("tables and claims made again: equal to the published ones")
    if update:
        _update(folder, layout, differing)
    echo(f"open {layout.report}; `redraft claims` and `redraft results` work in {layout.root.parent}")


def _update(folder: Path, layout: "Layout", papers: Iterable[str]) -> None:
    """Replace what follows from the published runs, and write the pages that show it."""
    from redraft.analysis.reference.packing import publish_again
    from redraft.analysis.reference.page import write_page, write_summary
    from redraft.analysis.reference.published import REFERENCE, Published
    from redraft.data_dictionary import write_descriptions

    published = Published.read(folder)
    for paper in papers:
        publish_again(published, paper, layout)
    write_descriptions(REFERENCE)
    write_page(REFERENCE, PAGES[0])
    write_summary(REFERENCE, PAGES[1])
    echo(f"replaced the tables and claims of {folder}, and updated {PAGES[0]} and {PAGES[1]}")


def check(
    folder: Annotated[Path, typer.Argument(help="Results of a preset.")] = Path("results") / DEFAULT_PRESET,
    reference: Annotated[
        Path | None, typer.Option(help="Published results; results/reference/PRESET if empty.")
    ] = None,
    papers: Annotated[
        list[str] | None, typer.Option("--paper", help="Folder under experiments/; all that both have if empty.")
    ] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compare results with published ones: equal runs bit by bit, numbers by prediction intervals. Exit code 1 if
    anything differs."""
    from redraft.analysis.reference.checking import compare
    from redraft.analysis.reference.published import REFERENCE, Published, inside
    from redraft.config import Experiments
    from redraft.layout import Layout

    folder = folder.resolve()
    published = Published.read(_source(folder, reference))
    with inside(folder.parents[1]):
        layout = Layout(folder.name)
        own = [paper for paper in Experiments().papers if layout.manifests(paper)]
        both = [paper for paper in own if paper in published.records]
        if missing := next((paper for paper in papers or () if paper not in both), None if both else "any paper"):
            known = ", ".join(published.records)
            raise UserError(
                f"there are no results of {missing} to compare", file=folder, key="published", value=known, allowed=own
            )
        found = [compare(layout, published, paper) for paper in papers or both]
    if as_json:
        rows = [asdict(each) for each in found]
        echo(document("check", {"folder": folder.name, "reference": str(reference or REFERENCE)}, rows))
    else:
        for each in found:
            _print(each, wide)
        if any(each.runs or each.numbers for each in found):
            echo("something differs" if any(each.differs for each in found) else "nothing differs")
        else:
            echo("nothing was compared: these results have no published run, and no published number")
    if any(each.differs for each in found):
        raise typer.Exit(1)


def _source(folder: Path, reference: Path | None) -> Path:
    """Folder of the published results that a folder of results is compared with.

    Raises:
        UserError: if either is no folder of such results.
    """
    from redraft.analysis.reference.published import REFERENCE, published_presets
    from redraft.layout import REOPENED

    if not folder.is_dir() or folder.parent.name != "results":
        problem = "this is no folder of a preset's results" if folder.is_dir() else "there is no such folder"
        hint = "`snakemake --config preset=PRESET` makes it; `redraft report FOLDER` shows published results"
        raise UserError(problem, file=folder, allowed="a folder `results/PRESET`", hint=hint)
    source = (reference or REFERENCE / folder.name).resolve()
    if reference and not source.is_dir():
        raise UserError("there is no such folder of published results", file=source, key="--reference", value=reference)
    if source.name != folder.name or not any(source.glob("*.json")):
        raise UserError(
            "no results of this preset are published here",
            file=source,
            key="preset",
            value=folder.name,
            allowed=published_presets(source.parent),
            hint="`--reference FOLDER` names other published results",
        )
    if (folder / REOPENED).exists():
        raise UserError(
            "these are published results that were unpacked for a report; compare results of runs of your own",
            file=folder,
        )
    return source


def _print(found: "Comparison", wide: bool) -> None:
    """Print counts of outcomes, and the runs and numbers that differ."""
    from redraft.analysis.reference.numbers import DIFFERS, NOT_COMPARABLE, USUAL

    echo(f"{found.paper}")
    for name, each in (("runs of published seeds", found.runs), ("numbers of tables", found.numbers)):
        counts = Counter(item.outcome for item in each)  # type: ignore[attr-defined]
        echo(f"  {name}: {', '.join(f'{count} {WORDS[outcome]}' for outcome, count in counts.most_common()) or 'none'}")
        reasons = Counter(item.reason for item in each if item.outcome == NOT_COMPARABLE)  # type: ignore[attr-defined]
        for reason, count in reasons.most_common():
            echo(filled(f"    {count} not comparable: {reason or 'no value'}", "      "))
    if found.absent:
        echo(f"  {found.absent} published numbers are not among these results")
    for run in [run for run in found.runs if run.outcome == DIFFERS][: None if wide else SHOWN]:
        echo(filled(f"  {run.run} differs: {run.reason}", "    "))
    if usual := sum(number.reason == USUAL for number in found.numbers):
        share = f"so many or more do in {found.share:.0%} of all divisions of these and the published blocks"
        echo(filled(f"  {usual} of the numbers that agree lie outside their prediction intervals, but {share}", "    "))
    numbers = sorted((n for n in found.numbers if n.outcome == DIFFERS), key=lambda n: n.p_corrected)
    if numbers:
        rows = [_row(number) for number in numbers[: None if wide else SHOWN]]
        header = ["table", "row", "column", "here", "published", "expected", "corrected p"]
        echo(table(header, rows, wraps=["row"], wide=wide))


def _row(number: "ComparedNumber") -> list[str]:
    interval = f"{number.low:.4g} to {number.high:.4g}" if math.isfinite(number.low) else "that of all published blocks"
    expected = number.reason or interval
    shown = [f"{value:.4g}" for value in (number.value, number.reference)]
    return [str(number.table), number.row, number.column, *shown, expected, f"{number.p_corrected:.2g}"]
