"""Frames from the rollouts that runs keep: prompts by epoch pass, the prompt log, and accepted lengths by position.

Only the columns that a quantity needs are read; the tokens of rollouts, by far the most of a file, only for lengths.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from redraft.analysis.data.collect import Runs
from redraft.config import Panel, Run, Staged
from redraft.config.quantities import INITIAL_PASS_RATE, SHARE
from redraft.errors import UserError
from redraft.files import read_parquet
from redraft.result_files import rollout_files
from redraft.rollout.types import CORRECT
from redraft.tasks.answers import Outcome

KEY = ["step", "epoch", "prompt", "visit"]
"""A visit of a prompt, with the step and epoch in which it began: a schedule may continue it in later steps."""


def _mean(column: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rollouts: rollouts.groupby(KEY)[column].mean()


def _so_far(rollouts: pd.DataFrame) -> pd.Series:
    """Mean reward of all rollouts that a prompt has had up to and with a visit."""
    totals = _totals(rollouts)
    return totals["sum"] / totals["size"]


def _before(rollouts: pd.DataFrame) -> pd.Series:
    """Mean reward of all rollouts that a prompt had before a visit; NaN at its first one."""
    totals = _totals(rollouts).groupby(level="prompt").shift()
    return totals["sum"] / totals["size"]


def _totals(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Sum of the rewards (`sum`) and number of the rollouts (`size`) of a prompt up to and with a visit."""
    # In the order of training, since `cumsum` and `shift` go by the order of rows.
    visits = rollouts.groupby(KEY)["reward"].agg(["sum", "size"]).sort_index(level=["step", "visit"])
    return visits.groupby(level="prompt").cumsum()


PROMPT_QUANTITIES: dict[str, tuple[Callable[[pd.DataFrame], pd.Series], tuple[str, ...]]] = {
    "pass_rate": (_mean("reward"), ("reward",)),
    "pass_rate_so_far": (_so_far, ("reward",)),
    "pass_rate_before": (_before, ("reward",)),
    "responses": (lambda rollouts: rollouts.groupby(KEY)["reward"].size().astype(float), ("reward",)),
    "response_length": (_mean("length"), ("tokens",)),
    "prefix_length": (_mean("prefix_length"), ("prefix_length",)),
    "draft_length": (_mean("draft_length"), ("draft_length",)),
}
"""Quantities of a visit of a prompt, and the columns of its rollouts that each needs; rewards are 0 to 1."""


def of_prompts(folder: Path, quantities: list[str]) -> pd.DataFrame:
    """`PROMPT_QUANTITIES` of every visit of every prompt of a run: columns `KEY` and one a quantity.

    Raises:
        UserError: for an unknown quantity, or if the run has no rollouts.
    """
    for name in quantities:
        if name not in PROMPT_QUANTITIES:
            raise UserError(
                "no such quantity of a prompt", key="quantity", value=name, allowed=[SHARE, *PROMPT_QUANTITIES]
            )
    needed = {column for name in quantities for column in PROMPT_QUANTITIES[name][1]}
    rollouts = read_rollouts(folder, ["visit", *sorted(needed)])
    began = ["step", "epoch"]
    rollouts[began] = rollouts.groupby(["prompt", "visit"])[began].transform("min")
    parts = {name: PROMPT_QUANTITIES[name][0](rollouts) for name in quantities}
    return pd.DataFrame(parts).reset_index()


def of_initial(evaluated: Path, probe: str) -> pd.DataFrame | None:
    """Pass rates of training prompts under an initial policy, a line a prompt: columns `pass_rate` and
    `initial_pass_rate`, which are the same.

    None if the policy, whose evaluation `evaluated` is (`Layout.initial`), was not sampled by the protocol `probe`.
    """
    seed, role, initial = evaluated.name, evaluated.parent.name, evaluated.parents[2]
    file = initial / probe / role / seed / "grades.parquet"
    if not probe or not file.exists():
        return None
    grades = read_parquet(file, ("benchmark", "problem", "outcome"), only=True)
    # By benchmark too: problems count from 0 in each.
    right = (grades["outcome"] == Outcome.CORRECT).groupby([grades["benchmark"], grades["problem"]]).mean()
    return right.rename("pass_rate").reset_index().assign(**{INITIAL_PASS_RATE: right.to_numpy()})


def quantities_of_bins(by: str, quantity: str) -> list[str]:
    """Quantities of prompts that a quantity over bins needs."""
    return [by] if quantity in (SHARE, by) else [by, quantity]


def in_bin(prompts: pd.DataFrame, quantity: str, by: str, edges: tuple[float, float], closed: bool = False) -> float:
    """Mean of a quantity over the visits in a bin, NaN without any, or of all visits the share in it (`share`).

    Visits without a value of `by`, which chooses the bin, count in no share; a closed bin has its upper edge.
    """
    low, high = edges
    known = prompts[prompts[by].notna()]
    inside = known[by].between(low, high, inclusive="both" if closed else "left")
    return float(inside.mean() if quantity == SHARE else known.loc[inside, quantity].mean())


