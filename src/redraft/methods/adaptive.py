"""SPEC-RL with a lenience that holds a budget of drift from the policies that sampled a batch to the current one.

Log ℓ is an integral of the relative error. The error is bounded, so that one odd batch moves ℓ by one step at most, and
steps without drafts move nothing: their batch is of the current policy, whatever ℓ is.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from redraft.config.base import Lenience, parse_lenience
from redraft.methods.reuse import DraftsOfLastVisit
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    from redraft.rollout.types import Task


class AdaptiveReuse(DraftsOfLastVisit):
    """SPEC-RL with a lenience that a controller moves, so that the batch stays within a budget of drift. Ours.

    After each update that follows on drafts, log ℓ moves by `gain` times 1 - measured / budget, at most by `gain`.
    """

    order: ClassVar[int] = 20
    title: ClassVar[str] = "adaptive lenience"
    kind: Literal["adaptive"] = "adaptive"
    budget: float = Field(gt=0)
    """Value of `measure` that is held."""
    measure: Literal["drift", "clip_fraction"] = "drift"
    """Field of the step's record: `drift`, nats a token between the policies that sampled the batch and the current
    one, or the share of clipped tokens."""
    initial: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ at first; the paper has e^0.5 for GRPO."""
    gain: float = Field(default=0.25, gt=0)
    """Largest change of log ℓ in an update."""
    lowest: Lenience = Field(default=parse_lenience("e^-1"), validate_default=True)
    """Least ℓ, above 0."""
    highest: Lenience = Field(default=parse_lenience("e^2"), validate_default=True)
    """Largest ℓ, finite."""

    @model_validator(mode="after")
    def _ordered(self) -> "AdaptiveReuse":
        if not 0 < self.lowest <= self.initial <= self.highest < math.inf:
            raise ValueError("0 < lowest <= initial <= highest < inf must hold of its leniences")
        return self

    def strategy(self) -> Strategy:
        """SPEC-RL's with the initial lenience, which the task's replaces."""
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import spec_rl_verifier

        return reuse_drafts(spec_rl_verifier(self.initial), fresh_every=self.fresh_every)

    @classmethod
    def examples(cls) -> list[Self]:
        """Any budget."""
        return [cls(budget=0.01)]

    def next_lenience(self, lenience: float, record: Mapping[str, Any]) -> float:
        """Lenience of the next step.

        Args:
            lenience: of this step.
            record: of this step.

        Returns:
            The same if there was no draft or no update.
        """
        measured = record[self.measure]
        if measured is None or not record["tokens_verified"]:
            return lenience
        error = max(-1.0, min(1.0, 1.0 - measured / self.budget))
        moved = math.log(lenience) + self.gain * error
        # Bounded in every step, so that the integral does not grow while the lenience is at a bound.
        return math.exp(max(math.log(self.lowest), min(math.log(self.highest), moved)))


def with_lenience(tasks: Iterable["Task"], lenience: float | None) -> list["Task"]:
    """Tasks with this lenience; as they are if it is None."""
    return [task if lenience is None else replace(task, lenience=lenience) for task in tasks]
