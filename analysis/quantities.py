"""What can be said about a run, a step or an epoch: every number that a table, figure or claim names, defined once."""

from collections.abc import Callable

import pandas as pd

from analysis.collect import Runs
from redraft.errors import UserError

Reduce = Callable[[pd.DataFrame], float]


def _last_epoch(column: str) -> Reduce:
    return lambda steps: float(steps.loc[steps["epoch"] == steps["epoch"].max(), column].mean())


def _reuse_epochs(column: str) -> Reduce:
    return lambda steps: float(steps.loc[steps["epoch"] > 0, column].mean())


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
    "entropy": lambda s: s["entropy"],
    "kl": lambda s: s["kl"],
    "clip_fraction": lambda s: s["clip_fraction"],
    "token_age_epochs": lambda s: s["token_age_epochs"],
    "distinct_1": lambda s: s["distinct_1"],
    "self_bleu": lambda s: s["self_bleu"],
    "rouge_1": lambda s: s["rouge_1"],
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
}
"""Quantities of a run, for tables and claims. What concerns reuse leaves the first epoch out, which has no drafts."""

ACCURACY = "accuracy:"
"""Prefix of the accuracies: of a benchmark, of a role (the mean of its benchmarks), or `all`; percent."""


def by_seed(runs: Runs, quantity: str, cell: str) -> dict[int, float]:
    """A quantity of each finished run of a cell, by seed; empty if there is none.

    Raises:
        UserError: if there is no such quantity.
    """
    if quantity.startswith(ACCURACY):
        return _accuracy(runs.scores[runs.scores["cell"] == cell], quantity.removeprefix(ACCURACY))
    if quantity not in RUN_QUANTITIES:
        raise UserError("no such quantity of a run", key="quantity", value=quantity,
                        allowed=[*RUN_QUANTITIES, f"{ACCURACY}<benchmark, role or all>"])  # fmt: skip
    reduce = RUN_QUANTITIES[quantity]
    steps = runs.steps[runs.steps["cell"] == cell]
    return {int(seed): reduce(part) for seed, part in steps.groupby("seed")}  # type: ignore[call-overload]


def _accuracy(scores: pd.DataFrame, of: str) -> dict[int, float]:
    chosen = scores if of == "all" else scores[(scores["benchmark"] == of) | (scores["role"] == of)]
    if len(scores) and not len(chosen):
        names = [*scores["benchmark"].unique(), *scores["role"].unique(), "all"]
        raise UserError("no such benchmark or role", key="quantity", value=ACCURACY + of, allowed=names)
    percent = 100 * chosen["correct"] / chosen["total"]
    return {int(seed): float(part.mean()) for seed, part in percent.groupby(chosen["seed"])}  # type: ignore[call-overload]


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
