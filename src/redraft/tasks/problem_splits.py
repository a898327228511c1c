"""Draws of distinct problems of one split, for the tasks whose problems are made here."""

import hashlib
from collections.abc import Callable, Hashable
from typing import TypeVar

from redraft.errors import UserError

Problem = TypeVar("Problem", bound=Hashable)

MAX_MISSED_SAMPLES = 20_000
"""Draws in a row without a new problem after which there are taken to be no more."""


def distinct(draw: Callable[[], Problem], content: Callable[[Problem], str], split: str, size: int) -> list[Problem]:
    """The first `size` different problems of a split, in the order of their draw.

    Args:
        draw: draws a problem, of either split.
        content: the part of a problem that no problem of the other split shares.
        split: `train` or `held-out`.

    Raises:
        UserError: if there are fewer, as far as `MAX_MISSED_SAMPLES` draws in a row can tell.
    """
    drawn: dict[Problem, None] = {}
    missed = 0
    while len(drawn) < size:
        problem = draw()
        if split_of(content(problem)) == split and problem not in drawn:
            drawn[problem], missed = None, 0
        elif (missed := missed + 1) == MAX_MISSED_SAMPLES:
            raise UserError(
                "the split has fewer different problems of this kind",
                key="data.size",
                value=size,
                allowed=f"at most {len(drawn)}",
            )
    return list(drawn)


def split_of(content: str) -> str:
    """The split of a content, `train` or `held-out`, by a hash, so that no content is in both."""
    return ("train", "held-out")[hashlib.blake2b(content.encode(), digest_size=1).digest()[0] % 2]
