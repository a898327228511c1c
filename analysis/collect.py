"""Gathering finished runs of a paper into three frames: a line a step, a line a run, a line a run and benchmark."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.config import Experiments, run_fingerprint
from redraft.errors import UserError
from redraft.files import atomic, read_json, read_json_lines, read_parquet
from redraft.layout import Layout


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs.

    Attributes:
        runs: cell, seed, fingerprint, manifest (path), seconds.
        steps: cell, seed and every number of each step's record; stages as `seconds.<stage>`.
        scores: cell, seed, benchmark, role, correct, total and what else grading counts.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    scores: pd.DataFrame

    def save(self, folder: Path) -> None:
        """Write one Parquet file a frame."""
        for name in ("runs", "steps", "scores"):
            with atomic(folder / f"{name}.parquet") as temporary:
                getattr(self, name).to_parquet(temporary, index=False)

    @classmethod
    def load(cls, folder: Path) -> "Runs":
        """Read what `save` wrote."""
        names = {"runs": ("cell", "seed", "manifest"), "steps": ("cell", "seed", "step"), "scores": ("cell", "seed")}
        return cls(**{name: read_parquet(folder / f"{name}.parquet", columns) for name, columns in names.items()})


def collect(layout: Layout, paper: str, experiments: Experiments) -> Runs:
    """All complete runs of a paper's cells, also those that nobody asked for this time.

    A run whose fingerprint is not that of today's configuration is left out and named.
    """
    cells = {cell.name: cell for cell in experiments.cells(paper)}
    runs, steps, scores = [], [], []
    for manifest in sorted((layout.folder / "runs" / paper).glob("*/seed*/manifest.json")):
        folder, cell, seed = manifest.parent, manifest.parents[1].name, int(manifest.parent.name.removeprefix("seed"))
        if cell not in cells or not (folder / "scores.json").exists() or not (folder / "diversity.parquet").exists():
            continue
        content = read_json(manifest)
        if content["fingerprint"] != run_fingerprint(experiments.run(cells[cell].id, seed, layout.preset)):
            print(f"left out, since its configuration has changed: {folder}", file=sys.stderr)
            continue
        key = {"cell": cell, "seed": seed}
        runs.append(
            key | {"fingerprint": content["fingerprint"], "manifest": str(manifest), "seconds": content["seconds"]}
        )
        steps.append(_steps(folder).assign(**key))
        scores += [key | {"benchmark": b} | s for b, s in read_json(folder / "scores.json").items()]
    if not runs:
        raise UserError("there is no finished run to collect", file=layout.folder / "runs" / paper)
    return Runs(pd.DataFrame(runs), pd.concat(steps, ignore_index=True), pd.DataFrame(scores))


def _steps(folder: Path) -> pd.DataFrame:
    """Records and diversity of one run, a line a step."""
    records: list[dict[str, Any]] = read_json_lines(folder / "steps.jsonl")
    frame = pd.json_normalize(records).astype({"prefix_length": float, "full_reuse_ratio": float})
    return frame.merge(read_parquet(folder / "diversity.parquet", ("step",)), on=["step", "epoch"], validate="1:1")
