"""SPEC-RL's rule with importance weights."""

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from redraft.config.base import Lenience, parse_lenience
from redraft.config.capability import Capability
from redraft.methods.reuse import AuditedRule, Importance, StoredTop

if TYPE_CHECKING:
    from redraft.rollout.context import Strategy


class WeightedReuse(StoredTop):
    """SPEC-RL's rule by the stored law, with importance weights that undo its bias. Ours."""

    order: ClassVar[int] = 80
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

    def strategy(self) -> "Strategy":
        """Reuse of drafts with weights."""
        from redraft.methods.acceptance.weighted import WeightedRule
        from redraft.methods.drafts.groups import reuse_drafts
        from redraft.methods.drafts.verification import stored_top_verifier

        return reuse_drafts(stored_top_verifier(WeightedRule(self.lenience)), fresh_every=self.fresh_every)

    @property
    def needs(self) -> frozenset[Capability]:
        """Top distributions."""
        return frozenset({Capability.TOP_LAW})

    @property
    def importance(self) -> Importance:
        """The configured weights."""
        return self.weights

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The paper's lenience, with the whole distribution stored and with a part of it."""
        from redraft.methods.acceptance.weighted import WeightedRule

        rule = WeightedRule(math.exp(0.5))
        return {
            "weighted, l = e^0.5": AuditedRule(rule, parts=("rules",)),
            "weighted, top 2, l = e^0.5": AuditedRule(rule, 2, parts=("rules",)),
            "weighted, top 2 of both, l = e^0.5": AuditedRule(rule, 2, both=True, parts=("rules",)),
        }
