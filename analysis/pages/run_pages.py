"""Finished runs for the list of runs, and the page of each run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from redraft.analysis.data.collect import COLLECTED, Runs
from redraft.analysis.data.prompt_frames import by_position, read_rollouts
from redraft.analysis.data.quantities import by_seed
from redraft.analysis.data.words import words
from redraft.analysis.tables.render import number
from redraft.config import id_of
from redraft.layout import Layout, check_inside
from redraft.result_files import check_hashes, check_listed, read_manifest, read_record

DATA = ("steps.jsonl", "scores.json", "diversity.parquet", "manifest.json")
"""Files of a run that its page links to."""
COURSE_QUANTITIES = (
    "reward",
    "tokens_decoded",
    "tokens_reused",
    "seconds.total",
    "tail_share",
    "entropy",
    "gradient_norm",
)
"""Quantities of a step that a run's page plots over steps."""
BLOCKS = {
    "configuration": "Configuration",
    "git": "Commit of the code",
    "packages": "Versions of packages",
    "machine": "Machine",
}
"""Keys of a manifest that the page shows, with their headings."""


@dataclass(frozen=True)
class RunView:
    """A finished run as pages show it.

    Attributes:
        cell: name in the collected runs of the paper.
        cell_id: `paper/cell`.
        page: path relative to the folder of pages.
        seconds: training time.
        fresh_reward: reward of fresh samples in the last epoch, as text.
        scores: benchmark to `correct of total` of the last policy.
    """

    cell: str
    cell_id: str
    seed: int
    page: str
    fingerprint: str
    seconds: float
    fresh_reward: str
    scores: dict[str, str]
    manifest: dict[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """`paper/cell seed 0`."""
        return f"{self.cell_id} seed {self.seed}"


def link(layout: Layout, path: Path | str) -> str:
    """Link to a result file, relative to the folder of pages."""
    return "../" + Path(path).relative_to(layout.folder).as_posix()


def views(layout: Layout, paper: str, runs: Runs) -> list[RunView]:
    """All finished runs of a paper.

    Raises:
        UserError: if the manifest of one is not in the preset's folder.
    """
    collected, manifests = layout.collected(paper), [Path(str(manifest)) for manifest in runs.runs["manifest"]]
    for manifest in manifests:
        # The path is from a results file, which may be someone else's.
        check_inside(manifest, layout.folder, collected / "runs.parquet", "manifest")
    record = collected / COLLECTED
    recorded = read_record(record)["made_from"]
    check_listed(map(str, manifests), recorded, record)
    check_hashes(Path(), {str(manifest): recorded[str(manifest)] for manifest in manifests}, record)
    rewards = {cell: by_seed(runs, "fresh_reward", cell) for cell in runs.runs["cell"].unique()}
    return [
        RunView(
            cell=str(run.cell),
            cell_id=id_of(paper, str(run.cell)),
            seed=int(run.seed),
            page=f"runs/{id_of(paper, str(run.cell))}-seed{run.seed}.html",
            fingerprint=str(run.fingerprint),
            seconds=float(run.seconds),
            fresh_reward=number(rewards[run.cell].get(int(run.seed), math.nan), 2),
            scores=_last_scores(runs.scores, str(run.cell), int(run.seed)),
            manifest=read_manifest(Path(str(run.manifest))),
            folder=Path(str(run.manifest)).parent,
        )
        for run in runs.runs.itertuples()
    ]


def _last_scores(scores: pd.DataFrame, cell: str, seed: int) -> dict[str, str]:
    """Correct answers of the last policy by benchmark."""
    chosen = scores[(scores["cell"] == cell) & (scores["seed"] == seed)]
    # The last policy is the result, whatever the scores of earlier ones (docs/metrics.md).
    chosen = chosen[chosen["step"] == chosen["step"].max()]
    return {str(row.benchmark): f"{row.correct} of {row.total}" for row in chosen.itertuples()}


def page_content(layout: Layout, run: RunView, steps: pd.DataFrame) -> dict[str, Any]:
    """Content of a run's page: quantities over steps, kept drafts by position, files, manifest and hashes."""
    files = [run.folder / name for name in DATA if (run.folder / name).exists()]
    blocks = {name: run.manifest[key] for key, name in BLOCKS.items() if key in run.manifest}
    return {
        "run": run,
        "courses": list(_courses(steps)),
        "drafts": drafts_of(run.folder),
        "command": f"redraft run {run.cell_id} --seed {run.seed} --preset {layout.preset}",
        "files": [(file.name, "../../" + link(layout, file)) for file in files],
        "blocks": {name: yaml.safe_dump(value, sort_keys=False, allow_unicode=True) for name, value in blocks.items()},
        "hashes": list(run.manifest.get("sha256", {}).items()),
    }


def drafts_of(folder: Path) -> list[dict[str, Any]]:
    """Kept shares of a run's drafts by position; empty without drafts, or if its rollouts were removed."""
    if not (folder / "rollouts").is_dir():
        return []
    return by_position(read_rollouts(folder, ["prefix_length", "draft_length"])).to_dict("records")


def _courses(steps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A polyline for each recorded quantity, with its range and last value."""
    for name in COURSE_QUANTITIES:
        values = steps.sort_values("step")[name].dropna() if name in steps else pd.Series(dtype=float)
        if len(values) > 1:
            low, high, last = float(values.min()), float(values.max()), float(values.iloc[-1])
            # A constant quantity is a line at the foot.
            at = (values - low) / ((high - low) or 1.0)
            # SVG counts pixels from the top, so a larger value has a smaller coordinate.
            line = " ".join(f"{300 * i / (len(at) - 1):.1f},{60 - 56 * y:.1f}" for i, y in enumerate(at))
            yield {"key": name, "name": words(name).text, "line": line, "low": low, "high": high, "last": last}
