"""Verification of drafts by acceptance rules, chunk by chunk: nothing after the chunk with the rejection is computed.

A response of an exact rule has the distribution of the policy that verified it, whichever policy sampled its tokens. So
the log-probabilities and top distributions stored with it are that policy's, also for the tokens that were kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from redraft.config.capability import Capability
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.drafts.response import DraftVerifier, Verification
from redraft.rollout.context import RolloutContext
from redraft.rollout.engine import Gumbel, Scores, Session
from redraft.rollout.types import Rollout, Task, TopLogProbs


class Judge(Protocol):
    """A function that decides how much of a chunk is kept; it is called only if all tokens before the chunk are."""

    def __call__(self, scores: Scores, positions: slice) -> int:
        """Number of leading tokens to keep of the draft's tokens at `positions`, which have these scores."""
        ...


async def verify(
    draft: np.ndarray,
    session: Session,
    context: RolloutContext,
    judge: Judge,
    *,
    whole: bool = False,
    at: np.ndarray | None = None,
    top: int = 0,
    noise: Gumbel | None = None,
) -> tuple[int, Scores]:
    """Score and judge a draft up to the chunk that has a rejection; other arguments are those of `Session.score`.

    Args:
        draft: int32 (n,), at least one token.
        judge: gets each chunk once, in order.
        whole: judge the whole draft at once, for a rule that does not stop early.

    Returns:
        number of leading tokens to keep, and the scores of all tokens that were scored.
    """
    kept, chunks, scored = 0, [], 0
    while kept == scored < len(draft):  # every token so far was kept, and some are left
        # None scores the whole draft, 0 its first chunk.
        scores = await session.score(draft, at, top, noise, None if whole else scored)
        positions = slice(scored, scored + len(scores.log_probs))
        with context.meter.assembling():
            kept += judge(scores, positions)
        chunks.append(scores)
        scored = positions.stop
    return kept, chunks[0] if len(chunks) == 1 else _joined(chunks)


def _joined(parts: Sequence[Scores]) -> Scores:
    """Scores of successive chunks as one."""
    tops = [part.top for part in parts if part.top]
    columns = (
        [getattr(part, name) for part in parts if getattr(part, name) is not None]
        for name in ("log_probs", "others", "sampled")
    )
    log_probs, others, sampled = (np.concatenate(column) if column else None for column in columns)
    top = (
        TopLogProbs(*(np.concatenate([getattr(t, f.name) for t in tops]) for f in fields(TopLogProbs)))
        if tops
        else None
    )
    assert log_probs is not None
    return Scores(log_probs, others, top, sampled)


def spec_rl_verifier(lenience: float, fixed_uniforms: bool = False, refreshed_log_probs: bool = False) -> DraftVerifier:
    """SPEC-RL's verification (arXiv 2509.23232, Algorithm 1).

    Args:
        lenience: ℓ of equation (3); a task's own lenience overrides it.
        fixed_uniforms: use the same acceptance uniforms at every step.
        refreshed_log_probs: store the current policy's log-probability with a kept token, instead of that of the policy
            which sampled it.
    """

    configured = SpecRLRule(lenience)

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        rule = configured if task.lenience is None else SpecRLRule(task.lenience)
        uniforms = context.streams.fixed_uniforms if fixed_uniforms else context.streams.uniforms
        with context.meter.assembling():
            # Numbers of the whole draft, so that a position has the same one whatever the chunks are.
            u = uniforms("acceptance", draft.prompt, draft.sample, draft.length)

        def judge(scores: Scores, positions: slice) -> int:
            # q of a token is that of the policy that sampled it, however often it was reused since
            # (docs/decisions/spec-rl-verification.md), unless `refreshed_log_probs` has replaced it.
            drafts = Distributions.of_tokens(draft.tokens[positions], scores.log_probs, draft.log_probs[positions])
            return rule.kept(rule.accepts(drafts, u[positions]))

        # Scores by the training engine, as in the release (`ReleaseVariant.trainer_verification`).
        by_trainer = context.scores.get((draft.prompt, draft.sample))
        if by_trainer is None:
            prefix, scores = await verify(draft.tokens, session, context, judge)
        else:
            scores = Scores(by_trainer)
            with context.meter.assembling():
                prefix = judge(scores, slice(0, draft.length))
        new = scores.log_probs
        return Verification(prefix, (new if refreshed_log_probs else draft.log_probs)[:prefix], verified=len(new))

    return verifier


