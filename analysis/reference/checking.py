"""Comparison of results with published ones: equal runs bit by bit, and each number with a prediction interval.

A run of the same seed, code version and kind of machine as a published run must give the same policies and scores. Any
other result is compared by the tables' numbers. Let the reference have N blocks with mean M and standard deviation s.
The mean of n further blocks is then in M ± t · s · √(1/n + 1/N) with 95 % probability, where t is the quantile of
Student's distribution with N - 1 degrees of freedom. Ratios are compared as logarithms. P-values are corrected over all
distinct numbers of a paper (Benjamini and Hochberg 1995), so that honest results of a paper differ anywhere in at most
5 % of cases, if the numbers depend on each other positively.
"""

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from redraft.analysis.data.collect import COLLECTED, SPREAD, Runs
from redraft.analysis.data.measured import RECORD
from redraft.analysis.data.statistics import LEVEL
from redraft.analysis.data.timing import is_timed
from redraft.analysis.reference.published import Published, runs_file
from redraft.analysis.tables.files import read_cells
from redraft.analysis.tables.resolved import Resolved
from redraft.analysis.tables.table_columns import expand
from redraft.config import Experiments, Preset, TableWithoutRuns
from redraft.layout import Layout
from redraft.result_files import DERIVED, check_hashes, check_run, read_derived, read_manifest, read_scores

AGREES, DIFFERS, NOT_COMPARABLE = "agrees", "differs", "not comparable"
KINDS = {
    ("machine", "processor"): "processor",
    ("machine", "model"): "processor model",
    ("machine", "instructions"): "set of instructions",
    **{("packages", name): f"version of {name}" for name in ("torch", "numpy", "transformers")},
}
"""Keys of a manifest that decide whether its numbers repeat bit by bit, and their names."""
OF_TIMES = (SPREAD, "tail_share")
"""Columns of steps that depend on times, besides seconds."""
RELATIVE = 1e-9
"""Relative difference below which two numbers differ by rounding alone."""


