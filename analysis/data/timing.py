"""Times of runs and of reported tables: speedups, and whether a campaign's seconds can be compared at all.

The same functions serve reproduced runs and the times that a paper reports. In the first epoch nothing can be reused:
runs that decode the same tokens there do the same work, whatever their method, and should take the same time.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np
import pandas as pd

from redraft.analysis.data.collect import SPREAD, Runs
from redraft.analysis.data.measured import Measured
from redraft.analysis.data.reported_tables import ReportedTable
from redraft.analysis.data.statistics import PAIRINGS
from redraft.config import Clock, Reported, ReportedTimes
from redraft.config.quantities import AT_EQUAL, PREDICTED, SECONDS, SPEEDUP
from redraft.errors import UserError


@dataclass(frozen=True)
class StageTimes:
    """Mean seconds a step by stage, and the hours of the whole run."""

    total: float
    rollout: float
    verification: float
    assembly: float
    hours: float

    @property
    def generation(self) -> float:
        """All that getting rollouts costs."""
        return self.rollout + self.verification + self.assembly


_speedup = PAIRINGS["speedup"]

KINDS: dict[str, Callable[[StageTimes, StageTimes], float]] = {
    "printed": lambda baseline, method: _speedup(method.rollout, baseline.rollout),
    "honest": lambda baseline, method: _speedup(method.generation, baseline.generation),
    "step": lambda baseline, method: _speedup(method.total, baseline.total),
    "end_to_end": lambda baseline, method: _speedup(method.hours, baseline.hours),
    "controlled": lambda b, method: _speedup(b.total - b.generation + method.generation, b.total),
}
"""Kind to its speedup: of rollouts alone, as papers print it; with verification and assembly of both; of a step; of the
run, which may have another number of steps; of a step whose other stages take as long as the baseline's, since the
method does not change them."""

TITLES = {
    "printed": "Speedup as printed (rollout only, ×)",
    "honest": "Speedup with verification and assembly counted (×)",
    "step": "Speedup of a step (×)",
    "end_to_end": "End-to-end speedup (hours, ×)",
    "controlled": "Controlled end-to-end speedup (other stages as the baseline's, ×)",
}


def kind_of(quantity: str) -> Callable[[StageTimes, StageTimes], float]:
    """The function that `speedup:<kind>` names.

    Raises:
        UserError: if there is no such kind.
    """
    name = quantity.removeprefix(SPEEDUP)
    if name not in KINDS:
        raise UserError("no such speedup", key="quantity", value=quantity, allowed=[SPEEDUP + kind for kind in KINDS])
    return KINDS[name]


def of_runs(measured: Measured, cell: str, at: int | None, clock: Clock) -> dict[int, StageTimes]:
    """The times of each finished run of a cell, by seed."""
    names = ("total", "rollout", "verification", "assembly")
    found = {name: measured.values(SECONDS + name, cell, at, clock) for name in names}
    hours = measured.values("hours", cell, at, clock)
    return {seed: StageTimes(**{name: found[name][seed] for name in names}, hours=hours[seed]) for seed in hours}


def of_reported(row: Mapping[str, float], spec: Reported) -> StageTimes | None:
    """The times of a row of the reported times; None if it lacks any. A stage without a cell did not run."""
    names = [*(SECONDS + stage for stage in ("total", "rollout", "verification", "assembly")), "hours"]
    declared = [spec.quantities.get(name) for name in names]
    total, rollout, verification, assembly, hours = (row.get(each.columns[0]) if each else None for each in declared)
    if total is None or rollout is None or hours is None:
        return None
    return StageTimes(total, rollout, verification or 0.0, assembly or 0.0, hours)


def speedups_by_seed(
    measured: Measured, quantity: str, pair: tuple[str, str], at: int | None, clock: Clock
) -> dict[int, float]:
    """A speedup of each run of a cell over the run of the same seed of its baseline."""
    kind, (cells, baselines) = kind_of(quantity), (of_runs(measured, cell, at, clock) for cell in pair)
    return {seed: kind(baselines[seed], times) for seed, times in cells.items() if seed in baselines}


def reported_speedups(table: ReportedTable, times: ReportedTimes) -> pd.DataFrame:
    """Every kind of speedup from the reported times alone: a line a setting and method, the last one the mean."""
    names = [*times.setting, *times.baseline]
    lines, baselines = [], {}
    for key, row in table.rows.items():
        named, found = dict(zip(table.spec.row, key, strict=True)), of_reported(row, table.spec)
        if found and times.baseline.items() <= named.items():
            baselines[tuple(named[name] for name in times.setting)] = found
    for key, row in table.rows.items():
        named, found = dict(zip(table.spec.row, key, strict=True)), of_reported(row, table.spec)
        baseline = baselines.get(tuple(named[name] for name in times.setting))
        if found and baseline and not times.baseline.items() <= named.items():
            speedups = {name: kind(baseline, found) for name, kind in KINDS.items()}
            lines.append({name: named[name] for name in names} | speedups)
    frame = pd.DataFrame(lines, columns=[*names, *KINDS])
    mean = dict.fromkeys(names, "") | {names[0]: "mean"} | {name: frame[name].mean() for name in KINDS}
    return pd.concat([frame, pd.DataFrame([mean])], ignore_index=True)


EVEN = 1.2
"""Largest ratio of the times of equal work that can be compared."""


@dataclass(frozen=True)
class TimingSpread:
    """Spread of the seconds of equal work.

    Attributes:
        groups: sets of runs that did the same work; 0 if none did, so that nothing shows how evenly the machine ran.
        median: longest over shortest seconds of the first epoch, median over the sets: seconds of rollouts, or in a set
            with runs that speculate those of the updates, if they differ more. NaN without sets.
        largest: the same of the set where they differ most.
        repeats: longest over shortest seconds of a step's rollouts that were repeated, median over the steps; NaN where
            nothing was.
        repeated: share of runs that were repeated.
        seeds: of these runs.
        farthest: names of the two runs that differ most.
    """

    groups: int
    median: float
    largest: float
    repeats: float = math.nan
    repeated: float = field(default=0.0, compare=False)
    seeds: frozenset[int] = field(default=frozenset(), compare=False)
    farthest: str = field(default="", compare=False)

    @property
    def comparable(self) -> bool:
        """True if no set differs by more than a fifth; without sets if repeats of all runs differ by no more."""
        if self.groups:
            return self.largest <= EVEN
        return self.repeated == 1.0 and self.repeats <= EVEN

    @property
    def text(self) -> str:
        """Why times are not comparable."""
        if self.groups:
            return f"equal work differed in time by a factor of up to {self.largest:.2f}"
        if self.repeated == 1.0:
            return f"repeats of equal work differed in time by a factor of {self.repeats:.2f} in the median step"
        return "no two runs did equal work, which would show how evenly the machine ran"


LEARNING = ("seconds.update_actor", "seconds.old_log_probs")
"""Stages whose work follows from the responses, however they were decoded."""


@lru_cache(maxsize=4)
def _first_epochs(runs: Runs) -> pd.DataFrame:
    """Work and seconds of the first epoch of each run, by cell and seed."""
    first = runs.steps[runs.steps["epoch"] == 0].sort_values("step")
    passes = first["speculated_passes"].fillna(0) if "speculated_passes" in first else 0
    learning = first[[name for name in LEARNING if name in first]].sum(axis=1, skipna=False)
    trained = first.get("trained_rollouts", 0)
    return (
        first.assign(passes=passes, learning=learning, trained=trained)
        .groupby(["cell", "seed"])
        .agg(
            tokens=("tokens_decoded", tuple),
            rollout=("seconds.rollout", "sum"),
            learning=("learning", lambda seconds: seconds.sum(skipna=False)),
            trained=("trained", tuple),
            speculates=("passes", "max"),
        )
    )


@lru_cache(maxsize=64)
def first_epoch_spread(runs: Runs, cells: frozenset[str] | None = None) -> TimingSpread:
    """Compare the rollout seconds of the first epoch between runs of one seed that decoded the same in each step of it.

    Runs that speculated take fewer passes for equal tokens, as when all responses are truncated. So they are compared
    by the seconds of the update and of the log-probabilities before it, with all runs that also trained on as many
    rollouts.

    Args:
        runs: of a paper.
        cells: whose runs are compared; all if None.
    """
    work = _first_epochs(runs)
    if cells is not None:
        work = work[work.index.get_level_values("cell").isin(cells)]
    found: list[tuple[float, int, str]] = []
    # Equal in every step and of one seed, which is the same work; an equal sum may be of other steps.
    for (seed, _), part in work.groupby(["seed", "tokens"]):
        seconds = [part.loc[part["speculates"] == 0, "rollout"]]
        for _, alike in part[part["learning"] > 0].groupby("trained"):
            seconds += [alike["learning"]] if alike["speculates"].any() else []
        ratios = [(ratio, each) for each in seconds if not math.isnan(ratio := _ratio(each))]
        if ratios:
            ratio, each = max(ratios, key=lambda pair: pair[0])
            found.append((ratio, seed, f"{each.idxmax()[0]} and {each.idxmin()[0]}, seed {seed}"))
    timed = runs.steps.groupby(["cell", "seed"])[SPREAD].any() if SPREAD in runs.steps else pd.Series([False])
    return TimingSpread(
        len(found),
        float(np.median([ratio for ratio, *_ in found])) if found else math.nan,
        max((ratio for ratio, *_ in found), default=math.nan),
        float(runs.steps[SPREAD].median()) if SPREAD in runs.steps else math.nan,
        float(timed.mean()),
        frozenset(seed for _, seed, _ in found),
        max(found, default=(math.nan, 0, ""))[2],
    )


def _ratio(seconds: pd.Series) -> float:
    """Longest over shortest, infinite where the shortest is 0; NaN for fewer than two runs, and where all are 0."""
    if len(seconds) < 2 or not seconds.max() > 0:
        return math.nan
    return float(seconds.max() / seconds.min()) if seconds.min() > 0 else math.inf


def timed_unevenly(
    runs: Runs, compared: Iterable[Collection[str]], quantities: Iterable[str] = ()
) -> TimingSpread | None:
    """The spread of the seconds of equal work if it is unknown or too large for a verdict on some times; else None.

    Args:
        runs: of a paper.
        compared: pairs of cells whose times are compared, or single ones, which are compared with the paper's times.
        quantities: what is asked of them; an accuracy at equal seconds compares all cells that it names.

    Returns:
        The largest spread of these, or an unknown one.
    """
    named = [name.removeprefix(AT_EQUAL).split(":")[1] for name in quantities if name.startswith(AT_EQUAL)]
    pairs = [*compared, *(pair for cells in named for pair in combinations(cells.split("+"), 2))]
    # Cells that were not run are not compared.
    run = {cell for cell, _ in _first_epochs(runs).index}
    found = [({*cells}, _spread_between(runs, frozenset(cells))) for cells in pairs if run.issuperset(cells)]
    # What one cell's own runs say, such as a share of their time, is doubted only where unevenness is known.
    worst = [spread for cells, spread in found if not spread.comparable and (spread.groups or len(cells) > 1)]
    # A known factor says more than that none is known.
    return max(worst, key=lambda spread: (spread.groups > 0, spread.largest), default=None)


def _spread_between(runs: Runs, cells: frozenset[str]) -> TimingSpread:
    """Spread of two cells' own runs if they did equal work in every seed that both have.

    Else that of all runs, which tells how evenly the machine ran.
    """
    seeds = [{seed for cell, seed in _first_epochs(runs).index if cell == name} for name in cells]
    own = first_epoch_spread(runs, cells) if len(cells) > 1 else None
    return own if own and own.groups and own.seeds >= set.intersection(*seeds) else first_epoch_spread(runs)


def is_timed(quantity: str) -> bool:
    """True for a quantity of seconds or hours, and for a speedup, which is made of them.

    Predicted seconds are none: they follow from the recorded passes, however long those took.
    """
    return "seconds" in quantity.replace(PREDICTED, "") or quantity.startswith(("hours", SPEEDUP))
