"""A run's saved rollouts (written by `redraft.train.records`): the rollouts of a step.

Responses of different lengths are kept in two flat arrays, so that metrics of millions of tokens need no Python loop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from redraft.errors import UserError
from redraft.files import read_parquet

COLUMNS = ("epoch", "prompt", "sample", "tokens", "sampled_at")

Tokens = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, stored one after the other.

    Attributes:
        values: tokens of all rows, int32, (sum of lengths,).
        lengths: number of tokens of each row, int64, (rows,).
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Tokens]) -> "Ragged":
        """Build from one sequence of tokens per row."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        # NumPy cannot concatenate no arrays, hence the empty one.
        return cls(np.concatenate([np.zeros(0, dtype=np.int32), *arrays]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ends(self) -> np.ndarray:
        """End of each row in `values`, exclusive, int64, (rows,)."""
        return np.cumsum(self.lengths)

    def rows(self) -> list[np.ndarray]:
        """The rows, as views on `values`."""
        return np.split(self.values, self.ends[:-1]) if len(self) else []


@dataclass(frozen=True, eq=False)
class StepRollouts:
    """The rollouts of one step, in the order of prompt and sample.

    Attributes:
        ages: steps since each token was sampled, int32, (tokens of all rollouts,).
    """

    step: int
    epoch: int
    prompts: list[int]
    samples: list[int]
    responses: Ragged
    ages: np.ndarray


def read_step(step: int, file: Path) -> StepRollouts:
    """Read a step's saved rollouts, sorted, so that no metric depends on the order in the file.

    Raises:
        UserError: if the file is missing, damaged or empty, or if `sampled_at` does not fit the tokens or the step.
    """
    frame = read_parquet(file, COLUMNS)
    if frame.empty:
        raise UserError("there are no rollouts in this file", file=file)
    # Stable, since of several responses with equal keys the last one counts (`PreviousEpoch`).
    frame = frame.sort_values(["prompt", "sample"], kind="stable")
    responses, sampled_at = Ragged.of(frame["tokens"]), Ragged.of(frame["sampled_at"])
    if not np.array_equal(responses.lengths, sampled_at.lengths):
        raise UserError("a rollout has different numbers of tokens and of sampling steps", file=file, key="sampled_at")
    ages = step - sampled_at.values
    if ages.min(initial=0) < 0:
        raise UserError(
            "a token has a later sampling step than its rollout",
            file=file,
            key="sampled_at",
            value=int(sampled_at.values.max()),
            allowed=f"at most {step}",
        )
    prompts, samples = frame["prompt"].tolist(), frame["sample"].tolist()
    return StepRollouts(step, int(frame["epoch"].iloc[0]), prompts, samples, responses, ages)
