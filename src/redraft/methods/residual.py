"""Exact reuse token by token, with a residual distribution (arXiv 2211.17192, Appendix A.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, field_validator

from redraft.config.base import Lenience
from redraft.methods.reuse import AuditedRule, Candidate, StoredTop

if TYPE_CHECKING:
    from redraft.methods.acceptance.residual import ResidualRule


class ResidualReuse(StoredTop):
    """Exact reuse token by token, with the residual distribution after a rejection (arXiv 2211.17192, Appendix
    A.1)."""

    order: ClassVar[int] = 60
    exact: ClassVar[bool] = True
    title: ClassVar[str] = "residual rule"
    kind: Literal["residual"] = "residual"
    lenience: Lenience = Field(default=1.0, validate_default=True)
    """ℓ, at most 1: above it accepted tokens may have more mass than the policy's distribution, and no residual repairs
    that."""

    @field_validator("lenience")
    @classmethod
    def _has_residual(cls, lenience: float) -> float:
        if not 0 < lenience <= 1:
            raise ValueError("must be above 0 and at most 1: no residual exists for another lenience")
        return lenience

    def rule(self) -> "ResidualRule":
        """The residual rule."""
        from redraft.methods.acceptance.residual import ResidualRule

        return ResidualRule(self.lenience)

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """Half a lenience too."""
        top = AuditedRule(cls().rule(), 2, parts=("rules", "drift"))
        half = AuditedRule(cls(lenience=0.5).rule(), 2, parts=("rules",))
        return super().audited() | {"residual, top 2": top, "residual, top 2, l = 1/2": half}

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """Fresh samples by turns too."""
        return super().sampled(vocabulary) | {"residual, every 2nd pass fresh": cls(top=vocabulary, fresh_every=2)}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """The whole distribution stored, and its top."""
        from redraft.methods.acceptance.positions import kept_by

        rule = cls().rule()
        return [
            Candidate("residual", "residual", True, False, kept_by(rule)),
            Candidate(
                f"residual, top {top}",
                "residual",
                True,
                True,
                lambda at: rule.distribution_of_kept(rule.acceptance(at.of_top)),
            ),
        ]
