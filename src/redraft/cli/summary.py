"""Main quantities of finished runs, for `redraft run` and `redraft compare`."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from redraft.analysis.data.collect import COLLECTED, Runs
from redraft.analysis.data.measured import RELATIONS, Measured, Measuring, main_quantities
from redraft.analysis.data.sequential import read_looks
from redraft.analysis.data.statistics import RATIOS, Blocks, estimate, paired
from redraft.config import Experiments, Preset, Run, run_fingerprint
from redraft.config.quantities import ACCURACY
from redraft.errors import UserError
from redraft.files import numbers_of_records, sha256
from redraft.layout import REOPENED, Layout
from redraft.result_files import check_run, read_manifest, read_record, read_scores, read_steps

RESULTS = ("manifest.json", "scores.json")
"""Files of a finished run."""
SUFFIX = {"ratio": " ×", "speedup": " × as fast", "difference": "", "share": ""}
IMPROVEMENT = "probability of improvement"
"""Name of the share of benchmarks on which the second cell is better (`QuantityComparison`)."""


def finished(run: Run, layout: Layout) -> Path:
    """Folder of a run that is trained and graded.

    Raises:
        UserError: if the run is not finished, its results belong to another configuration than the current one, or a
            file is not what was recorded.
    """
    cell = f"{run.paper}/{run.cell}"
    folder = layout.run(cell, run.seed)
    command = f"redraft run {cell} --seed {run.seed} --preset {run.preset}"
    for file in (folder / name for name in RESULTS):
        if not file.exists():
            raise UserError("this run is not finished", file=file, key="cell", value=cell, hint=f"`{command}`")
    manifest = read_manifest(file := folder / "manifest.json", "fingerprint")
    if manifest["fingerprint"] != (current := run_fingerprint(run)):
        if (precision := manifest.get("identity", {}).get("dtype", "auto")) != run.engine.dtype:
            raise UserError(
                "this run was computed in another precision than the current one",
                file=file,
                key="engine.dtype",
                value=precision,
                allowed=run.engine.dtype,
                hint=f"`{command}`",
            )
        raise UserError(
            "this run belongs to another configuration than the current one",
            file=file,
            key="fingerprint",
            value=manifest["fingerprint"],
            allowed=current,
            hint=f"`{command}`",
        )
    # After the fingerprint: a run of another configuration is not damaged.
    if not _is_unpacked(layout):
        check_run(folder, run.steps)
    return folder


def _is_unpacked(layout: Layout) -> bool:
    """Test for published results that `redraft report` unpacked: of a run only its manifest and scores are there."""
    return (layout.folder / REOPENED).exists()


def summaries(runs: Sequence[Run], layout: Layout) -> list[dict[str, float]]:
    """Main quantities of finished runs of a paper, by the names that tables and claims use.

    The values are the ones that tables and claims read. A run that has changed since it was collected, or was never
    collected, is measured from its own records. Unpacked published runs have no records, so the collected data that
    were published with them are needed.

    Raises:
        UserError: if a run is not finished, or has no records.
    """
    folder, stored, quantities = layout.collected(runs[0].paper), None, []
    with suppress(UserError):  # nothing was collected yet, or by another version of the code
        stored = Measured.load(folder)
    collected = read_record(folder / COLLECTED)["made_from"] if stored else {}
    for run in runs:
        results = finished(run, layout)
        digests = {str(file): sha256(file) for file in (results / name for name in RESULTS)}
        # By content: a run may have been trained again since it was collected.
        known = stored and stored.runs.manifests(run.cell, [run.seed]) and digests.items() <= collected.items()
        if not known and _is_unpacked(layout):
            raise UserError(
                "this published run is not the one that was collected, and its records are only in the archive",
                file=results,
                key="manifest.json, scores.json",
                allowed=f"the files whose hashes are in {folder / COLLECTED}",
                hint="unpack the published results again with `redraft report`, or train the run",
            )
        measured = stored if stored and known else Measuring(_runs_of(results, run))
        names = main_quantities(measured.runs, run.cell)
        quantities.append({name: measured.values(name, run.cell)[run.seed] for name in names})
    return quantities


def _runs_of(folder: Path, run: Run) -> Runs:
    """Records and last scores of one run, in the form of a paper's collected runs."""
    records, scores = read_steps(folder / "steps.jsonl"), read_scores(folder)
    key = {"cell": run.cell, "seed": run.seed}
    # Keys of JSON are texts, among which "10" is before "9".
    last = max(scores, key=int)
    graded = [key | {"step": int(last), "benchmark": name} | score for name, score in scores[last].items()]
    return Runs(pd.DataFrame([key]), numbers_of_records(records).assign(**key), pd.DataFrame(graded))


