"""Exact reuse by block verification (arXiv 2403.10444)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from redraft.methods.reuse import AuditedRule, Candidate, StoredTop

if TYPE_CHECKING:
    from redraft.rollout.context import Strategy


class BlockReuse(StoredTop):
    """Exact reuse by block verification, which accepts tokens jointly (arXiv 2403.10444)."""

    order: ClassVar[int] = 70
    exact: ClassVar[bool] = True
    kind: Literal["block"] = "block"

    def strategy(self) -> "Strategy":
        """Reuse of drafts by block verification."""
        from redraft.methods.acceptance.block import BlockRule
        from redraft.methods.drafts.groups import reuse_drafts
        from redraft.methods.drafts.verification import stored_top_verifier

        return reuse_drafts(stored_top_verifier(BlockRule()), fresh_every=self.fresh_every)

    @classmethod
    def audited(cls) -> dict[str, AuditedRule]:
        """The whole distribution stored, and a part of it."""
        from redraft.methods.acceptance.block import BlockRule

        return {
            "block": AuditedRule(BlockRule()),
            "block, top 2": AuditedRule(BlockRule(), 2, parts=("rules",)),
            "block, top 2 of both": AuditedRule(BlockRule(), 2, both=True, parts=("rules",)),
        }

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """The whole distribution stored, and a part of it."""
        return {"block": cls(top=vocabulary), "block, top 2": cls(top=2)}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """The whole distribution stored, and its top."""
        from redraft.methods.acceptance.block import BlockRule

        kept = BlockRule().distribution_of_kept
        return [
            Candidate("block", "block", True, True, lambda at: kept(at.whole.block)),
            Candidate(f"block, top {top}", "block", True, True, lambda at: kept(at.whole.block_top)),
        ]
