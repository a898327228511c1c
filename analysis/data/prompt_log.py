"""The log of every visit of a prompt: responses made, correct ones, and what memory gave (AR3PO, arXiv 2509.25808)."""

from pathlib import Path

import pandas as pd

from redraft.analysis.data.rollouts import read_rollouts
from redraft.config import Run, Staged
from redraft.rollout.types import CORRECT

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
