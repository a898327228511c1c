"""Exact reuse by Gumbel coupling (arXiv 2408.07978)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from redraft.config.capability import Capability
from redraft.methods.reuse import Candidate, DraftsOfLastVisit
from redraft.methods.strategy import Strategy

if TYPE_CHECKING:
    from redraft.methods.drafts.response import DraftVerifier, SamplingNumbers, Verification
    from redraft.rollout.context import RolloutContext
    from redraft.rollout.engine import Gumbel, Scores, Session
    from redraft.rollout.types import Rollout, Task


class CoupledReuse(DraftsOfLastVisit):
    """Exact reuse by Gumbel coupling: each visit samples with the same noise, which is not stored (arXiv
    2408.07978)."""

    order: ClassVar[int] = 90
    exact: ClassVar[bool] = True
    label: ClassVar[str] = "Gumbel"
    title: ClassVar[str] = "Gumbel coupling"
    kind: Literal["gumbel"] = "gumbel"

    def strategy(self) -> Strategy:
        """Reuse of drafts by common noise."""
        from redraft.methods.drafts.response import reuse_drafts

        verifier, numbers = coupled(self.fresh_every)
        return reuse_drafts(verifier, fresh_every=self.fresh_every, numbers=numbers)

    @property
    def needs(self) -> frozenset[Capability]:
        """Samples by noise that can be made again."""
        return frozenset({Capability.GUMBEL})

    @classmethod
    def sampled(cls, vocabulary: int) -> dict[str, Self]:
        """Its only setting."""
        return {"Gumbel": cls()}

    @classmethod
    def candidates(cls, top: int, leniences: Sequence[float]) -> list[Candidate]:
        """Tokens that both policies sample."""
        from redraft.methods.acceptance.rule import FromTheLeft

        kept = FromTheLeft().distribution_of_kept
        return [Candidate("Gumbel", "gumbel", True, True, lambda at: kept(at.whole.same))]


def coupled(fresh_every: int) -> tuple["DraftVerifier", "SamplingNumbers"]:
    """Verifier and random numbers: keep the tokens that the policy samples again with the draft's own noise.

    The noise of a sample is the same in all its visits until its turn without a draft. If it changed after a rejection
    and stayed after an acceptance, it would depend on the token, and responses would not have the policy's
    distribution.
    """
    from redraft.methods.acceptance.coupling import first_difference
    from redraft.methods.drafts.response import Verification
    from redraft.methods.drafts.verification import verify
    from redraft.rollout.engine import Gumbel

    def numbers(prompt: int, sample: int, limit: int, task: "Task", context: "RolloutContext") -> "Gumbel":
        # A new generation begins in just the visits without a draft (`reuse_drafts`).
        generation = (task.visit + sample) // fresh_every if fresh_every else 0
        return Gumbel(context.streams.key("noise", prompt, sample, generation))

    async def verifier(draft: "Rollout", session: "Session", task: "Task", context: "RolloutContext") -> "Verification":
        def judge(scores: "Scores", positions: slice) -> int:
            assert scores.sampled is not None
            return first_difference(draft.tokens[positions], scores.sampled)

        noise = numbers(draft.prompt, draft.sample, draft.length, task, context)
        kept, scores = await verify(draft.tokens, session, context, judge, noise=noise)
        # No residual: decoding with the same noise samples the token that differed.
        return Verification(kept, scores.log_probs[:kept], len(scores.log_probs))

    return verifier, numbers
