"""Every value by seed that a paper's tables, claims and figures show: measured once, written, and read from there."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.prompt_frames import over_bins
from redraft.analysis.data.quantities import by_seed, noise_by_seed, over_time
from redraft.analysis.data.statistics import Families, GainKept, mean_ratio
from redraft.config import Clock, Panel
from redraft.config.quantities import ACCURACY, BIN
from redraft.data_dictionary import write_parquet
from redraft.errors import UserError
from redraft.files import hashes, read_parquet, write_atomically, write_json
from redraft.result_files import check_hashes, read_record

KEY = ("cell", "quantity", "scope")
COLUMNS = (*KEY, "position", "x", "seed", "value", "noise")
"""Of the file. `scope` says of what: a run, its first steps, or a series. `position` counts the points of a series from
0, whose coordinates are `x`. `seed` is null, in a single line, where no run has a value. `noise` is the standard error,
points, that sampling alone gives an accuracy."""
MEASURED, FAMILY, RECORD, RESOLVED = "measured.parquet", "family.parquet", "measured.json", "resolved.json"
COLLECTED = ("runs.parquet", "steps.parquet", "scores.parquet", "collected.json")


Key = tuple[str, str, str]
BINS = "bins of "
"""Prefix of the scope of a series of bins."""
RELATIONS = {
    "tokens_decoded": ("tokens", "ratio"),
    "reuse_epochs:tokens_decoded": ("tokens a step", "ratio"),
    "tokens_verified": ("tokens", "difference"),
    "rollout_seconds": ("s", "speedup"),
    "generation_seconds": ("s", "speedup"),
    "step_seconds": ("s", "speedup"),
    "fresh_reward": ("", "difference"),
    "reward": ("", "difference"),
}
"""Main quantities of a run, besides its accuracies: unit, and how tables relate two cells of it."""


class MeasuredPoint(NamedTuple):
    """A measurement at one coordinate of a series; of a run, which has one point, the coordinate is NaN."""

    x: float
    values: dict[int, float]
    noise: dict[int, float]


class Measured:
    """Measurements of a paper's finished runs, by seed; what is not there is an error and never computed.

    Of a cell without a finished run nothing is measured, and every measurement is empty.

    Attributes:
        runs: the finished runs.
        found: measurements by cell, quantity and scope.
    """

    def __init__(self, runs: Runs, found: dict[Key, list[MeasuredPoint]] | None = None) -> None:
        self.runs = runs
        self.found = found or {}
        self._cells = set(runs.runs.get("cell", ()))

    def values(self, quantity: str, cell: str, at: int | None = None, clock: Clock = "steps") -> dict[int, float]:
        """A quantity of each run (`redraft.analysis.data.quantities.by_seed`); `at` counts steps by the clock."""
        return self._of_runs(quantity, cell, at, clock).values

    def noise(self, quantity: str, cell: str, at: int | None = None, clock: Clock = "steps") -> dict[int, float]:
        """The standard error, points, that sampling alone gives an accuracy; NaN of another quantity."""
        return self._of_runs(quantity, cell, at, clock).noise

    def gain_kept(
        self,
        quantity: str,
        pair: tuple[str, str],
        at: int | None = None,
        clock: Clock = "steps",
        reported: float = math.nan,
    ) -> GainKept | None:
        """The share of a baseline's gain in an accuracy that a cell keeps after `at` steps; None without a common seed.

        Args:
            quantity: an accuracy.
            pair: cell and baseline.
            at: steps done; None is the last policy.
            clock: of `at`.
            reported: the paper's share.
        """
        gains = []
        for name in pair:
            first, last = self.values(quantity, name, 0, clock), self.values(quantity, name, at, clock)
            gains.append({seed: last[seed] - first[seed] for seed in last if seed in first})
        if not (seeds := sorted(gains[0].keys() & gains[1].keys())):
            return None
        own, base = ({seed: values[seed] for seed in seeds} for values in gains)
        share, interval, gain = mean_ratio(own, base, self.runs.blocks)
        return None if math.isnan(gain) else GainKept(share, interval.low, interval.high, gain, reported)

    def _of_runs(self, quantity: str, cell: str, at: int | None, clock: Clock) -> MeasuredPoint:
        def measure() -> list[MeasuredPoint]:
            values, noise = (each(self.runs.by(clock), quantity, cell, at) for each in (by_seed, noise_by_seed))
            return [MeasuredPoint(math.nan, values, noise)] if values else []

        points = self._points((cell, quantity, "run" if at is None else f"{at} {clock}"), measure)
        return points[0] if points else MeasuredPoint(math.nan, {}, {})

    def series(self, quantity: str, cell: str, x: str) -> list[MeasuredPoint]:
        """A quantity over steps, epochs or what was spent (`redraft.analysis.data.quantities.over_time`)."""

        def measure() -> list[MeasuredPoint]:
            rows = over_time(self.runs, quantity, cell, x).iterrows()
            return [MeasuredPoint(float(at), values.dropna().to_dict(), {}) for at, values in rows]  # type: ignore[arg-type]

        return self._points((cell, quantity, f"by {x}"), measure)

    def bins(self, panel: Panel, cell: str, probe: str) -> list[MeasuredPoint]:
        """A quantity of prompts in each of a panel's bins, at their lower edges; none if no run has such prompts."""
        scope = f"{BINS}{panel.by}, visits of {panel.epochs}: {', '.join(map(str, panel.bins))}"

        def measure() -> list[MeasuredPoint]:
            return [MeasuredPoint(low, values, {}) for low, values in over_bins(self.runs, panel, cell, probe)]

        return self._points((cell, panel.quantity, scope), measure)

    def _points(self, key: Key, measure: Callable[[], list[MeasuredPoint]]) -> list[MeasuredPoint]:
        if key in self.found or key[0] not in self._cells:
            return self.found.get(key, [])
        cell, quantity, scope = key
        raise UserError(
            "this was not measured",
            key="quantity",
            value=f"{quantity} of {cell} ({scope})",
            hint="`redraft stage measure` measures what tables, claims and figures declare",
        )

    @classmethod
    def load(cls, folder: Path) -> "Measured":
        """Read what the stage `measure` wrote.

        Raises:
            UserError: if a file is missing or is not the one that the record names, or other runs were collected since.
        """
        record = read_record(folder / RECORD, "sha256", "made_from")
        check_hashes(folder, record["sha256"] | record["made_from"], folder / RECORD)
        found: dict[Key, list[MeasuredPoint]] = {}
        columns = [read_parquet(folder / MEASURED, COLUMNS)[name].tolist() for name in COLUMNS]
        for cell, quantity, scope, position, x, seed, value, noise in zip(*columns, strict=True):
            points = found.setdefault((cell, quantity, scope), [])
            # The line of a measurement that was made and found no value, which is no error to read.
            if seed is pd.NA:
                continue
            # A point without a value has no line, and the later ones keep their positions.
            while len(points) <= position:
                points.append(MeasuredPoint(x, {}, {}))
            points[-1].values[seed], points[-1].noise[seed] = value, noise
        return cls(Runs.load(folder), found)


