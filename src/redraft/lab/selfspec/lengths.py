"""Lengths of responses for a simulation: a list from a file, or a distribution by its quantiles."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from redraft.errors import UserError

WANTED = "shares in percent from 0 to 100 and lengths in tokens, both rising, such as 0:100,50:600,99:2500,100:8192"


@dataclass(frozen=True)
class Quantiles:
    """A distribution of lengths, log-linear between its quantiles.

    Attributes:
        shares: shares of the responses that are at most so long, from 0 to 1, rising.
        tokens: those lengths, rising.

    Raises:
        ValueError: if they do not rise so.
    """

    shares: tuple[float, ...]
    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        paired = len(self.shares) == len(self.tokens) >= 2 and (self.shares[0], self.shares[-1]) == (0, 1)
        rising = all(a < b for a, b in pairwise(self.shares)) and all(a <= b for a, b in pairwise(self.tokens))
        if not (paired and rising and self.tokens[0] >= 1 and np.isfinite(self.tokens[-1])):
            raise ValueError(f"shares must rise from 0 to 1 and lengths from 1 token, got {self}")

    def lengths(self, count: int) -> np.ndarray:
        """So many lengths at evenly spaced shares, both ends included; whole float64 (count,), rising.

        Raises:
            ValueError: for fewer than 2.
        """
        if count < 2:
            raise ValueError(f"both ends need 2 lengths, got {count}")
        return np.round(np.exp(np.interp(np.linspace(0, 1, count), self.shares, np.log(self.tokens))))


def parse_quantiles(text: str) -> Quantiles:
    """A distribution from text such as `0:100,50:600,99:2500,100:8192`.

    Raises:
        UserError: if it is none.
    """
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        return Quantiles(tuple(share / 100 for share, _ in pairs), tuple(tokens for _, tokens in pairs))
    except ValueError:
        raise UserError("this is no distribution of lengths", key="--lengths", value=text, allowed=WANTED) from None


def read_lengths(file: Path) -> np.ndarray:
    """Lengths from a file with one whole number a line; float64 (n,).

    Raises:
        UserError: if it is missing or empty, or a line is no length.
    """
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        raise UserError("this is no file of lengths", file=file,
                        allowed=f"a whole number a line; or {WANTED}") from None  # fmt: skip
    for number, line in enumerate(lines, start=1):
        if not line.isdecimal() or int(line) < 1:
            raise UserError("this line is no length", file=file, key=f"line {number}", value=line, allowed="1 or more")
    if not lines:
        raise UserError("this file has no lengths", file=file, allowed="a whole number a line")
    return np.array(lines, dtype=float)
