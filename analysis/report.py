"""The page a person opens: one HTML file with everything in it but the manifests and data that it links to."""

import math
import posixpath
import re
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import evaluation
from analysis.collect import Runs
from analysis.figure_page import figure_assets, figure_fragment
from analysis.figure_parts import unsampled_benchmarks
from analysis.main_result import read_table
from analysis.quantities import by_seed
from analysis.render import TEMPLATES, number
from analysis.timing import first_epoch_agreement
from analysis.verdicts import MISSING
from redraft.config import Experiments, Figure, Preset, StepTable, Table, TableWithoutRuns
from redraft.files import read_json, write_atomically
from redraft.layout import Layout


def write_report(layout: Layout, papers: list[str], experiments: Experiments) -> None:
    """Join tables, figures, case studies and claims of some papers into `report.html`.

    What a paper does not have (tables, figures, claims, case studies, transcribed tables) has no heading. Case studies
    that were declared and not made are said to be missing.
    """
    preset = experiments.preset(layout.preset)
    runs = [run for paper in papers for run in _runs(layout, paper)]
    manifests = [read_json(layout.folder / run["manifest"]) for run in runs]
    evaluations = _evaluations(layout.preset, papers, experiments)
    figure_css, figure_js = figure_assets()
    page = TEMPLATES.get_template("report.html.j2").render(
        figure_css=figure_css,
        figure_js=figure_js,
        preset=preset,
        evaluations=evaluations,
        benchmarks=list(dict.fromkeys(name for each in evaluations for name in each["benchmarks"])),
        blocks=preset.blocks,
        papers=[_paper(layout, paper, experiments, preset) for paper in papers],
        runs=runs,
        commits=sorted({_commit(manifest["git"]) for manifest in manifests}),
        machines=sorted({f"{m['machine']['processor']}, {m['machine']['cores']} cores" for m in manifests}),
    )
    write_atomically(layout.report, page)


def _evaluations(preset: str, papers: list[str], experiments: Experiments) -> list[dict[str, Any]]:
    """The benchmarks that papers are evaluated on, with their names: those with the same ones together."""
    found: list[dict[str, Any]] = []
    for paper in papers:
        benchmarks = experiments.preset_of(preset, paper).benchmarks
        same = next((each for each in found if each["benchmarks"] == benchmarks), None)
        if same:
            same["papers"].append(paper)
        else:
            found.append({"papers": [paper], "benchmarks": benchmarks})
    return found


def _commit(git: dict[str, Any]) -> str:
    return (git["commit"] or "no commit")[:12] + (" with changes" if git["modified"] else "")


def _paper(layout: Layout, paper: str, experiments: Experiments, preset: Preset) -> dict[str, Any]:
    claims = read_json(layout.claims(paper)) if experiments.claims(paper).claims else []
    for claim in claims:
        claim["manifests"] = {c: [_link(layout, p) for p in paths] for c, paths in claim["manifests"].items()}
    cells, figures = experiments.cell_file(paper), experiments.figures(paper)
    tables = experiments.tables(paper).tables
    runs = Runs.load(layout.collected(paper))
    unsampled = unsampled_benchmarks(experiments, layout.preset, paper)
    graders = evaluation.graders(runs) if preset.evaluation.lighteval else []
    return {
        "name": paper,
        "title": cells.title,
        "source": cells.source,
        "claims": claims,
        "counts": _counts(claims, "verdict"),
        "reported_counts": _counts(claims, "reported_verdict"),
        "weak": sum(bool(c["weak"]) for c in claims if not c["same_as"] and c["verdict"] == "reproduced"),
        "main": read_main_result(layout, paper) if tables else None,
        "tables": [_table(layout, paper, table, preset) for table in tables],
        "figures": [_figure(layout, paper, figure, unsampled) for figure in figures.figures],
        "cases": _cases(layout, paper, figures.cases, preset.seeds[0]),
        "without_counterpart": _without_counterpart(layout, paper),
        "timing": first_epoch_agreement(runs),
        "evaluation": evaluation.summary(runs) | {"graders": graders},
    }


def _counts(claims: list[dict[str, Any]], key: str) -> dict[str, int]:
    """Number of claims with each verdict, the most frequent first; claims with the same test are one."""
    return dict(Counter(claim[key] for claim in claims if key in claim and not claim["same_as"]).most_common())