def one_hot_verifier(rule: Rule) -> DraftVerifier:
    """Verification by a rule that treats the draft's distribution as one-hot."""

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        def drafts_of(scores: Scores, positions: slice) -> Distributions:
            return Distributions.one_hot(draft.tokens[positions], scores.log_probs)

        return (await _judged(rule, drafts_of, draft, session, context))[0]

    return verifier


def stored_top_verifier(rule: Rule) -> DraftVerifier:
    """Verification by a rule that uses the stored top-k log-probs of the distribution the draft was sampled from.

    A rule with importance weights attaches them to the response.
    """

    async def verifier(draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        kept, drafts = await _judged_by_top(rule, draft, session, context)
        if not isinstance(rule, WeightedRule):
            return kept
        # A draft that was itself sampled without one has weights of 1.
        before = np.zeros(draft.length) if draft.log_weights is None else draft.log_weights
        return replace(kept, weights=rule.weights(drafts, kept.prefix, before))

    return verifier


async def _judged_by_top(
    rule: Rule, draft: Rollout, session: Session, context: RolloutContext
) -> tuple[Verification, Distributions]:
    """Verification by the stored distributions and the current policy's, and both distributions.

    If the engine reports only the policy's own top k, S is the intersection of both tops. Like either of them it
    depends on the tokens before a position alone, so responses still have the policy's distribution.
    """
    if draft.top is None:
        raise ValueError(f"the draft of prompt {draft.prompt}, sample {draft.sample}, has no stored distribution")
    stored = draft.top

    def drafts_of(scores: Scores, positions: slice) -> Distributions:
        tokens, support = draft.tokens[positions], stored.tokens[positions]
        own, others = scores.log_probs, scores.others
        if others is None:
            assert scores.top is not None
            # -inf outside of the policy's top, which takes a token out of S (`Distributions`).
            own, others = scores.top.of(tokens[:, None])[:, 0], scores.top.of(support)
        return Distributions(tokens, own, draft.log_probs[positions], support, others, stored.log_probs[positions])

    at = stored.tokens if Capability.OTHER_SCORES in context.engine.capabilities else None
    return await _judged(rule, drafts_of, draft, session, context, at=at, top=context.memory.retention.top)


async def _judged(
    rule: Rule,
    drafts_of: Callable[[Scores, slice], Distributions],
    draft: Rollout,
    session: Session,
    context: RolloutContext,
    **wanted: Any,
) -> tuple[Verification, Distributions]:
    """Verification by a rule, and the distributions at the scored positions; `wanted` as of `verify`."""
    parts: list[Distributions] = []
    with context.meter.assembling():
        u = context.streams.uniforms("acceptance", draft.prompt, draft.sample, draft.length)

    def judge(scores: Scores, positions: slice) -> int:
        parts.append(drafts_of(scores, positions))
        return rule.kept(rule.accepts(parts[-1], u[positions]))

    count, scores = await verify(draft.tokens, session, context, judge, whole=not rule.stops_early, **wanted)
    with context.meter.assembling():
        drafts = Distributions.joined(parts)
        # Scores end before the draft only after a rejection, so all scored tokens are kept only if the whole draft is.
        first = rule.residual(drafts, count)
    top = scores.top.leading(count) if scores.top else None
    return Verification(count, scores.log_probs[:count], len(scores.log_probs), first, top), drafts