class Measuring(Measured):
    """Measurements that are made at their first request."""

    def _points(self, key: Key, measure: Callable[[], list[MeasuredPoint]]) -> list[MeasuredPoint]:
        if key not in self.found:
            self.found[key] = measure()
        return self.found[key]

    def save(self, folder: Path, families: Families, resolved: Mapping[str, Any]) -> None:
        """Write all measurements next to the collected runs, with the families and the resolved declarations
        (`redraft.analysis.tables.resolved`); the record holds their hashes."""
        rows = [
            (*key, position, point.x, seed, value, point.noise.get(seed, math.nan))
            for key, points in self.found.items()
            for position, point in enumerate(points)
            for seed, value in point.values.items()
        ]
        # Without a line `load` could not tell no value from not measured.
        empty = [key for key, points in self.found.items() if not points and key[0] in self._cells]
        rows += [(*key, 0, math.nan, pd.NA, math.nan, math.nan) for key in empty]
        frame = pd.DataFrame(rows, columns=COLUMNS).astype({"seed": "Int64"})
        write_parquet(frame, folder / MEASURED, "measured")
        families.save(folder / FAMILY)
        # Without indentation, which is two fifths of the file; only programs read it.
        write_atomically(folder / RESOLVED, json.dumps(resolved, separators=(",", ":"), allow_nan=False))
        made = {"sha256": (MEASURED, FAMILY, RESOLVED), "made_from": COLLECTED}
        write_json(folder / RECORD, {key: hashes(*(folder / name for name in names)) for key, names in made.items()})


def of_rollouts(found: Mapping[Key, list[MeasuredPoint]]) -> dict[Key, list[MeasuredPoint]]:
    """Measurements of prompts in bins, which need rollouts; all others can be made again from the collected runs."""
    return {key: points for key, points in found.items() if BIN.fullmatch(key[1]) or key[2].startswith(BINS)}


def main_quantities(runs: Runs, cell: str) -> list[str]:
    """The quantities of a cell that `redraft run` and `redraft compare` print."""
    benchmarks = runs.scores.loc[runs.scores["cell"] == cell, "benchmark"].unique()
    return [*RELATIONS, *(ACCURACY + name for name in benchmarks), ACCURACY + "all"]
