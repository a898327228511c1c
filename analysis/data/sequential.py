"""Tests of a sequential campaign, to which blocks are added until its claims are decided (`redraft run-until`).

The campaign is judged at its looks, after declared numbers of blocks. Judged by plain t-tests at each of five looks, a
claim without an effect would be decided in 16 % of campaigns and not in 5 %. So the sequential p-value is the
probability, under no effect, that the smallest p-value of all looks is as small as the smallest so far: one level holds
at all looks (Pocock, Biometrika 64, 1977), and the result is valid at whichever look the campaign ends.
"""

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from scipy import stats

from redraft.errors import UserError
from redraft.result_files import Typed, read_with_hash, write_with_hash

Looks = tuple[int, ...]
"""Ascending numbers of blocks after which a sequential campaign is judged; empty for one that is judged once."""
MOST_BLOCKS = 1000
"""Largest number of blocks, of looks and of plans."""
SIMULATED = 400_000
"""Simulated campaigns without an effect. A level of 0.05 is met within 0.001, one of 0.001 within 0.0001."""


@cache
def least_p(looks: Looks) -> np.ndarray:
    """Smallest p-value of all looks in `SIMULATED` campaigns without an effect, ascending.

    No other number is needed: the t statistics of normal blocks depend neither on their mean nor on their spread.
    """
    rng, least = np.random.default_rng(0), np.ones(SIMULATED)
    sums, squares, done = np.zeros(SIMULATED), np.zeros(SIMULATED), 0
    for n in looks:
        # Sum and sum of squares of the blocks since the last look, by their distributions and not block by block.
        new = n - done
        part = math.sqrt(new) * rng.standard_normal(SIMULATED)
        sums += part
        squares += part**2 / new + (rng.chisquare(new - 1, SIMULATED) if new > 1 else 0.0)
        t = sums / np.sqrt(n * (squares - sums**2 / n) / (n - 1))
        least = np.minimum(least, 2 * stats.t.sf(np.abs(t), n - 1))
        done = n
    return np.sort(least)


def sequential_p(p: float, looks: Looks) -> float:
    """Probability that a campaign without an effect has a p-value of at most `p` at one of its looks."""
    if len(looks) < 2:
        return p
    # Where simulation has no resolution, the bound by the number of looks is the better one.
    simulated = (np.searchsorted(least_p(looks), p, side="right") + 1) / (SIMULATED + 1)
    return float(min(1.0, len(looks) * p, max(p, simulated)))


def nominal_level(level: float, looks: Looks) -> float:
    """Largest p-value of a look whose sequential p-value is at most `level`: the inverse of `sequential_p`."""
    if len(looks) < 2:
        return level
    rank = int(level * (SIMULATED + 1)) - 1
    simulated = least_p(looks)[rank - 1] if rank > 0 else 0.0
    return float(min(level, max(level / len(looks), simulated)))


class _Plan(Typed):
    looks: list[int]


_PLAN: TypeAdapter[Any] = TypeAdapter(_Plan)


def check_looks(looks: Iterable[int], file: Path | str, key: str = "looks") -> Looks:
    """These looks; a UserError unless they ascend."""
    found = tuple(looks)
    if not found or list(found) != sorted(set(found)) or not 2 <= found[0] <= found[-1] <= MOST_BLOCKS:
        raise UserError(
            "these are no looks",
            file=file,
            key=key,
            value=list(found),
            allowed=f"ascending numbers of blocks from 2 to {MOST_BLOCKS:,}",
        )
    return found


def planned(looks: Looks, seen: int) -> Looks:
    """The looks of a campaign whose claims were judged after `seen` blocks already, which then was its first look."""
    return ((seen,) if seen > 1 else ()) + tuple(n for n in looks if n > seen)


def read_looks(file: Path) -> Looks:
    """The looks of a sequential campaign; none if it has no plan."""
    return check_looks(read_with_hash(file, _PLAN)["looks"], file) if file.exists() else ()


def write_looks(file: Path, looks: Looks) -> None:
    """Declare the looks of a campaign, before its first one."""
    write_with_hash(file, {"looks": list(looks)})