@dataclass(frozen=True)
class ComparedRun:
    """A run whose cell and seed are also published.

    Attributes:
        run: `paper/cell/seedN`.
        outcome: `AGREES` if policies and scores are equal, `DIFFERS`, or `NOT_COMPARABLE`.
        reason: first difference, or what makes the runs not comparable; empty if they agree.
    """

    run: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class ComparedNumber:
    """A number of a table with the prediction interval of the published one; NaN is unknown.

    Attributes:
        table: number of the table.
        row: label of the row, with its group.
        column: name of the column.
        cell: `paper/cell`.
        value: mean of these results.
        units: blocks of these results.
        reference: mean of the published results.
        reference_units: their blocks.
        low, high: 95 % prediction interval for a mean of `units` blocks, not corrected.
        p: p-value of the difference; NaN if not comparable.
        p_corrected: the same, corrected over the distinct numbers of the paper.
        outcome: `AGREES`, `DIFFERS` or `NOT_COMPARABLE`.
        reason: what makes it not comparable; empty otherwise.
    """

    table: int
    row: str
    column: str
    cell: str
    value: float
    units: int
    reference: float
    reference_units: int
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    p_corrected: float = math.nan
    outcome: str = NOT_COMPARABLE
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Results of a paper compared with the published ones.

    Attributes:
        paper: folder of the paper.
        runs: runs that are also published.
        numbers: all numbers of tables that both have.
    """

    paper: str
    runs: list[ComparedRun]
    numbers: list[ComparedNumber]

    @property
    def differs(self) -> bool:
        """True if a run or a number differs."""
        return DIFFERS in {*(run.outcome for run in self.runs), *(number.outcome for number in self.numbers)}


def compare(layout: Layout, published: Published, paper: str, experiments: Experiments) -> Comparison:
    """Compare a paper's results with the published ones; without tables only its runs.

    Raises:
        UserError: if a file of the results is missing, or is not the one that was recorded.
    """
    collected = (layout.collected(paper) / COLLECTED).exists()
    runs = Runs.load(layout.collected(paper)) if collected else None
    numbers = corrected(_all_numbers(layout, published, paper, experiments)) if layout.tables(paper).exists() else []
    return Comparison(paper, list(_runs(layout, published, paper, runs)), numbers)


def _all_numbers(
    layout: Layout, published: Published, paper: str, experiments: Experiments
) -> Iterator[ComparedNumber]:
    """Comparison of all tables that both results have."""
    folder, tables = layout.collected(paper), layout.tables(paper)
    check_hashes(tables, read_derived(tables, folder / RECORD), tables / DERIVED)
    preset, resolved = experiments.preset(layout.preset), Resolved.load(folder)
    for table in resolved.tables:
        own, other = (each.table(paper, table.number).with_suffix(".csv") for each in (layout, published.layout))
        if isinstance(table, TableWithoutRuns) or not (own.exists() and other.exists()):
            continue
        columns = expand(table, resolved.benchmarks, resolved.reported, resolved.preset).columns
        timed = {column.name for column in columns if is_timed(column.quantity) or column.quantity in OF_TIMES}
        yield from _numbers(table.number, read_cells(own), read_cells(other), preset, timed)


def _runs(layout: Layout, published: Published, paper: str, collected: Runs | None) -> Iterator[ComparedRun]:
    """Comparison of each evaluated run whose cell and seed are published."""
    known = published.layout
    other_collected = Runs.load(known.collected(paper))
    with zipfile.ZipFile(runs_file(known, paper)) as archive:
        names = set(archive.namelist())
        for file in layout.manifests(paper):
            folder = file.parent
            cell, seed = folder.parent.name, int(folder.name.removeprefix("seed"))
            # The published names are below results/<preset>, whatever the folder of these results is.
            name = f"results/{known.preset}/runs/{paper}/{cell}/{folder.name}"
            if f"{name}/manifest.json" not in names or not (folder / "scores.json").exists():
                continue
            check_run(folder)
            manifest, scores = (json.loads(archive.read(f"{name}/{each}.json")) for each in ("manifest", "scores"))
            outcome, reason = _compare_run(read_manifest(file), read_scores(folder), manifest, scores)
            if (
                outcome == AGREES
                and collected
                and (changed := _changed_records(collected, other_collected, cell, seed))
            ):
                outcome, reason = DIFFERS, f"equal policies have other records: {changed}"
            yield ComparedRun(f"{paper}/{cell}/{folder.name}", outcome, reason)


def _compare_run(
    own: Mapping[str, Any], own_scores: Mapping[str, Any], other: Mapping[str, Any], other_scores: Mapping[str, Any]
) -> tuple[str, str]:
    """Outcome and reason for two runs of a cell and a seed, from their manifests and scores."""
    if own["fingerprint"] != other["fingerprint"]:
        return NOT_COMPARABLE, "another configuration"
    for (part, key), name in KINDS.items():
        # Manifests of earlier versions lack some.
        found, known = (manifest[part].get(key, "unknown") for manifest in (own, other))
        if found != known:
            return NOT_COMPARABLE, f"another {name}: {found}, published {known}"
    for key, known in other["inputs"].items():
        if own["inputs"].get(key) != known:
            return DIFFERS, f"another input: {key}"
    # Of rollouts the first, since each step depends on the one before.
    changed = sorted(name for name, digest in other["sha256"].items() if own["sha256"].get(name) != digest)
    for folder in ("rollouts/", "policies/"):
        if first := next((name for name in changed if name.startswith(folder)), ""):
            return DIFFERS, f"{first} is the first of its kind that differs"
    if _without_times(own_scores) != _without_times(other_scores):
        return DIFFERS, "equal policies have other scores"
    return AGREES, ""


def _without_times(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Any]:
    return [
        (step, benchmark, {key: value for key, value in counts.items() if key != "seconds"})
        for step, by_benchmark in scores.items()
        for benchmark, counts in by_benchmark.items()
    ]


def _changed_records(own: Runs, other: Runs, cell: str, seed: int) -> str:
    """First quantity of the collected steps or scores of a run that differs; empty without one. Times are left out."""
    for name, keys in (("steps", ["step"]), ("scores", ["step", "benchmark"])):
        frames = [getattr(runs, name) for runs in (own, other)]
        columns = sorted(c for c in {*frames[0]} & {*frames[1]} if "seconds" not in c and c not in OF_TIMES)
        parts = [
            frame.loc[(frame["cell"] == cell) & (frame["seed"] == seed), columns]
            .sort_values(keys)
            .reset_index(drop=True)
            for frame in frames
        ]
        if len(parts[0]) != len(parts[1]):
            return name
        for column in columns:
            if not parts[0][column].equals(parts[1][column]):
                return column
    return ""


KEY = ["group", "row", "step", "column"]


def _numbers(
    table: int, own: pd.DataFrame, other: pd.DataFrame, preset: Preset, timed: set[str]
) -> Iterator[ComparedNumber]:
    """Comparison of all cells of a table that both results have."""
    if not {*KEY, "reproduced", "low", "high", "seeds", "cell"} <= {*own} & {*other}:
        return  # a table without runs
    # Labels may repeat in a table; the n-th of one is compared with the n-th of the other.
    keyed = [frame.assign(nth=frame.fillna("").groupby(KEY).cumcount()) for frame in (own, other)]
    merged = (
        keyed[0]
        .fillna({k: "" for k in KEY})
        .merge(keyed[1].fillna({k: "" for k in KEY}), on=[*KEY, "nth"], suffixes=("", "_published"), validate="1:1")
    )
    for cell in merged.to_dict("records"):
        units, published_units = (
            len({preset.unit(int(seed)) for seed in cell[name].split()}) for name in ("seeds", "seeds_published")
        )
        if not units or not published_units:
            continue
        number = ComparedNumber(
            table,
            f"{cell['group']}, {cell['row']}" if cell["group"] else str(cell["row"]),
            cell["column"],
            cell["cell"],
            float(cell["reproduced"]),
            units,
            float(cell["reproduced_published"]),
            published_units,
        )
        if cell["column"] in timed:
            yield replace(number, reason="times depend on the machine")
        else:
            yield predicted(number, float(cell["low_published"]), float(cell["high_published"]))


def predicted(number: ComparedNumber, low: float, high: float) -> ComparedNumber:
    """The number with its prediction interval and p-value.

    Args:
        number: with both means and numbers of blocks.
        low, high: 95 % interval of the published mean.
    """
    value, mean = number.value, number.reference
    if not (math.isfinite(value) and math.isfinite(mean)):
        same = value == mean or (math.isnan(value) and math.isnan(mean))
        return number if same else replace(number, reason="one of the numbers is not finite")
    if math.isclose(value, mean, rel_tol=RELATIVE, abs_tol=RELATIVE) and not low < high:
        return replace(number, low=mean, high=mean, p=1.0)
    if not low < high:
        return replace(number, reason="the published number has no spread")
    # Student's interval is symmetric, that of a ratio on a logarithmic scale.
    is_ratio = mean > 0 and low > 0 and math.isclose(low * high, mean**2, rel_tol=1e-6)
    if not is_ratio and not math.isclose((low + high) / 2, mean, rel_tol=1e-6, abs_tol=1e-9 * (high - low)):
        return replace(number, reason="the published interval is not Student's")
    if is_ratio and value <= 0:
        return replace(number, reason="a ratio of zero")
    value, mean, high = (math.log(each) if is_ratio else each for each in (value, mean, high))
    freedom = number.reference_units - 1
    quantile = float(stats.t.ppf(1 - LEVEL / 2, freedom))
    # The half width is quantile · s / √N, and the mean of n others varies by s · √(1/n + 1/N).
    error = (high - mean) / quantile * math.sqrt(1 + number.reference_units / number.units)
    p = float(2 * stats.t.sf(abs(value - mean) / error, freedom))
    ends = np.array([mean - quantile * error, mean + quantile * error])
    ends = np.exp(ends) if is_ratio else ends
    return replace(number, low=float(ends[0]), high=float(ends[1]), p=p)


def corrected(numbers: Iterable[ComparedNumber]) -> list[ComparedNumber]:
    """The numbers with corrected p-values and outcomes; a number that several tables have counts once."""
    numbers = list(numbers)
    keys = {(n.value, n.units, n.reference, n.reference_units, n.p): n.p for n in numbers if math.isfinite(n.p)}
    adjusted = dict(zip(keys, stats.false_discovery_control(list(keys.values())) if keys else [], strict=True))
    found = []
    for n in numbers:
        q = float(adjusted.get((n.value, n.units, n.reference, n.reference_units, n.p), math.nan))
        outcome = NOT_COMPARABLE if math.isnan(q) else DIFFERS if q <= LEVEL else AGREES
        found.append(replace(n, p_corrected=q, outcome=outcome))
    return found
