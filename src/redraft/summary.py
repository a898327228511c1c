"""The main quantities of finished runs, as `redraft run` and `redraft compare` print them."""

import math
from pathlib import Path

from redraft.config import Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json, read_json_lines
from redraft.layout import Layout

QUANTITIES = (
    "tokens_decoded", "tokens_verified", "rollout_seconds", "generation_seconds", "step_seconds", "fresh_reward",
    "reward",
)  # fmt: skip
"""Quantities of a run, besides its accuracies."""


def finished(run: Run, layout: Layout) -> Path:
    """Folder of a run that is trained and graded.

    Raises:
        UserError: if the run is not finished, or its results are of another configuration than today's.
    """
    cell = f"{run.paper}/{run.cell}"
    folder = layout.run(cell, run.seed)
    remedy = f"redraft run {cell} --seed {run.seed} --preset {run.preset}"
    for file in (folder / "manifest.json", folder / "scores.json"):
        if not file.exists():
            raise UserError("this run is not finished", file=file, key="cell", value=cell, allowed=f"after `{remedy}`")
    manifest = read_json(file := folder / "manifest.json")
    if not isinstance(manifest, dict) or "fingerprint" not in manifest:
        raise UserError("this manifest lacks a key", file=file, key="fingerprint", allowed=f"none; do `{remedy}` anew")
    if manifest["fingerprint"] != (today := run_fingerprint(run)):
        raise UserError("this run is of another configuration than today's", file=file, key="fingerprint",
                        value=manifest["fingerprint"], allowed=f"{today}, after `{remedy}`")  # fmt: skip
    return folder


def summary(folder: Path, cell: str, seed: int) -> dict[str, float]:
    """Main quantities of a finished run, by the names that tables and claims use.

    Raises:
        UserError: if the run has no records.
    """
    import pandas as pd

    from analysis.collect import Runs
    from analysis.quantities import ACCURACY, by_seed

    records, scores = read_json_lines(folder / "steps.jsonl"), read_json(folder / "scores.json")
    if not records:
        raise UserError("this file holds no step", file=folder / "steps.jsonl")
    steps = pd.json_normalize(records).apply(pd.to_numeric).assign(cell=cell, seed=seed)
    last = max(scores, key=int)
    key = {"cell": cell, "seed": seed, "step": int(last)}
    graded = pd.DataFrame([key | {"benchmark": name} | score for name, score in scores[last].items()])
    runs = Runs(runs=pd.DataFrame(), steps=steps, scores=graded)
    names = [*QUANTITIES, *(ACCURACY + name for name in scores[last])]
    return {name: by_seed(runs, name, cell)[seed] for name in names}


def side_by_side(first: dict[str, float], second: dict[str, float]) -> list[list[str]]:
    """Rows of two summaries: quantity, both values, and the second over the first."""
    pairs = {name: (first.get(name, math.nan), second.get(name, math.nan)) for name in first | second}
    return [[name, number(x), number(y), number(y / x if x else math.nan)] for name, (x, y) in pairs.items()]


def number(value: float) -> str:
    """A quantity as text: `-` for NaN, whole numbers whole, others with three decimals."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if value.is_integer() else f"{value:.3f}"


def aligned(header: list[str], rows: list[list[str]]) -> str:
    """Lines of a table whose first column is aligned left and whose others are aligned right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *(text.rjust(w) for text, w in zip(others, widths[1:], strict=True))])
        for first, *others in [header, *rows]
    )