@dataclass(frozen=True)
class QuantityComparison:
    """A quantity of two cells.

    The probability of improvement (Agarwal et al. 2021, arXiv 2108.13264) is the share of benchmarks on which the
    second cell is more accurate than the first; equal accuracies count half. It compares runs with the same seed, since
    runs of different blocks have different initial policies. It has no interval if all blocks have the same share.

    Attributes:
        quantity: name.
        unit: unit of the means; empty without one.
        first: mean in the first cell.
        second: mean in the second cell.
        relation: relation of the two cells in tables: `ratio`, `speedup` or `difference`; `share` for the probability
            of improvement, for which `first` and `second` are NaN.
        against: mean of the second cell relative to the first, in percentage points for accuracies.
        low: lower end of its 95 % Student interval over the blocks of seeds.
        high: upper end.
        seeds: number of seeds that it rests on.
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
        """Quantity with its unit, both means, second relative to first, interval, and number of seeds."""
        unit = f" ({self.unit})" if self.unit else ""
        suffix = SUFFIX[self.relation] or (" points" if self.unit == "%" else "")
        interval = f"[{number(self.low)}, {number(self.high)}]"
        return [
            f"{self.quantity}{unit}",
            number(self.first),
            number(self.second),
            number(self.against) + suffix,
            interval,
            str(self.seeds),
        ]


def compare(
    first: str, second: str, preset: Preset, experiments: Experiments, layout: Layout
) -> list[QuantityComparison]:
    """Compare two cells over the seeds that both have finished, with the relation of the tables for each quantity.

    Raises:
        UserError: if the cells share no finished seed, or a finished run belongs to another configuration than the
            current one.
    """
    cells, seeds = (first, second), sorted(layout.seeds(first) & layout.seeds(second))
    folders = {seed: [layout.run(cell, seed) for cell in cells] for seed in seeds}
    both = [seed for seed in seeds if all((f / n).exists() for f in folders[seed] for n in RESULTS)]
    if not both:
        for cell in cells:
            finished(experiments.run(cell, preset.seeds[0], preset.name), layout)  # the error names the missing file
        raise UserError("the cells have no finished seed in common", key="cells", value=f"{first}, {second}")
    quantities = [summaries([experiments.run(cell, seed, preset.name) for seed in both], layout) for cell in cells]
    # The intervals of a sequential campaign are wider, as in its tables.
    looks = read_looks(layout.looks(first.partition("/")[0]))
    blocks, rows = Blocks({seed: preset.unit(seed) for seed in both}, looks), []
    for name in quantities[0][0]:
        a, b = ({seed: values[name] for seed, values in zip(both, each, strict=True)} for each in quantities)
        unit, relation = ("%", "difference") if name.startswith(ACCURACY) else RELATIONS[name]
        against = estimate(paired(b, a, relation), blocks, relation in RATIOS)
        a_mean, b_mean = (estimate(each, blocks).mean for each in (a, b))
        low, high = against.interval.low, against.interval.high
        rows.append(
            QuantityComparison(name, unit, a_mean, b_mean, relation, against.mean, low, high, len(against.seeds))
        )
    better = estimate(_better(*(dict(zip(both, each, strict=True)) for each in quantities)), blocks)
    # Few blocks have equal shares by chance, which says nothing of their spread.
    varies = bool(better.units) and np.ptp(better.units) > 0
    low, high = np.clip([better.interval.low, better.interval.high], 0, 1) if varies else (math.nan, math.nan)
    found = (better.mean, float(low), float(high), len(better.seeds))
    return [*rows, QuantityComparison(IMPROVEMENT, "", math.nan, math.nan, "share", *found)]


def _better(first: dict[int, dict[str, float]], second: dict[int, dict[str, float]]) -> dict[int, float]:
    """Share of benchmarks by seed on which the second cell is more accurate than the first; equal ones count half."""
    names = [name for name in next(iter(first.values())) if name.startswith(ACCURACY) and name != f"{ACCURACY}all"]
    changes = {seed: [second[seed][name] - values[name] for name in names] for seed, values in first.items()}
    return {seed: float(1 + np.mean(np.sign(each))) / 2 for seed, each in changes.items()}


def number(value: float) -> str:
    """A quantity as text: `-` for NaN, whole numbers whole, others with three decimals."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if value.is_integer() else f"{value:.3f}"
