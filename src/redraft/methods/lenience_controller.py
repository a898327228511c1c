"""A controller of the lenience: it holds a budget of drift from the policies that sampled a batch to the current one.

Log ℓ is an integral of the relative error. The error is bounded, so that one odd batch moves ℓ by one step at most, and
steps without drafts move nothing: their batch is of the current policy, whatever ℓ is.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from redraft.config.reuse import AdaptiveReuse
from redraft.rollout.types import Task


def lenient(tasks: Iterable[Task], lenience: float | None) -> list[Task]:
    """Tasks with a lenience of their own; as they are if it is None."""
    return [task if lenience is None else replace(task, lenience=lenience) for task in tasks]


def next_lenience(reuse: AdaptiveReuse, lenience: float, record: Mapping[str, Any]) -> float:
    """Lenience of the next step.

    Args:
        reuse: budget and bounds.
        lenience: of this step.
        record: of this step.

    Returns:
        The same if there was no draft or no update.
    """
    measured = record[reuse.measure]
    if measured is None or not record["tokens_verified"]:
        return lenience
    error = max(-1.0, min(1.0, 1.0 - measured / reuse.budget))
    moved = math.log(lenience) + reuse.gain * error
    return math.exp(max(math.log(reuse.lowest), min(math.log(reuse.highest), moved)))
