"""Comparison of results with published ones: equal runs bit by bit, and each number with a prediction interval.

A run of the same seed, code version and kind of machine as a published run must give the same policies and scores. Any
other result is compared by the tables' numbers. Let the reference have N blocks with mean M and standard deviation s.
The mean of n further blocks is then in M ± t · s · √(1/n + 1/N) with 95 % probability, where t is the quantile of
Student's distribution with N - 1 degrees of freedom. Ratios are compared as logarithms. P-values are corrected over all
distinct numbers of a paper (Benjamini and Hochberg 1995), so that honest results of a paper differ anywhere in at most
5 % of cases, if the numbers depend on each other positively and are normally distributed over blocks
(docs/published-results.md has measured rates).
"""

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from redraft.analysis.data.collect import COLLECTED, SPREAD, Runs
from redraft.analysis.data.measured import RECORD
from redraft.analysis.data.statistics import LEVEL, RATIOS
from redraft.analysis.data.timing import is_timed
from redraft.analysis.reference.published import Published, runs_file
from redraft.analysis.tables.comparison import relation
from redraft.analysis.tables.files import read_cells
from redraft.analysis.tables.resolved import Resolved
from redraft.analysis.tables.table_columns import expand
from redraft.config import TableWithoutRuns
from redraft.config.tables import AVERAGE, Column
from redraft.files import errors_of_reading, sha256
from redraft.layout import Layout
from redraft.result_files import (
    DERIVED,
    SCORES,
    Typed,
    check_hashes,
    check_run,
    read_derived,
    read_manifest,
    read_record,
    read_scores,
)

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
        absent: published numbers that these results do not have.
    """

    paper: str
    runs: list[ComparedRun]
    numbers: list[ComparedNumber]
    absent: int

    @property
    def differs(self) -> bool:
        """True if a run or a number differs."""
        return DIFFERS in {*(run.outcome for run in self.runs), *(number.outcome for number in self.numbers)}


def compare(layout: Layout, published: Published, paper: str) -> Comparison:
    """Compare a paper's results with the published ones; without tables only its runs.

    Raises:
        UserError: if a file of the results is missing, is not the one that was recorded, or was made from other files
            than those that are there now.
    """
    record = layout.collected(paper) / COLLECTED
    runs, made_from = None, {}
    if record.exists():
        runs, made_from = Runs.load(record.parent), read_record(record)["made_from"]
        # Else tables could be of runs that were removed or trained again.
        check_hashes(Path(), made_from, record)
    numbers, absent = _all_numbers(layout, published, paper) if layout.tables(paper).exists() else ([], 0)
    return Comparison(paper, list(_runs(layout, published, paper, runs, made_from)), corrected(numbers), absent)


def _all_numbers(layout: Layout, published: Published, paper: str) -> tuple[list[ComparedNumber], int]:
    """Comparison of all tables that both results have, and the number of published values that the other lacks."""
    folder, tables = layout.collected(paper), layout.tables(paper)
    record = read_record(folder / RECORD, "sha256", "made_from")
    check_hashes(folder, record["sha256"] | record["made_from"], folder / RECORD)
    check_hashes(tables, read_derived(tables, folder / RECORD), tables / DERIVED)
    resolved, published_runs = Resolved.load(folder), Runs.load(published.layout.collected(paper))
    # As they were when the runs were collected: a preset may get more blocks.
    blocks = tuple(dict(zip(r.runs["seed"], r.runs["block"], strict=True)) for r in (Runs.load(folder), published_runs))
    numbers: list[ComparedNumber] = []
    absent = 0
    for table in resolved.tables:
        own, other = (each.table(paper, table.number).with_suffix(".csv") for each in (layout, published.layout))
        if isinstance(table, TableWithoutRuns) or not other.exists():
            continue
        columns = expand(table, resolved.benchmarks, resolved.reported, resolved.preset).columns
        timed = of_times(columns)
        ratios = {column.name for column in columns if relation(column) in RATIOS}
        merged = _merged(own, other)
        absent += int((merged["_merge"] == "right_only").sum())
        both = merged[merged["_merge"] == "both"]
        with errors_of_reading(own, ValueError, TypeError):
            found = [_number(table.number, cell, blocks, ratios) for cell in both.to_dict("records")]
        for number in found:
            reason = "times depend on the machine" if number.column in timed else number.reason
            reason = "the published intervals are those of a sequential campaign" if published_runs.looks else reason
            numbers.append(replace(number, reason=reason, p=math.nan) if reason else number)
    return numbers, absent


def of_times(columns: Iterable[Column]) -> set[str]:
    """Names of a table's columns that depend on times."""
    timed = {column.name for column in columns if is_timed(column.quantity) or column.quantity in OF_TIMES}
    # A mean of speedups depends on times if one of them does.
    return timed | {column.name for column in columns if column.quantity == AVERAGE and timed}


