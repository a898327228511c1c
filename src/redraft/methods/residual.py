"""Exact reuse token by token, with a residual distribution (arXiv 2211.17192, Appendix A.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, field_validator

from redraft.config.base import Lenience
from redraft.methods.reuse import AuditedRule, Candidate, StoredTop

if TYPE_CHECKING:
    from redraft.rollout.context import Strategy


class ResidualReuse(StoredTop):
    """Exact reuse token by token, with the residual law behind a rejection (arXiv 2211.17192, Appendix A.1)."""

    order: ClassVar[int] = 60
    exact: ClassVar[bool] = True
    kind: Literal["residual"] = "residual"
    lenience: Lenience = Field(default=1.0, validate_default=True)
    """ℓ, at most 1: above it accepted tokens may have more mass than the policy's law, and no residual repairs that."""

    @field_validator("lenience")
    @classmethod
    def _has_residual(cls, lenience: float) -> float:
        if not 0 < lenience <= 1:
            raise ValueError("must be above 0 and at most 1: no residual exists for another lenience")
        return lenience

    def strategy(self) -> "Strategy":
        """Reuse of drafts by the residual rule."""
        from redraft.methods.acceptance.residual import ResidualRule
        from redraft.methods.drafts.groups import reuse_drafts
        from redraft.methods.drafts.verification import stored_top_verifier

        return reuse_drafts(stored_top_verifier(ResidualRule(self.lenience)), fresh_every=self.fresh_every)

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The whole distribution stored and a part of it, and half a lenience."""
        from redraft.methods.acceptance.residual import ResidualRule

        return {
            "residual": AuditedRule(ResidualRule()),
            "residual, top 2": AuditedRule(ResidualRule(), 2, parts=("rules", "drift")),
            "residual, top 2 of both": AuditedRule(ResidualRule(), 2, both=True, parts=("rules",)),
            "residual, top 2, l = 1/2": AuditedRule(ResidualRule(0.5), 2, parts=("rules",)),
        }

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """The whole distribution stored and a part of it, and fresh samples by turns."""
        return {
            "residual": cls(top=vocabulary),
            "residual, top 2": cls(top=2),
            "residual, every 2nd visit fresh": cls(top=vocabulary, fresh_every=2),
        }

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """The whole distribution stored, and its top."""
        from redraft.methods.acceptance.residual import ResidualRule

        rule = ResidualRule()
        return [
            Candidate("residual", "residual", True, False,
                      lambda at: rule.distribution_of_kept(rule.acceptance(at.drafts))),
            Candidate(f"residual, top {top}", "residual", True, True,
                      lambda at: rule.distribution_of_kept(rule.acceptance(at.of_top))),
        ]  # fmt: skip
