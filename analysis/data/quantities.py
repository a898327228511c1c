"""Quantities of a run, a step or an epoch: every number that a table, figure or claim names, defined once.

Whatever a step's record holds is a quantity of the step by its own name, and `<reduction>:<name>` one of the run, so
that a paper's new records need nothing here. What is listed by name is what needs more than one column, or has
another name than its record.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.prompt_frames import in_bin, of_initial, of_prompts, quantities_of_bins
from redraft.analysis.data.speculation import correlation, plain_positions, token_acceptance, token_acceptance_from
from redraft.analysis.data.statistics import NO_BLOCKS, ROUNDING, estimate, noise_floor
from redraft.config.decoding import BLOCK_STARTS
from redraft.config.quantities import (
    ACCURACY,
    AT_EQUAL,
    BIN,
    CORRELATION,
    FIRST_REACHED,
    FORMS,
    INITIAL_PASS_RATE,
    NAMED,
    WINDOW,
    fields,
)
from redraft.errors import UserError

Reduce = Callable[[pd.DataFrame], float]


def _last_epoch(column: str) -> Reduce:
    return lambda steps: float(steps.loc[steps["epoch"] == steps["epoch"].max(), column].mean())


def _reuse_epochs(column: str) -> Reduce:
    return lambda steps: float(steps.loc[steps["epoch"] > 0, column].mean())


def _first_epoch(column: str) -> Reduce:
    return lambda steps: float(steps.loc[steps["epoch"] == 0, column].mean())


def _mean(column: str) -> Reduce:
    return lambda steps: float(steps[column].mean())


def _third(column: str, which: int) -> Reduce:
    """Mean over the first, middle or last third of the epochs with drafts, by steps; longer ones first."""

    def reduce(steps: pd.DataFrame) -> float:
        values = steps[steps["epoch"] > 0].sort_values("step")[column]
        part = np.array_split(np.arange(len(values)), 3)[which]
        return float(values.iloc[part].mean())

    return reduce


def _reuse_share(steps: pd.DataFrame) -> float:
    """Share of the tokens trained on that came from drafts, where there were any."""
    reuse = steps[steps["epoch"] > 0]
    reused, decoded = reuse["tokens_reused"].sum(), reuse["tokens_decoded"].sum()
    return float(reused / (reused + decoded)) if reused + decoded else math.nan


def _sum(*columns: str) -> Reduce:
    """Sum over steps that have a value, NaN if no step of the run has one of a column."""
    # `min_count`, since pandas' sum of nothing is 0: a method that never measures something would have used none.
    return lambda steps: float(steps[list(columns)].sum(min_count=1).sum(skipna=False))


STEP_QUANTITIES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "rollout_seconds": lambda s: s["seconds.rollout"],
    "generation_seconds": lambda s: s["seconds.rollout"] + s["seconds.verification"] + s["seconds.assembly"],
    # Records count `without_correct` before a correct response is replayed from memory, and `informative` after it.
    "without_correct_after_reuse": lambda s: s["without_correct"] - s["replayed"],
    "all_correct": lambda s: 1 - s["informative"] - (s["without_correct"] - s["replayed"]),
    "tokens_per_pass": lambda s: s["tokens_decoded"] / s["decoding_passes"].where(s["decoding_passes"] > 0),
    "plain_positions": plain_positions,
    "token_acceptance": token_acceptance,
    **{f"token_acceptance_from.{start}": token_acceptance_from(start) for start in BLOCK_STARTS},
}
"""Quantities of a step that are not a column of its record."""

REDUCTIONS: dict[str, Callable[[str], Reduce]] = {
    "sum": _sum,
    "mean": _mean,
    "max": lambda column: lambda steps: float(steps[column].max()),
    "first_epoch": _first_epoch,
    "last_epoch": _last_epoch,
    "reuse_epochs": _reuse_epochs,
}
"""Prefix of a quantity of a run to how it is made of a quantity of its steps; epochs are means of their steps.
`reuse_epochs` are all but the first, which has no drafts."""

RUN_QUANTITIES: dict[str, Reduce] = {
    name: REDUCTIONS[reduction](column)
    for name, (reduction, _, column) in ((name, meaning.partition(":")) for name, meaning in NAMED.items())
} | {
    "generation_seconds": _sum("seconds.rollout", "seconds.verification", "seconds.assembly"),
    "rouge_1_second_epoch": lambda steps: float(steps.loc[steps["epoch"] == 1, "rouge_1"].mean()),
    "hours": lambda steps: float(steps["seconds.total"].sum() / 3600),
    "generation_steps": lambda steps: float(len(steps)),
    "training_steps": lambda steps: float(steps["training_step"].max()),
    # A run that never updated has no batch, so 0 updates become NaN.
    "rollouts_per_batch": lambda steps: float(steps["rollouts"].sum() / (steps["training_step"].max() or math.nan)),
    "reuse_share": _reuse_share,
    "from_half": lambda steps: float((steps["trained_reward"] - 0.5).abs().mean()),
    # Records count steps from 0, people from 1.
    "first_reuse_step": lambda steps: float(steps.loc[steps["prefix_length"].notna(), "step"].min() + 1),
    **{
        f"{column}_{part}": _third(column, which)
        for column in ("prefix_length", "prefix_share")
        for which, part in enumerate(("early", "middle", "late"))
    },
}
"""Quantities of a run, for tables and claims. What concerns reuse leaves the first epoch out, which has no drafts.

