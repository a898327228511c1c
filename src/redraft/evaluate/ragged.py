"""The responses of a step as two arrays, so that what is measured of millions of tokens needs no loop over them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Tokens = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, one after the other.

    Attributes:
        values: int32, (of all rows,).
        lengths: int64, (rows,).
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Tokens]) -> "Ragged":
        """From one sequence of tokens a row."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, dtype=np.int32), *arrays]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ends(self) -> np.ndarray:
        """Where in `values` each row ends, int64, (rows,)."""
        return np.cumsum(self.lengths)

    def rows(self) -> list[np.ndarray]:
        """Views on the rows."""
        return np.split(self.values, self.ends[:-1]) if len(self) else []
