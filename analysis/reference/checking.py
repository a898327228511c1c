"""Comparison of results with published ones.

A run of the same seed, code version and kind of machine as a published run must give the same policies and scores. Any
other result is compared by the numbers of tables (`redraft.analysis.reference.numbers`).
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from redraft.analysis.data.collect import COLLECTED, Runs
from redraft.analysis.data.timing import is_timed
from redraft.analysis.reference.numbers import (
    AGREES,
    DIFFERS,
    NOT_COMPARABLE,
    OF_TIMES,
    ComparedNumber,
    all_numbers,
    judged,
)
from redraft.analysis.reference.published import Published, read_runs, runs_file
from redraft.files import errors_of_reading, sha256
from redraft.layout import Layout
from redraft.result_files import (
    SCORES,
    Typed,
    check_hashes,
    check_run,
    read_manifest,
    read_record,
    read_scores,
)

KINDS = {
    ("machine", "processor"): "processor",
    ("machine", "model"): "processor model",
    ("machine", "instructions"): "set of instructions",
    **{("packages", name): f"version of {name}" for name in ("torch", "numpy", "transformers")},
}
"""Keys of a manifest that decide whether its numbers repeat bit by bit, and their names."""


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
class Comparison:
    """Results of a paper compared with the published ones.

    Attributes:
        paper: folder of the paper.
        runs: runs that are also published.
        numbers: all numbers of tables that both have.
        absent: published numbers that these results do not have.
        share: share of the divisions of all blocks in which as many numbers differ; NaN if none does.
    """

    paper: str
    runs: list[ComparedRun]
    numbers: list[ComparedNumber]
    absent: int
    share: float = math.nan

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
    numbers, absent = all_numbers(layout, published, paper) if layout.tables(paper).exists() else ([], 0)
    numbers, share = judged(numbers)
    return Comparison(paper, list(_runs(layout, published, paper, runs, made_from)), numbers, absent, share)


def _runs(
    layout: Layout, published: Published, paper: str, collected: Runs | None, made_from: Mapping[str, str]
) -> Iterator[ComparedRun]:
    """Comparison of each evaluated run whose cell and seed are published."""
    known, file = published.layout, runs_file(published.layout, paper)
    other_collected = Runs.load(known.collected(paper))
    pack = read_runs(published, paper)
    for manifest in layout.manifests(paper):
        folder = manifest.parent
        cell, seed = folder.parent.name, int(folder.name.removeprefix("seed"))
        # The published names are below results/<preset>, whatever the folder of these results is.
        name = f"results/{known.preset}/runs/{paper}/{cell}/{folder.name}"
        if f"{name}/manifest.json" not in pack or not (folder / "scores.json").exists():
            continue
        check_run(folder)
        with errors_of_reading(file, ValueError, KeyError):
            other = _Manifest.model_validate_json(pack[f"{name}/manifest.json"])
            content = pack[f"{name}/scores.json"]
            SCORES.validate_json(content)
        scores = json.loads(content)
        needed = [name for name, each in _Manifest.model_fields.items() if each.is_required()]
        own = _Manifest.model_validate(read_manifest(manifest, *needed))
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
    identity: dict[str, Any] = {}

    @property
    def precision(self) -> str:
        """`engine.dtype` of the run."""
        return str(self.identity.get("dtype", "auto"))


def _compare_run(
    own: _Manifest, own_scores: Mapping[str, Any], other: _Manifest, other_scores: Mapping[str, Any]
) -> tuple[str, str]:
    """Outcome and reason for two runs of a cell and a seed, from their manifests and scores."""
    if own.fingerprint != other.fingerprint:
        if own.precision != other.precision:
            return NOT_COMPARABLE, f"another precision: {own.precision}, published {other.precision}"
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
        columns = sorted(c for c in {*frames[0]} & {*frames[1]} if not is_timed(c) and c not in OF_TIMES)
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