Seconds are sums over a run, except by stage and by epoch, where they are means of a step.
"""


def by_seed(runs: Runs, quantity: str, cell: str, at: int | None = None) -> dict[int, float]:
    """A quantity of each finished run of a cell, by seed; empty if there is none.

    Args:
        at: steps done. Sums and means are over those steps, and runs that ended before are left out. Accuracies are
            those of the policy after exactly that many, 0 being the initial one; runs without such a policy are left
            out. By default all steps and the last policy: which one counts is fixed in advance and never the best.

    Raises:
        UserError: if there is no such quantity.
    """
    if quantity.startswith(ACCURACY):
        chosen = _of(_scores(runs, cell, at), quantity)
        # The mean of benchmarks, not the share over all their problems: each weighs the same.
        percent = 100 * chosen["correct"] / chosen["total"]
        return {int(seed): float(part.mean()) for seed, part in percent.groupby(chosen["seed"])}  # type: ignore[call-overload]
    if quantity.startswith(AT_EQUAL):
        return at_equal_budget(runs, quantity, cell)
    if quantity.startswith(tuple(FIRST_REACHED)):
        found = first_reached(runs, quantity, cell, at)
    elif binned := BIN.fullmatch(quantity):
        found = _in_bin(runs, binned, cell, at)
    else:
        reduce = _reduction(runs, quantity)
        steps = runs.steps_of(cell)
        # Records count from 0, so the first `at` steps are those below it.
        steps = steps if at is None else steps[steps["step"] < at]
        found = {int(seed): reduce(part) for seed, part in steps.groupby("seed")}  # type: ignore[call-overload]
    if at is None:
        return found
    # By training steps runs end after different numbers of them. The last policy is always evaluated.
    done = runs.scores[runs.scores["cell"] == cell].groupby("seed")["step"].max()
    return {seed: value for seed, value in found.items() if done.get(seed, 0) >= at}


def noise_by_seed(runs: Runs, quantity: str, cell: str, at: int | None = None) -> dict[int, float]:
    """The standard error, points, that sampling alone gives an accuracy of each run; empty for other quantities."""
    if not quantity.startswith(ACCURACY):
        return {}
    chosen = _of(_scores(runs, cell, at), quantity)
    return {
        int(seed): noise_floor({str(s.benchmark): (100 * s.correct / s.total, int(s.total)) for s in part.itertuples()})
        for seed, part in chosen.groupby("seed")
    }  # type: ignore[call-overload]


@lru_cache(maxsize=1 << 8)
def _scores(runs: Runs, cell: str, at: int | None) -> pd.DataFrame:
    """The scores of a cell's policies after `at` steps, or of its last ones."""
    scores = runs.scores[runs.scores["cell"] == cell]
    wanted = scores.groupby("seed")["step"].transform("max") if at is None else at
    return scores[scores["step"] == wanted]


