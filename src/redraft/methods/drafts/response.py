"""One response: what is kept of its draft, and what is sampled after it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.methods.acceptance.weighted import Weights
from redraft.rollout.context import RolloutContext
from redraft.rollout.engine import Continuation, Draws, Inversion, Residual, Session
from redraft.rollout.types import Finish, Rollout, Task, TopLogProbs


@dataclass(frozen=True)
class Verification:
    """Part of a draft that is kept.

    Attributes:
        log_probs: float32 (prefix,), stored with them.
        verified: draft tokens that were scored to find out.
        first: distribution of the token after the prefix, the policy's if None.
        top: top distributions stored with them; the draft's own if None.
        weights: importance weights of the response; all 1 if None.
    """

    prefix: int
    log_probs: np.ndarray
    verified: int = 0
    first: Residual | None = None
    top: TopLogProbs | None = None
    weights: Weights | None = None


class DraftVerifier(Protocol):
    """A coroutine function that decides what is kept of a draft that is not empty."""

    async def __call__(self, draft: Rollout, session: Session, task: Task, context: RolloutContext) -> Verification:
        """Judge the draft in a session of its prompt."""
        ...


class Sampler(Protocol):
    """A function that makes the random numbers by which a response is sampled."""

    def __call__(self, prompt: int, sample: int, limit: int, task: Task, context: RolloutContext) -> Draws:
        """Numbers for at most `limit` tokens."""
        ...


def by_inversion(prompt: int, sample: int, limit: int, task: Task, context: RolloutContext) -> Inversion:
    """Inverse-CDF sampling, with numbers of this step."""
    return Inversion(context.streams.uniforms("sampling", prompt, sample, limit))


async def complete(
    draft: Rollout,
    task: Task,
    context: RolloutContext,
    verifier: DraftVerifier | None = None,
    sampler: Sampler = by_inversion,
) -> Rollout:
    """Keep what the verifier decides of a draft, if it has tokens, and sample the rest of the response."""
    async with context.engine.session(context.prompts[draft.prompt]) as session:
        kept = Verification(0, draft.log_probs)
        if verifier and draft.length:
            kept = await verifier(draft, session, task, context)
        prefix = draft.tokens[: kept.prefix]
        if finish := _finish(prefix, context.engine.stops, context.limit):
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], finish)
        else:
            room = context.limit - kept.prefix
            draws = sampler(draft.prompt, draft.sample, room, task, context)
            continuation = await session.decode(prefix, room, draws, kept.first, context.memory.retention.top)
            if kept.prefix:
                context.meter.cached_tokens += continuation.cached
    with context.meter.assembling():
        return _assemble(draft, kept, continuation, context.streams.step)


def no_draft(prompt: int, sample: int) -> Rollout:
    """A draft without tokens: nothing of it can be kept."""
    nothing = np.zeros(0, dtype=np.int32)
    return Rollout(prompt, sample, nothing, np.zeros(0, dtype=np.float32), nothing, Finish.LENGTH)


def _finish(kept: np.ndarray, stops: Collection[int], limit: int) -> Finish | None:
    """End of what was kept of a draft, if that is already a whole response."""
    if len(kept) and int(kept[-1]) in stops:
        return Finish.EOS
    return Finish.LENGTH if len(kept) >= limit else None


def _assemble(draft: Rollout, kept: Verification, continuation: Continuation, step: int) -> Rollout:
    """Join the draft's prefix, which keeps its history, and the continuation."""
    sampled_now = np.full(len(continuation.tokens), step, dtype=np.int32)
    return Rollout(
        draft.prompt,
        draft.sample,
        tokens=np.concatenate([draft.tokens[: kept.prefix], continuation.tokens]),
        log_probs=np.concatenate([kept.log_probs, continuation.log_probs]),
        sampled_at=np.concatenate([draft.sampled_at[: kept.prefix], sampled_now]),
        finish=continuation.finish,
        prefix_length=kept.prefix,
        draft_length=draft.length,
        verified=kept.verified,
        top=_joined(kept.top or draft.top, kept.prefix, continuation.top),
        log_weights=None if kept.weights is None else kept.weights.of_response(continuation.tokens),
    )


def _joined(draft: TopLogProbs | None, prefix: int, continuation: TopLogProbs | None) -> TopLogProbs | None:
    """Top distributions of prefix and continuation, of as many tokens as both have."""
    parts = [draft.leading(prefix)] if draft and prefix else []
    parts += [continuation] if continuation else []
    if not parts:
        return None
    k = min(part.tokens.shape[1] for part in parts)
    return TopLogProbs(*(np.concatenate([getattr(p, name)[:, :k] for p in parts]) for name in ("tokens", "log_probs")))
