"""Exact reuse of drafts whose distribution is not known."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from redraft.config.capability import Capability
from redraft.methods.reuse import AuditedRule, Candidate, DraftsOfLastVisit
from redraft.methods.strategy import Strategy


class OneHotReuse(DraftsOfLastVisit):
    """Exact reuse that supposes nothing about a draft's distribution: a token is accepted with the policy's
    probability."""

    order: ClassVar[int] = 100
    exact: ClassVar[bool] = True
    label: ClassVar[str] = "one-hot"
    title: ClassVar[str] = "one-hot rule"
    kind: Literal["one_hot"] = "one_hot"

    def strategy(self) -> Strategy:
        """Reuse of drafts that are taken to be certain."""
        from redraft.methods.acceptance.residual import ResidualRule
        from redraft.methods.drafts.response import reuse_drafts
        from redraft.methods.drafts.verification import one_hot_verifier

        return reuse_drafts(one_hot_verifier(ResidualRule()), fresh_every=self.fresh_every)

    @property
    def needs(self) -> frozenset[Capability]:
        """Residuals."""
        return frozenset({Capability.RESIDUAL})

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The residual rule of a certain draft."""
        from redraft.methods.acceptance.residual import ResidualRule

        return {"one-hot": AuditedRule(ResidualRule(), 0)}

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """Its only setting."""
        return {"one-hot": cls()}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """Tokens by the policy's probability."""
        from redraft.methods.acceptance.residual import ResidualRule
        from redraft.methods.acceptance.rule import Distributions

        rule = ResidualRule()
        return [
            Candidate(
                "one-hot",
                "one_hot",
                True,
                False,
                lambda at: rule.distribution_of_kept(rule.acceptance(Distributions.one_hot(at.tokens, at.log_p_T))),
            ),
        ]