def _of(scores: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Those of benchmarks, a role or all; none if one of the benchmarks was not sampled."""
    names = of_accuracy(quantity)
    # A mean over fewer benchmarks than were named would be read as that of all.
    if not {*scores["benchmark"], *scores["role"], "all"}.issuperset(names):
        return scores.iloc[:0]
    return scores if "all" in names else scores[scores["benchmark"].isin(names) | scores["role"].isin(names)]


def of_accuracy(quantity: str) -> list[str]:
    """Benchmarks or roles that an accuracy, or a time to one, is about; empty for another quantity."""
    # The last prefix, since `hours_to:45:accuracy:dapo1k` has others before it.
    _, found, names = quantity.rpartition(ACCURACY)
    return names.split("+") if found else []


def _reduction(runs: Runs, quantity: str) -> Reduce:
    """Reduction of a run's steps to a quantity."""
    if quantity in RUN_QUANTITIES:
        return RUN_QUANTITIES[quantity]
    name, _, column = quantity.partition(":")
    one, _, other = column.partition(":")
    if quantity.startswith(CORRELATION) and {one, other} <= {*numbers(runs), *STEP_QUANTITIES}:
        return lambda steps: correlation(_of_step(steps, one), _of_step(steps, other))
    if column in numbers(runs) or column in STEP_QUANTITIES:
        if name in REDUCTIONS:
            return _of_derived(column, REDUCTIONS[name](column))
        # Windows count steps from 1, records from 0.
        if window := WINDOW.fullmatch(name):
            reduce, first, last = REDUCTIONS[window[1]](column), int(window[2]), int(window[3])
            return _of_derived(column, lambda steps: reduce(steps[steps["step"].between(first - 1, last - 1)]))
    raise UserError("no such quantity of a run", key="quantity", value=quantity, allowed=[*RUN_QUANTITIES, *FORMS])


def _of_step(steps: pd.DataFrame, quantity: str) -> pd.Series:
    """A quantity of each of these steps."""
    return STEP_QUANTITIES[quantity](steps) if quantity in STEP_QUANTITIES else steps[quantity]


def _of_derived(quantity: str, reduce: Reduce) -> Reduce:
    """The reduction, after the computation of the quantity where records do not hold it."""
    derive = STEP_QUANTITIES.get(quantity)
    return reduce if derive is None else lambda steps: reduce(steps.assign(**{quantity: derive(steps)}))


def _in_bin(runs: Runs, binned: re.Match[str], cell: str, at: int | None) -> dict[int, float]:
    """A quantity of prompts in a bin, by seed, over visits that began in the first `at` steps by the clock of runs."""
    low, high, by, quantity = binned.groups()
    # The last bin of a rate includes 1: prompts that are always solved would be in none.
    edges, closed = (float(low), float(high)), float(high) == 1
    chosen = runs.runs[runs.runs["cell"] == cell]
    if by == INITIAL_PASS_RATE:
        if "probe" not in chosen:  # runs that an earlier version collected
            return {}
        columns = zip(chosen["seed"], chosen["initial"], chosen["probe"], strict=True)
        probed = {int(seed): of_initial(Path(initial).parent, probe) for seed, initial, probe in columns}
        return {seed: in_bin(p, quantity, by, edges, closed) for seed, p in probed.items() if p is not None}
    steps = runs.steps_of(cell)
    # Rollouts are by generation step, from 0, of which a training step may have several.
    generated = steps[steps["step"] < (math.inf if at is None else at)].groupby("seed").size()
    found = {}
    for seed, manifest in zip(chosen["seed"], chosen["manifest"], strict=True):
        prompts = of_prompts(Path(manifest).parent, quantities_of_bins(by, quantity))
        prompts = prompts if at is None else prompts[prompts["step"] < generated.get(seed, 0)]
        found[int(seed)] = in_bin(prompts, quantity, by, edges, closed)
    return found


SHARES = (
    *("reward", "fresh_reward", "trained_reward"),
    *("informative", "without_correct", "without_correct_after_reuse", "all_correct"),
)
"""Quantities of a step or a run that are shares of right answers, or of prompts by these."""


def bound_of(
    quantities: Sequence[str],
    sides: Sequence[Mapping[int, float]],
    margin: float = 0.0,
    blocks: Mapping[int, int] = NO_BLOCKS,
) -> str:
    """Why values cannot be tested against each other; empty if they can.

    Only seeds that all sides have count, in a sequential campaign those of the blocks up to the look that was reached:
    the test uses no others.

    Returns:
        `never` if a value is infinite, which is a target that a run did not reach: a ratio of such times is only known
        to be below or above a number. `floor` or `ceiling` if every value of an accuracy or another sampled share is
        within the margin of that end, where a difference cannot exceed the margin, whatever was learned: 0 % against
        0 % is no agreement.
    """
    having = [{seed for seed, value in side.items() if not math.isnan(value)} for side in sides]
    seeds = estimate(dict.fromkeys(set.intersection(*having), 0.0), blocks).seeds
    values = [side[seed] for side in sides for seed in seeds]
    if any(map(math.isinf, values)):
        return "never"
    ends = set()
    for quantity in quantities:
        prefix, _, name = quantity.rpartition(":")
        if quantity.startswith(ACCURACY) or (quantity.startswith(AT_EQUAL) and ACCURACY in quantity):
            ends.add(100.0)
        elif name in SHARES and (not prefix or prefix in REDUCTIONS or WINDOW.fullmatch(prefix)):
            # A sum of shares over steps has no largest value.
            ends.add(math.inf if prefix.startswith("sum") else 1.0)
        else:
            return ""
    # Quantities with different largest values, such as an accuracy and a reward, have no common end.
    if len(ends) != 1 or not values:
        return ""
    largest = ends.pop()
    # The mean of 1, 7 and 1 of 300 right answers is 1.0000000000000002 %.
    margin += ROUNDING * 100
    if max(values) <= margin:
        return "floor"
    return "ceiling" if min(values) >= largest - margin else ""


def numbers(runs: Runs) -> list[str]:
    """Names of what the records of steps hold, or would hold of other methods."""
    recorded = [name for name in runs.steps.select_dtypes(["number", "bool"]) if name not in ("cell", "seed", "step")]
    return list(dict.fromkeys([*recorded, *sorted(fields())]))


def of_steps(runs: Runs, quantity: str, cell: str) -> pd.DataFrame:
    """A quantity of each step of a cell: columns seed, step, epoch, value.

    Raises:
        UserError: if there is no such quantity.
    """
    known = numbers(runs)
    if quantity not in STEP_QUANTITIES and quantity not in known:
        raise UserError(
            "no such quantity of a step", key="quantity", value=quantity, allowed=[*STEP_QUANTITIES, *known]
        )
    steps = runs.steps_of(cell)
    return steps[["seed", "step", "epoch"]].assign(value=_of_step(steps, quantity))


def of_policies(runs: Runs, quantity: str, cell: str) -> pd.DataFrame:
    """An accuracy of each evaluated policy of a cell: columns seed, step (done by the policy), value."""
    done = sorted(runs.scores.loc[runs.scores["cell"] == cell, "step"].unique())
    lines = [
        (seed, int(step), value) for step in done for seed, value in by_seed(runs, quantity, cell, int(step)).items()
    ]
    return pd.DataFrame(lines, columns=["seed", "step", "value"])


def first_reached(runs: Runs, quantity: str, cell: str, at: int | None = None) -> dict[int, float]:
    """The first hour or step at which each finished run of a cell reaches a value, within `at` steps (all if None).

    An accuracy is looked at in every evaluated policy, the initial one at hour 0 included; another quantity in every
    step, at its end. Hours are of training alone: evaluation and checkpoints are no part of a step's seconds. A value
    with the sign + is added to the accuracy of each run's initial policy; a run without that one is left out. Infinite
    if the value is not reached; NaN of a quantity that no step of the run has.
    """
    clock, value, measured = quantity.split(":", 2)
    if measured.startswith(ACCURACY):
        points = of_policies(runs, measured, cell)
    else:
        # A policy is named by the steps that it has done, and a step's own value exists at its end.
        points = of_steps(runs, measured, cell).assign(step=lambda steps: steps["step"] + 1)
    points = points if at is None else points[points["step"] <= at]
    times = spent_at(runs, "seconds.total", cell) if clock == "hours_to" else None
    found = {}
    initial = by_seed(runs, measured, cell, at=0) if value.startswith("+") else None
    for seed, part in points.sort_values("step").groupby("seed"):
        if initial is not None and seed not in initial:
            continue
        if part["value"].isna().all():
            found[int(seed)] = math.nan  # type: ignore[call-overload]
            continue
        target = float(value) + (initial[int(seed)] if initial else 0.0)  # type: ignore[call-overload]
        # Means of exact shares may be a rounding error below: 3 and 489 of 500 have the mean 49.199999999999996 %.
        reached = part.loc[part["value"] >= target - ROUNDING * max(1.0, abs(target)), "step"]
        done = int(reached.iloc[0]) if len(reached) else None
        found[int(seed)] = math.inf if done is None else float(done) if times is None else times[int(seed), done] / 3600  # type: ignore[call-overload]
    return found


def at_equal_budget(runs: Runs, quantity: str, cell: str) -> dict[int, float]:
    """The accuracy that each finished run of a cell has at an equal budget, by linear interpolation.

    The budget of a seed is the least that its runs of the cells spend in total, so that every accuracy is interpolated
    and a seed's values do not depend on other seeds. Nothing for a seed in which one of the cells was not run or never
    records what is spent: its budget is not known.
    """
    spent_of, cells, accuracy = quantity.removeprefix(AT_EQUAL).split(":", 2)
    totals = [by_seed(runs, f"sum:{spent_of}", each) for each in cells.split("+")]
    of_all = {seed: [total[seed] for total in totals] for seed in set.intersection(*map(set, totals))}
    budgets = {seed: min(spent) for seed, spent in of_all.items() if not any(map(math.isnan, spent))}
    spent = spent_at(runs, spent_of, cell)
    found = {}
    for seed, policies in of_policies(runs, accuracy, cell).sort_values("step").groupby("seed"):
        if seed in budgets:
            x = [spent[int(seed), int(step)] for step in policies["step"]]  # type: ignore[call-overload]
            found[int(seed)] = float(np.interp(budgets[seed], x, policies["value"]))  # type: ignore[call-overload,index]
    return found


def spent_at(runs: Runs, quantity: str, cell: str) -> dict[tuple[int, int], float]:
    """Sum of a quantity over the first steps of a cell's runs, by seed and steps done; steps without one add none."""
    steps = of_steps(runs, quantity, cell).sort_values("step")
    sums = steps.assign(sum=steps["value"].astype(float).fillna(0).groupby(steps["seed"]).cumsum())
    found = {(int(line.seed), int(line.step) + 1): float(line.sum) for line in sums.itertuples()}
    return found | {(int(seed), 0): 0.0 for seed in steps["seed"].unique()}


PROFILE_SCORES = range(0, 101, 2)
"""Accuracies of a performance profile, percent."""
SPENT = {"hours": ("seconds.total", 1 / 3600), "tokens": ("tokens_decoded", 1e-6), "updates": ("updated", 1.0)}
"""Axes of figures that say what a run has spent: quantity of a step that adds up, and factor to the axis's unit."""


def profile(runs: Runs, quantity: str, cell: str) -> pd.DataFrame:
    """Performance profile of a cell's last policies: index accuracy in percent, one column a seed.

    A value is the share of the benchmarks of `quantity`, an accuracy, on which the policy is more accurate than that
    (Agarwal et al. 2021, arXiv 2108.13264).
    """
    chosen = _of(_scores(runs, cell, None), quantity)
    if chosen.empty:
        return pd.DataFrame()
    percent = 100 * chosen["correct"] / chosen["total"]
    shares = {score: (percent > score).groupby(chosen["seed"]).mean() for score in PROFILE_SCORES}
    return pd.DataFrame(shares).T


def over_time(runs: Runs, quantity: str, cell: str, x: str) -> pd.DataFrame:
    """A quantity over steps or epochs from 0, or over what was spent: index x, one column a seed.

    An accuracy is one of the policies after a number of steps, so that of the initial policy is at step -1. Seeds that
    are evaluated by training steps have their policies after different steps: a point is then of the policies after as
    many training steps, or of the last ones, and x the mean of their steps. Over hours, tokens or updates x is the
    mean, over the seeds that have the value, of what they spent up to the end of a step. Over the score it is a
    performance profile (`profile`).

    Raises:
        UserError: if there is no such quantity, or no epochs of it.
    """
    if x == "score":
        return profile(runs, quantity, cell)
    if quantity.startswith(ACCURACY):
        if x == "epoch":
            raise UserError(
                "an accuracy is measured after steps, not by epoch",
                key="quantity",
                value=quantity,
                allowed=["x: step", *(f"x: {name}" for name in SPENT)],
            )
        points = _aligned(runs, cell, of_policies(runs, quantity, cell))
    else:
        points = of_steps(runs, quantity, cell)
        points = points.assign(point=points["epoch" if x == "epoch" else "step"], step=points["step"] + 1)
    frame = points.groupby(["point", "seed"])["value"].mean().unstack("seed").dropna(how="all")
    if x == "epoch" or frame.empty:
        return frame
    # Figures add 1, so that the initial policy is at 0 and the policy after step 6 at 6.
    at, scale = points["step"] - 1.0, 1.0
    if x in SPENT:
        quantity_spent, scale = SPENT[x]
        spent = spent_at(runs, quantity_spent, cell)
        at = pd.Series([spent[key] for key in zip(points["seed"], points["step"], strict=True)], points.index)
    places = points.assign(at=at)[points["value"].notna()].groupby("point")["at"]
    return frame.set_axis(pd.Index([scale * float(np.mean(part)) for _, part in places], name=x), axis=0)


def _aligned(runs: Runs, cell: str, policies: pd.DataFrame) -> pd.DataFrame:
    """Policies (`of_policies`) with the point of a line that each belongs to; a point without all seeds is left out."""
    steps = policies.groupby("seed")["step"].agg(frozenset)
    if steps.nunique() <= 1:  # all by generation steps
        return policies.assign(point=policies["step"])
    records = runs.steps_of(cell)
    keys = zip(records["seed"], records["step"] + 1, strict=True)
    updates = dict(zip(keys, records["training_step"], strict=True))
    done = [updates.get((seed, step), 0) for seed, step in zip(policies["seed"], policies["step"], strict=True)]
    last = policies["step"] == policies.groupby("seed")["step"].transform("max")
    aligned = policies.assign(point=np.where(last, np.inf, done))
    return aligned[aligned.groupby("point")["seed"].transform("nunique") == len(steps)]