KEY = ["group", "row", "step", "column", "cell"]


def _merged(own: Path, other: Path) -> pd.DataFrame:
    """Cells of both tables that have runs; `_merge` says which have them. A table without runs has none."""
    needed, frames = {*KEY, "reproduced", "low", "high", "seeds"}, []
    for file in (own, other):
        if not file.exists():
            frames.append(pd.DataFrame(columns=sorted(needed)))
            continue
        with errors_of_reading(file, ValueError, TypeError):
            frame = read_cells(file)
        if not needed <= set(frame):
            return pd.DataFrame(columns=["_merge"])
        frames.append(frame[frame["seeds"] != ""].fillna(dict.fromkeys(KEY, "")))
    # Labels may repeat in a table; the n-th of one is compared with the n-th of the other.
    keyed = [frame.assign(nth=frame.groupby(KEY).cumcount()).astype(dict.fromkeys(KEY, str)) for frame in frames]
    return keyed[0].merge(
        keyed[1], on=[*KEY, "nth"], suffixes=("", "_published"), validate="1:1", how="outer", indicator=True
    )


def _number(
    table: int, cell: Mapping[str, Any], blocks: tuple[Mapping[int, int], ...], ratios: set[str]
) -> ComparedNumber:
    """A cell of both tables with its prediction interval; `blocks` has the block of each seed, here and published."""
    units, published_units = (
        len({block[int(seed)] for seed in cell[name].split()})
        for name, block in zip(("seeds", "seeds_published"), blocks, strict=True)
    )
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
    own, published = ((float(cell[f"low{of}"]), float(cell[f"high{of}"])) for of in ("", "_published"))
    return predicted(number, own, published, cell["column"] in ratios)


