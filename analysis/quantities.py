"""What can be said about a run, a step or an epoch: every number that a table, figure or claim names, defined once."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.collect import Runs
from analysis.statistics import noise_floor
from redraft.errors import UserError

Reduce = Callable[[pd.DataFrame], float]

STAGES = (
    "verification", "rollout", "assembly", "reward", "old_log_probs", "ref", "values", "adv", "update_critic",
    "update_actor", "others",
)  # fmt: skip
"""Where a step's time goes, by the columns of SPEC-RL's Table 4; they sum to `total`."""

SECONDS = "seconds:"
"""Prefix of the mean seconds a step of a stage, or `total`."""


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
    return lambda steps: float(steps[list(columns)].sum().sum())


STEP_QUANTITIES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "tokens_decoded": lambda s: s["tokens_decoded"],
    "rollout_seconds": lambda s: s["seconds.rollout"],
    "generation_seconds": lambda s: s["seconds.rollout"] + s["seconds.verification"] + s["seconds.assembly"],
    "prefix_length": lambda s: s["prefix_length"],
    "full_reuse_ratio": lambda s: s["full_reuse_ratio"],
    "response_length": lambda s: s["response_length"],
    "reward": lambda s: s["reward"],
    "fresh_reward": lambda s: s["fresh_reward"],
    "informative": lambda s: s["informative"],
    "entropy": lambda s: s["entropy"],
    "kl": lambda s: s["kl"],
    "clip_fraction": lambda s: s["clip_fraction"],
    "token_age_epochs": lambda s: s["token_age_epochs"],
    "distinct_1": lambda s: s["distinct_1"],
    "self_bleu": lambda s: s["self_bleu"],
    "rouge_1": lambda s: s["rouge_1"],
    "distinct_2": lambda s: s["distinct_2"],
    "rouge_1_precision": lambda s: s["rouge_1_precision"],
    "rouge_1_recall": lambda s: s["rouge_1_recall"],
    "distinct_trajectories": lambda s: s["distinct_trajectories"],
    "trajectories_share": lambda s: s["trajectories_share"],
    "token_age_steps": lambda s: s["token_age_steps"],
}
"""Quantities of a step, for figures."""

RUN_QUANTITIES: dict[str, Reduce] = {
    "tokens_decoded": _sum("tokens_decoded"),
    "tokens_verified": _sum("tokens_verified"),
    "rollout_seconds": _sum("seconds.rollout"),
    "generation_seconds": _sum("seconds.rollout", "seconds.verification", "seconds.assembly"),
    "step_seconds": _sum("seconds.total"),
    "prefix_length": _reuse_epochs("prefix_length"),
    "full_reuse_ratio": _reuse_epochs("full_reuse_ratio"),
    "token_age_epochs": _last_epoch("token_age_epochs"),
    "reward": _last_epoch("reward"),
    "fresh_reward": _last_epoch("fresh_reward"),
    "entropy": _reuse_epochs("entropy"),
    "kl": _reuse_epochs("kl"),
    "kl_max": lambda steps: float(steps["kl"].max()),
    "clip_fraction": _reuse_epochs("clip_fraction"),
    "clip_fraction_max": lambda steps: float(steps["clip_fraction"].max()),
    "distinct_1": _reuse_epochs("distinct_1"),
    "self_bleu": _reuse_epochs("self_bleu"),
    "rouge_1_second_epoch": lambda steps: float(steps.loc[steps["epoch"] == 1, "rouge_1"].mean()),
    "rouge_1_last_epoch": _last_epoch("rouge_1"),
    "hours": lambda steps: float(steps["seconds.total"].sum() / 3600),
    "generation_steps": lambda steps: float(len(steps)),
    "training_steps": lambda steps: float(steps["training_step"].max()),
    "informative": _mean("informative"),
    "response_length": _mean("response_length"),
    "reuse_share": _reuse_share,
    "first_reuse_step": lambda steps: float(steps.loc[steps["prefix_length"].notna(), "step"].min() + 1),
    "prefix_length_early": _third("prefix_length", 0),
    "prefix_length_middle": _third("prefix_length", 1),
    "prefix_length_late": _third("prefix_length", 2),
    "rollout_seconds_first_epoch": _first_epoch("seconds.rollout"),
    "rollout_seconds_last_epoch": _last_epoch("seconds.rollout"),
    "rollout_seconds_reuse_epochs": _reuse_epochs("seconds.rollout"),
} | {f"{SECONDS}{stage}": _mean(f"seconds.{stage}") for stage in (*STAGES, "total")}
"""Quantities of a run, for tables and claims. What concerns reuse leaves the first epoch out, which has no drafts.

