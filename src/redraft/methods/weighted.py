"""SPEC-RL's rule with importance weights."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, field_validator

from redraft.config.base import Lenience, parse_lenience
from redraft.config.capability import Capability
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.reuse import AuditedRule, Importance, StoredTop
from redraft.methods.schedule import ScheduleMethod
from redraft.methods.speed import Speed

if TYPE_CHECKING:
    from redraft.methods.acceptance.weighted import WeightedRule


class WeightedReuse(StoredTop):
    """SPEC-RL's rule by the stored distribution, with importance weights that undo its bias. Ours."""

    order: ClassVar[int] = 80
    title: ClassVar[str] = "importance-weighted reuse"
    kind: Literal["weighted"] = "weighted"
    lenience: Lenience = Field(default=parse_lenience("e^0.5"), validate_default=True)
    """ℓ, above 0 and finite."""
    weights: Importance = Importance()
    """Use of the weights in the update."""

    @field_validator("lenience")
    @classmethod
    def _has_weights(cls, lenience: float) -> float:
        if not 0 < lenience < math.inf:
            raise ValueError("must be above 0 and finite: no weights undo another lenience")
        return lenience

    def rule(self) -> "WeightedRule":
        """SPEC-RL's rule with weights."""
        from redraft.methods.acceptance.weighted import WeightedRule

        return WeightedRule(self.lenience)

    def check(self, schedule: ScheduleMethod, trainer: TrainerConfig) -> None:
        """Reject SPEED, whose updates have responses that an earlier policy sampled.

        Raises:
            UserError: for SPEED.
        """
        super().check(schedule, trainer)
        if isinstance(schedule, Speed):
            # A stored weight is relative to the policy that sampled the response, and the trainers differ in the ratio
            # that they would multiply it by.
            raise UserError(
                "weights correct responses of the current policy only, and this schedule updates from earlier ones too",
                key="reuse.kind",
                value=self.kind,
                hint="take another, or another schedule",
            )

    @property
    def needs(self) -> frozenset[Capability]:
        """Top distributions."""
        return frozenset({Capability.TOP_LOG_PROBS})

    @property
    def importance(self) -> Importance:
        """The configured weights."""
        return self.weights

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The paper's lenience, with the whole distribution stored and with a part of it."""
        audited = super().audited().items()
        return {f"{name}, l = e^0.5": replace(rule, parts=("rules",)) for name, rule in audited}

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """As of the rules, whose names it has there."""
        return {f"{name}, l = e^0.5": method for name, method in super().sampled(vocabulary).items()}
