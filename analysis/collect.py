"""Gathering finished runs of a paper into three frames: a line a step, a line a run, a line a run and benchmark."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.config import Experiments, run_fingerprint
from redraft.errors import UserError
from redraft.files import atomic, read_json, read_json_lines, read_parquet, sha256
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

    def manifests(self, cell: str, seeds: Iterable[int]) -> list[str]:
        """Paths of the manifests of a cell's runs, by seed."""
        chosen = self.runs[(self.runs["cell"] == cell) & self.runs["seed"].isin(list(seeds))]
        return list(chosen.sort_values("seed")["manifest"])

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

    A run whose configuration or benchmarks are not today's is left out and named.

    Raises:
        UserError: if there is no run, or a run's files do not belong together.
    """
    runs, steps, scores = [], [], []
    for manifest in sorted((layout.folder / "runs" / paper).glob("*/seed*/manifest.json")):
        folder = manifest.parent
        key = {"cell": folder.parent.name, "seed": int(folder.name.removeprefix("seed"))}
        if not (folder / "scores.json").exists() or not (folder / "diversity.parquet").exists():
            continue
        content, scored = read_json(manifest), read_json(folder / "scores.json")
        if reason := _outdated(content, scored, layout.preset, experiments):
            print(f"left out, since its {reason} changed: {folder}", file=sys.stderr)
            continue
        runs.append(key | {name: content[name] for name in ("fingerprint", "seconds")} | {"manifest": str(manifest)})
        steps.append(_steps(folder, content["sha256"]["steps.jsonl"]).assign(**key))
        scores += [key | {"benchmark": benchmark} | score for benchmark, score in scored.items()]
    if not runs:
        raise UserError("there is no finished run to collect", file=layout.folder / "runs" / paper)
    return Runs(pd.DataFrame(runs), pd.concat(steps, ignore_index=True), pd.DataFrame(scores))


def _outdated(manifest: dict[str, Any], scores: dict[str, Any], preset: str, experiments: Experiments) -> str | None:
    """What about a run is not as it would be run today."""
    cell, _, seed = manifest["run"].rpartition("/seed")
    try:
        run = experiments.run(cell, int(seed), preset)
    except UserError:
        return "cell"
    if manifest["fingerprint"] != run_fingerprint(run):
        return "configuration"
    wanted = {name: b.data.size * b.samples for name, b in experiments.preset(preset).benchmarks.items()}
    return None if {name: score["total"] for name, score in scores.items()} == wanted else "benchmarks"


def _steps(folder: Path, digest: str) -> pd.DataFrame:
    """Records and diversity of one run, a line a step."""
    file = folder / "steps.jsonl"
    records: list[dict[str, Any]] = read_json_lines(file)
    if sha256(file) != digest:
        raise UserError("these records are not those of the manifest beside them", file=file, key="sha256",
                        value=sha256(file), allowed=digest)  # fmt: skip
    frame = pd.json_normalize(records).astype({"prefix_length": float, "full_reuse_ratio": float})
    measured = read_parquet(folder / "diversity.parquet", ("step", "epoch"))
    if list(measured["step"]) != list(frame["step"]):
        raise UserError("this measures other steps than were recorded", file=folder / "diversity.parquet", key="step",
                        value=len(measured), allowed=str(len(frame)))  # fmt: skip
    return frame.merge(measured, on=["step", "epoch"], validate="1:1")
