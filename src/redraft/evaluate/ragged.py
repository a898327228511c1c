"""Responses of different lengths as two arrays, so that measures of millions of tokens need no Python loop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

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
