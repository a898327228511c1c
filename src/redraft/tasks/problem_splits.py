"""Sampling of distinct problems of one split, for tasks with generated problems."""

import hashlib
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from redraft.errors import UserError

Problem = TypeVar("Problem", bound=Hashable)

MAX_MISSED_SAMPLES = 20_000
"""Consecutive samples without a new problem, after which a split counts as exhausted by default."""


def distinct(
    sample: Callable[[], Problem],
    content: Callable[[Problem], str],
    split: str,
    size: int,
    most_missed: int = MAX_MISSED_SAMPLES,
    without: Collection[Problem] = (),
) -> list[Problem]:
    """The first `size` different problems of a split, in the order in which they are sampled.

    Args:
        sample: samples a problem, of either split.
        content: part of a problem that decides its split; no problem of the other split shares it.
        split: `train` or `held-out`.
        most_missed: number of consecutive samples without a new problem after which the split counts as exhausted.
        without: problems that are left out.

    Raises:
        UserError: if `most_missed` consecutive samples give no new problem.
    """
    chosen: dict[Problem, None] = {}
    missed = 0
    while len(chosen) < size:
        problem = sample()
        if split_of(content(problem)) == split and problem not in chosen and problem not in without:
            chosen[problem], missed = None, 0
        # Without a bound the loop would not end once all problems of the split are chosen.
        elif (missed := missed + 1) == most_missed:
            raise UserError(
                "the split has fewer different problems of this kind",
                key="data.size",
                value=size,
                allowed=f"at most {len(chosen)}",
            )
    return list(chosen)


def split_of(content: str) -> str:
    """The split of a content, `train` or `held-out`, by its hash, so that no content is in both."""
    return ("train", "held-out")[hashlib.blake2b(content.encode(), digest_size=1).digest()[0] % 2]