def read_main_result(layout: Layout, paper: str) -> dict[str, Any] | None:
    """The fragment and counts that `analysis.main_result` made; None where there is nothing to compare."""
    stem = layout.main_result(paper)
    counts: dict[str, Any] = read_json(stem.with_suffix(".json"))
    return counts | {"html": _fragment(layout, stem.with_suffix(".html"))} if counts["of"] else None


def _table(layout: Layout, paper: str, table: Table, preset: Preset) -> dict[str, Any]:
    """A rendered table, and how much of it is there."""
    stem = layout.table(paper, table.number)
    verdicts = read_table(stem)["verdict"]
    honest = stem.with_name(f"{stem.name}_reported.html")
    return {
        "number": table.number,
        "name": table.heading,
        "title": table.title,
        "stand_in": "" if isinstance(table, TableWithoutRuns) else preset.stand_in,
        "open": not table.beyond_paper and not isinstance(table, StepTable),
        "missing": float((verdicts == MISSING).mean()),
        "html": _fragment(layout, stem.with_suffix(".html"))
        + (_fragment(layout, honest) if honest.exists() else ""),
    }  # fmt: skip


def _fragment(layout: Layout, file: Path) -> str:
    """A rendered fragment, its links made relative to the page's folder instead of its own."""
    folder = _link(layout, str(file.parent))

    def moved(match: re.Match[str]) -> str:
        return f'href="{posixpath.normpath(posixpath.join(folder, match[1]))}"'

    return re.sub(r'href="([^"#:][^":]*)"', moved, file.read_text(encoding="utf-8"))


def _figure(layout: Layout, paper: str, figure: Figure, unsampled: Set[str]) -> dict[str, Any]:
    html = figure_fragment(figure, layout.figure(paper, figure.number), paper, layout.folder, unsampled)
    return {"number": figure.number, "name": figure.heading, "title": figure.title, "html": html}


def _cases(layout: Layout, paper: str, cases: Any, seed: int) -> dict[str, Any] | None:
    if cases is None:
        return None
    file = layout.cases(paper).with_suffix(".html")
    html = file.read_text(encoding="utf-8") if file.exists() else ""
    return {"numbers": cases.numbers, "run": f"{cases.cell} seed {seed}", "html": html}


def _without_counterpart(layout: Layout, paper: str) -> dict[str, Any] | None:
    """Why reported rows have no reproduced counterpart, with counts; a reason's details are in the file."""
    file = layout.without_counterpart(paper).with_suffix(".csv")
    if not file.exists():
        return None
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    kinds = frame["reason"].str.replace(r" \(.*\)", "", regex=True)
    reasons = frame.groupby(kinds, sort=False)["table"].agg(["size", lambda t: ", ".join(dict.fromkeys(t))])
    return {
        "total": len(frame),
        "reasons": [(reason, int(count), tables) for reason, count, tables in reasons.itertuples()],
        "file": _link(layout, str(file)),
    }


def _link(layout: Layout, path: str) -> str:
    return Path(path).relative_to(layout.folder).as_posix()


def _runs(layout: Layout, paper: str) -> list[dict[str, Any]]:
    runs = Runs.load(layout.collected(paper))
    rewards = {cell: by_seed(runs, "fresh_reward", cell) for cell in runs.runs["cell"].unique()}
    return [
        {
            "name": f"{paper}/{run.cell} seed {run.seed}",
            "fingerprint": run.fingerprint,
            "seconds": run.seconds,
            "manifest": _link(layout, str(run.manifest)),
            "fresh_reward": number(rewards[run.cell].get(int(run.seed), math.nan), 2),
            "scores": _scores(runs.scores, str(run.cell), int(run.seed)),
        }
        for run in runs.runs.itertuples()
    ]


def _scores(scores: pd.DataFrame, cell: str, seed: int) -> dict[str, str]:
    """Counts of the last policy."""
    chosen = scores[(scores["cell"] == cell) & (scores["seed"] == seed)]
    chosen = chosen[chosen["step"] == chosen["step"].max()]
    return {str(row.benchmark): f"{row.correct} of {row.total}" for row in chosen.itertuples()}