def over_bins(runs: Runs, panel: Panel, cell: str, probe: str) -> list[tuple[float, dict[int, float]]]:
    """Share of prompts in each bin of a figure's panel, or mean of its quantity over them, by seed, at the lower edges.

    Nothing if no run has such prompts. `probe` is the protocol by which initial policies were sampled on training
    prompts, empty without one.
    """
    bins = list(pairwise(panel.bins))
    found: list[tuple[float, dict[int, float]]] = [(low, {}) for low, _ in bins]
    for run in runs.runs[runs.runs["cell"] == cell].itertuples():
        prompts = _prompts(panel, run, probe)
        if prompts is not None:
            for (_, values), edges in zip(found, bins, strict=True):
                closed = edges == bins[-1]
                values[int(run.seed)] = in_bin(prompts, panel.quantity, panel.by, edges, closed)  # type: ignore[call-overload]
    return found if found[0][1] else []


def _prompts(panel: Panel, run: Any, probe: str) -> pd.DataFrame | None:
    """The prompts of a run that a panel counts; None if it wants its initial policy's, and that was not probed."""
    if panel.epochs == "initial":
        return of_initial(Path(run.initial).parent, probe)
    prompts = of_prompts(Path(run.manifest).parent, quantities_of_bins(panel.by, panel.quantity))
    if panel.epochs != "all":
        epoch = prompts["epoch"].min() if panel.epochs == "first" else prompts["epoch"].max()
        prompts = prompts[prompts["epoch"] == epoch]
    return prompts


def read_rollouts(folder: Path, columns: list[str]) -> pd.DataFrame:
    """Columns of all rollouts of a run, a line each, with step, epoch and prompt; `length` in place of `tokens`.

    Raises:
        UserError: if the run has no rollouts, or a file lacks a column.
    """
    steps = []
    for step, file in rollout_files(folder).items():
        frame = read_parquet(file, ("epoch", "prompt", *columns), only=True)
        if "tokens" in columns:
            frame = frame.assign(length=frame["tokens"].map(len)).drop(columns="tokens")
        steps.append(frame.assign(step=step))
    return pd.concat(steps, ignore_index=True)


NONE = -1
"""Step of a response that was not reused."""


def prompt_log(run: Run, folder: Path) -> pd.DataFrame:
    """A line for each step in which a prompt was rolled out, in order.

    Columns: `uid` (prompt and visit), `step` from 0, `prompt`, `visit`, `n_generated`, `n_correct`, `reused` (whether a
    response from memory took part), `buffer_size` (correct responses in memory before the step) and `source_step` (at
    which the reused one was completed, -1 if none was). The folder is the run's.

    Raises:
        UserError: if the run has no rollouts.
    """
    columns = ["visit", "reward", "replayed_from", "prefix_length", "draft_length", "tokens"]
    rollouts = read_rollouts(folder, columns)
    correct = rollouts["reward"] > CORRECT
    # A draft that was kept to its end repeats a response that memory has.
    repeated = (rollouts["draft_length"] > 0) & (rollouts["prefix_length"] == rollouts["length"])
    rollouts = rollouts.assign(correct=correct, new=correct & ~repeated)
    of_visit = rollouts.groupby(["step", "prompt", "visit"])
    log = of_visit.agg(
        n_generated=("correct", "size"),
        n_correct=("correct", "sum"),
        n_new=("new", "sum"),
        source_step=("replayed_from", "max"),
    ).reset_index()
    earlier = log.groupby("prompt")["n_new"].cumsum() - log["n_new"]
    log["buffer_size"] = earlier.clip(upper=capacity(run))
    log["reused"] = log["source_step"] != NONE
    log["uid"] = log["prompt"].astype(str) + "-" + log["visit"].astype(str)
    return log[["uid", "step", "prompt", "visit", "n_generated", "n_correct", "reused", "buffer_size", "source_step"]]


def capacity(run: Run) -> int:
    """Correct responses that the run's method keeps of a prompt."""
    return run.reuse.capacity if isinstance(run.reuse, Staged) and run.reuse.replay != "none" else 0


PARTS = 8
"""Parts of the longest draft that get a line each."""


def by_position(rollouts: pd.DataFrame) -> pd.DataFrame:
    """What becomes of drafts along the response, a line a part.

    Args:
        rollouts: columns prefix_length and draft_length, in tokens, a line a rollout; 0 without a draft.

    Returns:
        columns first and last, the positions of the part, the response's first token being 1; drafts, the number of
        drafts that have its first token; reached, the share of these that is kept up to there; tokens, the number of
        draft tokens in the part that a decision fell on; kept, the share of them that is kept. A decision falls on each
        token that is kept and on the first one after them, if the draft goes on. Empty without drafts.
    """
    kept, length = rollouts["prefix_length"].to_numpy(), rollouts["draft_length"].to_numpy()
    # Drafts of fewer tokens than parts have equal edges, which would be parts without a token.
    edges = np.unique(np.linspace(0, max(length, default=0), PARTS + 1).round().astype(int))
    return pd.DataFrame([_part(kept, length, int(low), int(high)) for low, high in pairwise(edges)])


def _part(kept: np.ndarray, length: np.ndarray, low: int, high: int) -> dict[str, float]:
    there = length > low
    decided = np.where(kept < length, kept + 1, kept)
    tokens = int((decided.clip(low, high) - low).sum())
    return {
        "first": low + 1,
        "last": high,
        "drafts": int(there.sum()),
        "reached": float((kept[there] >= low).mean()),
        "tokens": tokens,
        "kept": float((kept.clip(low, high) - low).sum()) / tokens if tokens else float("nan"),
    }
