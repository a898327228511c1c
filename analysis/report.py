"""The page a person opens: one HTML file with everything in it but the manifests it links to."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.collect import Runs
from analysis.quantities import by_seed
from analysis.render import TEMPLATES, html
from analysis.tables import expand
from redraft.config import Experiments, Preset
from redraft.files import read_json, write_atomically
from redraft.layout import Layout


def write_report(layout: Layout, papers: list[str], experiments: Experiments) -> None:
    """Join tables, figures and claims of some papers into `report.html`."""
    preset = experiments.preset(layout.preset)
    runs = [run for paper in papers for run in _runs(layout, paper)]
    manifests = [read_json(layout.folder / run["manifest"]) for run in runs]
    page = TEMPLATES.get_template("report.html.j2").render(
        preset=preset,
        benchmarks=preset.benchmarks,
        papers=[_paper(layout, paper, experiments, preset) for paper in papers],
        runs=runs,
        commits=sorted({_commit(manifest["git"]) for manifest in manifests}),
        machines=sorted({f"{m['machine']['processor']}, {m['machine']['cores']} cores" for m in manifests}),
    )
    write_atomically(layout.report, page)


def _commit(git: dict[str, Any]) -> str:
    return (git["commit"] or "no commit")[:12] + (" with changes" if git["modified"] else "")


def _paper(layout: Layout, paper: str, experiments: Experiments, preset: Preset) -> dict[str, Any]:
    claims = read_json(layout.claims(paper))
    for claim in claims:
        claim["manifests"] = {c: [_link(layout, p) for p in paths] for c, paths in claim["manifests"].items()}
    cells = experiments.cell_file(paper)
    tables = [expand(table, preset.benchmarks) for table in experiments.tables(paper).tables]
    return {
        "name": paper,
        "title": cells.title,
        "source": cells.source,
        "claims": claims,
        "counts": Counter(claim["verdict"] for claim in claims),
        "tables": [html(t, read_table(layout.table(paper, t.number)), layout.folder) for t in tables],
        "figures": [
            {
                "number": figure.number,
                "title": figure.title,
                "svg": _svg(layout.figure(paper, figure.number).with_suffix(".svg")),
                "data": layout.figure(paper, figure.number).with_suffix(".csv").relative_to(layout.folder).as_posix(),
            }
            for figure in experiments.figures(paper).figures
        ],
    }


def read_table(stem: Path) -> pd.DataFrame:
    """A rendered table's cells."""
    frame = pd.read_csv(stem.with_suffix(".csv"))
    return frame.astype({"seeds": str, "manifests": str}).replace({"seeds": {"nan": ""}, "manifests": {"nan": ""}})


def _link(layout: Layout, path: str) -> str:
    return Path(path).relative_to(layout.folder).as_posix()


def _svg(file: Path) -> str:
    """The drawing without its XML prologue, to stand inside a page."""
    text = file.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _runs(layout: Layout, paper: str) -> list[dict[str, Any]]:
    runs = Runs.load(layout.collected(paper))
    rewards = {cell: by_seed(runs, "fresh_reward", cell) for cell in runs.runs["cell"].unique()}
    return [
        {
            "name": f"{paper}/{run.cell} seed {run.seed}",
            "fingerprint": run.fingerprint,
            "seconds": run.seconds,
            "manifest": _link(layout, str(run.manifest)),
            "fresh_reward": rewards[run.cell][int(run.seed)],
            "scores": _scores(runs.scores, str(run.cell), int(run.seed)),
        }
        for run in runs.runs.itertuples()
    ]


def _scores(scores: pd.DataFrame, cell: str, seed: int) -> dict[str, str]:
    chosen = scores[(scores["cell"] == cell) & (scores["seed"] == seed)]
    return {str(row.benchmark): f"{row.correct} of {row.total}" for row in chosen.itertuples()}