def _runs(
    layout: Layout, published: Published, paper: str, collected: Runs | None, made_from: Mapping[str, str]
) -> Iterator[ComparedRun]:
    """Comparison of each evaluated run whose cell and seed are published."""
    known, file = published.layout, runs_file(published.layout, paper)
    other_collected = Runs.load(known.collected(paper))
    with errors_of_reading(file, zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        for manifest in layout.manifests(paper):
            folder = manifest.parent
            cell, seed = folder.parent.name, int(folder.name.removeprefix("seed"))
            # The published names are below results/<preset>, whatever the folder of these results is.
            name = f"results/{known.preset}/runs/{paper}/{cell}/{folder.name}"
            if f"{name}/manifest.json" not in names or not (folder / "scores.json").exists():
                continue
            check_run(folder)
            with errors_of_reading(file, ValueError, KeyError):
                other = _Manifest.model_validate_json(archive.read(f"{name}/manifest.json"))
                content = archive.read(f"{name}/scores.json")
                SCORES.validate_json(content)
            scores = json.loads(content)
            own = _Manifest.model_validate(read_manifest(manifest, *_Manifest.model_fields))
            outcome, reason = _compare_run(own, read_scores(folder), other, scores)
            # A run that was trained since is not among the collected ones.
            if outcome == AGREES and collected and made_from.get(str(manifest)) == sha256(manifest):
                changed = _changed_records(collected, other_collected, cell, seed)
                if changed:
                    outcome, reason = DIFFERS, f"equal policies have other records: {changed}"
            yield ComparedRun(f"{paper}/{cell}/{folder.name}", outcome, reason)


class _Manifest(Typed):
    """What is compared of a run's manifest."""

    fingerprint: str
    machine: dict[str, Any]
    packages: dict[str, Any]
    inputs: dict[str, Any]
    sha256: dict[str, str]


def _compare_run(
    own: _Manifest, own_scores: Mapping[str, Any], other: _Manifest, other_scores: Mapping[str, Any]
) -> tuple[str, str]:
    """Outcome and reason for two runs of a cell and a seed, from their manifests and scores."""
    if own.fingerprint != other.fingerprint:
        return NOT_COMPARABLE, "another configuration"
    for (part, key), name in KINDS.items():
        # Manifests of earlier versions lack some.
        found, known = (getattr(manifest, part).get(key, "unknown") for manifest in (own, other))
        if found != known:
            return NOT_COMPARABLE, f"another {name}: {found}, published {known}"
    for key, known in other.inputs.items():
        if own.inputs.get(key) != known:
            return DIFFERS, f"another input: {key}"
    # Of rollouts the first, since each step depends on the one before.
    changed = sorted(name for name, digest in other.sha256.items() if own.sha256.get(name) != digest)
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
            if not _equal(parts[0][column], parts[1][column]):
                return column
    return ""


def _equal(own: pd.Series, other: pd.Series) -> bool:
    """Test for equal values; a count is a float in frames where another run lacks it."""
    if pd.api.types.is_numeric_dtype(own) and pd.api.types.is_numeric_dtype(other):
        return np.array_equal(own.to_numpy(float), other.to_numpy(float), equal_nan=True)
    return own.equals(other)


def predicted(
    number: ComparedNumber, own: tuple[float, float], published: tuple[float, float], is_ratio: bool
) -> ComparedNumber:
    """The number with its prediction interval and p-value.

    Args:
        number: with both means and numbers of blocks.
        own, published: 95 % intervals of the two means; NaN for a single block.
        is_ratio: whether the intervals are those of logarithms.
    """
    value, mean, (low, high) = number.value, number.reference, published
    if not (math.isfinite(value) and math.isfinite(mean)):
        same = value == mean or (math.isnan(value) and math.isnan(mean))
        return number if same else replace(number, reason="one of the numbers is not finite")
    if number.reference_units < 2 or not low <= high:
        return replace(number, reason="a single published block")
    if not low < high:
        if math.isclose(value, mean, rel_tol=RELATIVE, abs_tol=RELATIVE):
            return replace(number, low=mean, high=mean, p=1.0)
        if own[0] < own[1]:
            return replace(number, reason="the published number has no spread")
        # All published blocks have one value, and all of these another: one of the equally likely divisions.
        both = number.reference_units + number.units
        return replace(number, low=mean, high=mean, p=1 / math.comb(both, number.units))
    # With a value of zero the published estimate has no logarithms, and its interval is symmetric as it is.
    is_ratio = is_ratio and low > 0 and math.isclose(low * high, mean**2, rel_tol=1e-6)
    if is_ratio and value <= 0:
        return replace(number, reason="a ratio of zero has no logarithm")
    value, mean, high = (math.log(each) if is_ratio else each for each in (value, mean, high))
    freedom = number.reference_units - 1
    quantile = float(stats.t.ppf(1 - LEVEL / 2, freedom))
    # The half width is quantile · s / √N, and the mean of n others varies by s · √(1/n + 1/N).
    error = (high - mean) / quantile * math.sqrt(1 + number.reference_units / number.units)
    p = float(2 * stats.t.sf(abs(value - mean) / error, freedom))
    ends = np.array([mean - quantile * error, mean + quantile * error])
    with np.errstate(over="ignore"):
        ends = np.exp(ends) if is_ratio else ends
    return replace(number, low=float(ends[0]), high=float(ends[1]), p=p)


def corrected(numbers: Iterable[ComparedNumber]) -> list[ComparedNumber]:
    """The numbers with corrected p-values and outcomes; a number that several tables have counts once."""
    numbers = list(numbers)
    # What is equal in all blocks of both is no test.
    keys = {(n.value, n.units, n.reference, n.reference_units, n.p): n.p for n in numbers if n.p < 1}
    adjusted = dict(zip(keys, stats.false_discovery_control(list(keys.values())) if keys else [], strict=True))
    found = []
    for n in numbers:
        q = float(adjusted.get((n.value, n.units, n.reference, n.reference_units, n.p), math.nan))
        q = 1.0 if n.p == 1 else q
        outcome = NOT_COMPARABLE if math.isnan(q) else DIFFERS if q <= LEVEL else AGREES
        found.append(replace(n, p_corrected=q, outcome=outcome))
    return found
