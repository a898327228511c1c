"""After a look of a sequential campaign: the claims that go on, and the runs of the next look."""

from collections.abc import Iterable, Mapping
from typing import Any

from redraft.analysis.claims.verdicts import INCONCLUSIVE

Judged = Mapping[str, Any]
"""A claim with its verdict, as `redraft.analysis.claims.verdicts.judge` returns it."""


def next_look(claim: Judged) -> int | None:
    """Number of blocks after which a claim is judged again; None if it is decided or no further look would decide it.

    Args:
        claim: a claim with its verdict.
    """
    if claim["verdict"] != INCONCLUSIVE or claim.get("why") != "seeds":
        return None
    found: int | None = claim["parts"][claim["deciding"]]["power"].get("next_look")
    return found


def next_blocks(claims: Iterable[Judged]) -> dict[str, int]:
    """Number of blocks that each cell needs for the next look of the claims which compare it."""
    found: dict[str, int] = {}
    for claim in claims:
        if look := next_look(claim):
            for cell in claim["manifests"]:
                found[cell] = max(look, found.get(cell, 0))
    return found
