"""Work of a rollout, forward pass by forward pass, and its seconds by a roofline.

The rows of a batch run in step: pass j of a rollout is pass j of all its responses that have not ended. Pass 0 reads
the prompt, and a draft with it. A pass takes the larger of its memory time and its compute time, plus a residual time
for each row (EfficientRollout, arXiv 2606.18967, equation 2; `redraft.selfspec.roofline`).

Shapes: P prompts, N random variants, C columns (`Column`), J passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np

from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import MICROSECOND


class Column(IntEnum):
    """Counts of a pass, summed over rows."""

    PLAIN = 0
    """Rows that compute one token, or read a prompt."""
    DRAFTED = 1
    """Rows that verify proposals or a draft."""
    CACHED = 2
    """Positions before the pass, whose keys and values are read."""
    FED = 3
    """Tokens that are computed."""
    ATTENDED = 4
    """Positions that these tokens attend to."""


@dataclass(frozen=True, eq=False)
class RowWork:
    """Passes of one response; its first pass reads prompt and draft.

    Attributes:
        cached: float64 (J,), positions before each pass.
        fed: float64 (J,), tokens of each pass.
        drafted: bool (J,), whether the pass verifies proposals or a draft.
        lookups: contexts that were looked up for proposals.
    """

    cached: np.ndarray
    fed: np.ndarray
    drafted: np.ndarray
    lookups: int = 0

    @classmethod
    def of_prefix(cls, prompt: int, draft: int, kept: int, rest: int) -> Self:
        """A response that keeps `kept` tokens of a draft and decodes `rest` tokens; without a draft, all are decoded.

        The first pass also yields the first of these tokens.
        """
        steps = np.arange(max(rest - 1, 0), dtype=float)
        cached = np.concatenate([[0.0], prompt + kept + steps])
        fed = np.concatenate([[float(prompt + draft)], np.ones(len(steps))])
        drafted = np.zeros(len(fed), bool)
        drafted[0] = draft > 0
        return cls(cached, fed, drafted)


@dataclass(frozen=True, eq=False)
class Work:
    """Work of a method for each prompt.

    Attributes:
        passes: float64 (P, N, C, J), summed over the responses of a prompt; 0 after the last pass.
        lookups: float64 (P, N), contexts that were looked up.
    """

    passes: np.ndarray
    lookups: np.ndarray

    @classmethod
    def of_groups(cls, groups: Sequence[Sequence[Sequence[RowWork]]]) -> Self:
        """From rows by prompt, variant and response; all prompts have as many variants."""
        longest = max(len(row.fed) for variants in groups for rows in variants for row in rows)
        passes = np.zeros((len(groups), len(groups[0]), len(Column), longest))
        for of_prompt, variants in zip(passes, groups, strict=True):
            for into, rows in zip(of_prompt, variants, strict=True):
                for row in rows:
                    here = slice(len(row.fed))
                    into[Column.PLAIN, here] += ~row.drafted
                    into[Column.DRAFTED, here] += row.drafted
                    into[Column.CACHED, here] += row.cached
                    into[Column.FED, here] += row.fed
                    # Token i of a pass also attends to the i tokens of the pass before it.
                    into[Column.ATTENDED, here] += row.fed * row.cached + row.fed * (row.fed - 1) / 2
        lookups = np.array([[sum(row.lookups for row in rows) for rows in variants] for variants in groups], float)
        return cls(passes, lookups)

    def batch(self, prompts: np.ndarray, variants: np.ndarray) -> tuple[np.ndarray, float]:
        """Passes (C, J) and lookups of one rollout of these prompts; one may occur more than once.

        Args:
            prompts: integer (n,).
            variants: integer (n,), 0 or more; those of a method with fewer variants repeat.
        """
        index = prompts, variants % self.passes.shape[1]
        return self.passes[index].sum(0), float(self.lookups[index].sum())


@dataclass(frozen=True)
class Device:
    """What turns work into seconds.

    Attributes:
        calibration: roofline of the model on the device.
        lookup_seconds: host's time for one proposal of a drafter without a model; rows wait for each other.
    """

    calibration: Calibration
    lookup_seconds: float

    def seconds(self, passes: np.ndarray, lookups: float = 0.0) -> float:
        """Seconds of a rollout with these passes, float64 (C, J)."""
        of, costs = self.calibration, self.calibration.costs
        rows = passes[Column.PLAIN] + passes[Column.DRAFTED]
        # Weights are read once for the batch, and not at all once every row has ended.
        reading = (of.costs.target_bytes * (rows > 0) + of.kv_bytes * passes[Column.CACHED]) / of.bandwidth
        computing = (
            costs.dense_flops * passes[Column.FED] + costs.attention_flops * passes[Column.ATTENDED]
        ) / of.flops
        overhead = of.target_overhead * passes[Column.PLAIN] + of.verify_overhead * passes[Column.DRAFTED]
        return float((np.maximum(reading, computing) + MICROSECOND * overhead).sum()) + self.lookup_seconds * lookups
