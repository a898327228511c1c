"""The main quantities of finished runs, as `redraft run` and `redraft compare` print them."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redraft.config import Experiments, Preset, Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import numbers_of_records, read_json, read_json_lines
from redraft.layout import Layout

RELATIONS = {
    "tokens_decoded": ("tokens", "ratio"), "reuse_epochs:tokens_decoded": ("tokens a step", "ratio"),
    "tokens_verified": ("tokens", "difference"), "rollout_seconds": ("s", "speedup"),
    "generation_seconds": ("s", "speedup"), "step_seconds": ("s", "speedup"), "fresh_reward": ("", "difference"),
    "reward": ("", "difference"),
}  # fmt: skip
"""Quantities of a run, besides its accuracies: unit, and how tables relate two cells of it."""
SUFFIX = {"ratio": " ×", "speedup": " × as fast", "difference": ""}


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
            raise UserError("this run is not finished", file=file, key="cell", value=cell, hint=f"`{remedy}`")
    manifest = read_json(file := folder / "manifest.json")
    if not isinstance(manifest, dict) or "fingerprint" not in manifest:
        raise UserError("this manifest lacks a key", file=file, key="fingerprint", hint=f"`{remedy}` makes it anew")
    if manifest["fingerprint"] != (today := run_fingerprint(run)):
        raise UserError("this run is of another configuration than today's", file=file, key="fingerprint",
                        value=manifest["fingerprint"], allowed=today, hint=f"`{remedy}`")  # fmt: skip
    return folder


def summary(folder: Path, cell: str, seed: int) -> dict[str, float]:
    """Main quantities of a finished run, by the names that tables and claims use.

    Raises:
        UserError: if the run has no records.
    """
    import pandas as pd

    from redraft.analysis.data.collect import Runs
    from redraft.analysis.data.quantities import ACCURACY, by_seed

    records, scores = read_json_lines(folder / "steps.jsonl"), read_json(folder / "scores.json")
    if not records:
        raise UserError("this file holds no step", file=folder / "steps.jsonl")
    steps = numbers_of_records(records).assign(cell=cell, seed=seed)
    last = max(scores, key=int)
    key = {"cell": cell, "seed": seed, "step": int(last)}
    graded = pd.DataFrame([key | {"benchmark": name} | score for name, score in scores[last].items()])
    runs = Runs(runs=pd.DataFrame(), steps=steps, scores=graded)
    names = [*RELATIONS, *(ACCURACY + name for name in scores[last]), ACCURACY + "all"]
    return {name: by_seed(runs, name, cell)[seed] for name in names}


@dataclass(frozen=True)
class Comparison:
    """A quantity of two cells.

    Attributes:
        quantity: name.
        unit: of the means; empty without one.
        first: mean in the first cell.
        second: mean in the second cell.
        relation: how tables relate two cells of it: `ratio`, `speedup` or `difference`.
        against: mean of the second cell against the first, in percentage points for accuracies.
        low: lower end of its 95 % Student interval over the blocks of seeds.
        high: upper end.
        seeds: number of blocks.
    """

    quantity: str
    unit: str
    first: float
    second: float
    relation: str
    against: float
    low: float
    high: float
    seeds: int

    def texts(self) -> list[str]:
        """Quantity with its unit, both means, the second against the first, the interval, and the seeds."""
        unit = f" ({self.unit})" if self.unit else ""
        suffix = SUFFIX[self.relation] or (" points" if self.unit == "%" else "")
        interval = f"[{number(self.low)}, {number(self.high)}]"
        return [f"{self.quantity}{unit}", number(self.first), number(self.second), number(self.against) + suffix,
                interval, str(self.seeds)]  # fmt: skip

    def record(self) -> dict[str, Any]:
        """The same by names, as numbers."""
        return asdict(self)


def compare(first: str, second: str, preset: Preset, experiments: Experiments, layout: Layout) -> list[Comparison]:
    """Compare two cells over the seeds that both have finished, quantity by quantity, as the tables relate them.

    Raises:
        UserError: if the cells share no finished seed, or a finished run is of another configuration than today's.
    """
    from redraft.analysis.data.quantities import ACCURACY
    from redraft.analysis.data.statistics import estimate, paired

    seeds = sorted(layout.seeds(first) & layout.seeds(second))
    both = {seed: runs for seed in seeds if (runs := _finished_pair(first, second, seed, experiments, layout))}
    if not both:
        for cell in (first, second):
            finished(experiments.run(cell, preset.seeds[0], preset.name), layout)  # names the file that is missing
        raise UserError("no seed of both cells is finished", key="cells", value=f"{first}, {second}")
    blocks, rows = {seed: preset.unit(seed) for seed in both}, []
    for name in next(iter(both.values()))[0]:
        a, b = ({seed: pair[i][name] for seed, pair in both.items()} for i in (0, 1))
        unit, relation = ("%", "difference") if name.startswith(ACCURACY) else RELATIONS[name]
        found = estimate(paired(b, a, relation), blocks)
        first_mean, second_mean = (estimate(each, blocks).mean for each in (a, b))
        rows.append(
            Comparison(
                name,
                unit,
                first_mean,
                second_mean,
                relation,
                found.mean,
                found.interval.low,
                found.interval.high,
                len(found.seeds),
            )
        )
    return rows


def _finished_pair(
    first: str, second: str, seed: int, experiments: Experiments, layout: Layout
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Summaries of both cells' runs of a seed; None if one of them is not finished."""
    runs = [experiments.run(cell, seed, layout.preset) for cell in (first, second)]
    folders = [layout.run(cell, seed) for cell in (first, second)]
    if not all((folder / name).exists() for folder in folders for name in ("manifest.json", "scores.json")):
        return None
    a, b = (summary(finished(run, layout), f"{run.paper}/{run.cell}", seed) for run in runs)
    return a, b


def number(value: float) -> str:
    """A quantity as text: `-` for NaN, whole numbers whole, others with three decimals."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if value.is_integer() else f"{value:.3f}"
