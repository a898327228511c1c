"""Exact reuse by block verification (arXiv 2403.10444)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from redraft.methods.reuse import Candidate, StoredTop

if TYPE_CHECKING:
    from redraft.methods.acceptance.block import BlockRule


class BlockReuse(StoredTop):
    """Exact reuse by block verification, which accepts tokens jointly (arXiv 2403.10444)."""

    order: ClassVar[int] = 70
    exact: ClassVar[bool] = True
    title: ClassVar[str] = "block verification"
    kind: Literal["block"] = "block"

    def rule(self) -> "BlockRule":
        """Block verification."""
        from redraft.methods.acceptance.block import BlockRule

        return BlockRule()

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """The whole distribution stored, and its top."""
        kept = cls().rule().distribution_of_kept
        return [
            Candidate("block", "block", True, True, lambda at: kept(at.whole.block)),
            Candidate(f"block, top {top}", "block", True, True, lambda at: kept(at.whole.block_top)),
        ]