Seconds are sums over a run, except by stage and by epoch, where they are means of a step.
"""

ACCURACY = "accuracy:"
"""Prefix of the accuracies: of a benchmark, of a role (the mean of its benchmarks), or `all`; percent."""


def by_seed(runs: Runs, quantity: str, cell: str, at: int | None = None) -> dict[int, float]:
    """A quantity of each finished run of a cell, by seed; empty if there is none.

    Args:
        at: steps done, at most. Sums and means are over those steps, and accuracies are those of the policy after
            exactly so many, 0 being the initial one; runs without such a policy are left out. By default all steps
            and the last policy: which one counts is fixed in advance and never the best.

    Raises:
        UserError: if there is no such quantity.
    """
    if quantity.startswith(ACCURACY):
        chosen = _of(_scores(runs, cell, at), quantity)
        percent = 100 * chosen["correct"] / chosen["total"]
        return {int(seed): float(part.mean()) for seed, part in percent.groupby(chosen["seed"])}  # type: ignore[call-overload]
    if quantity not in RUN_QUANTITIES:
        raise UserError("no such quantity of a run", key="quantity", value=quantity,
                        allowed=[*RUN_QUANTITIES, f"{ACCURACY}<benchmark, role or all>"])  # fmt: skip
    reduce = RUN_QUANTITIES[quantity]
    steps = runs.steps[runs.steps["cell"] == cell]
    if at is not None:
        steps = steps[steps["step"] < at]
    return {int(seed): reduce(part) for seed, part in steps.groupby("seed")}  # type: ignore[call-overload]


def noise_by_seed(runs: Runs, quantity: str, cell: str, at: int | None = None) -> dict[int, float]:
    """The standard error, points, that sampling alone gives an accuracy of each run; empty for other quantities."""
    if not quantity.startswith(ACCURACY):
        return {}
    chosen = _of(_scores(runs, cell, at), quantity)
    return {
        int(seed): noise_floor({str(s.benchmark): (100 * s.correct / s.total, int(s.total)) for s in part.itertuples()})
        for seed, part in chosen.groupby("seed")
    }  # type: ignore[call-overload]


def _scores(runs: Runs, cell: str, at: int | None) -> pd.DataFrame:
    """The scores of a cell's policies after so many steps, or of its last ones."""
    scores = runs.scores[runs.scores["cell"] == cell]
    wanted = scores.groupby("seed")["step"].transform("max") if at is None else at
    return scores[scores["step"] == wanted]


def _of(scores: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Those of a benchmark, a role or all."""
    of = quantity.removeprefix(ACCURACY)
    chosen = scores if of == "all" else scores[(scores["benchmark"] == of) | (scores["role"] == of)]
    if len(scores) and not len(chosen):
        names = [*scores["benchmark"].unique(), *scores["role"].unique(), "all"]
        raise UserError("no such benchmark or role", key="quantity", value=quantity, allowed=names)
    return chosen


def over_time(runs: Runs, quantity: str, cell: str, x: str) -> pd.DataFrame:
    """A quantity by step or epoch: index x, one column a seed.

    Raises:
        UserError: if there is no such quantity.
    """
    if quantity not in STEP_QUANTITIES:
        raise UserError("no such quantity of a step", key="quantity", value=quantity, allowed=STEP_QUANTITIES)
    steps = runs.steps[runs.steps["cell"] == cell]
    values = STEP_QUANTITIES[quantity](steps).rename("value")
    frame = pd.concat([steps[[x, "seed"]], values], axis=1).groupby([x, "seed"])["value"].mean().unstack("seed")
    return frame.dropna(how="all")
