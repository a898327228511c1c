"""One response: what is kept of its draft, and what is sampled behind it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.methods.acceptance.weighted import Weights
from redraft.methods.strategies.tools import Tools
from redraft.rollout.engine import Continuation, Draws, Inversion, Residual, Session
from redraft.rollout.types import Finish, Rollout, Task, TopLaw


@dataclass(frozen=True)
class Kept:
    """Part of a draft that is kept.

    Attributes:
        prefix: number of its tokens.
        log_probs: float32 (prefix,), stored with them.
        verified: draft tokens that were scored to find out.
        first: law of the token behind the prefix, the policy's if None.
        top: top laws stored with them; the draft's own if None.
        weights: importance weights of the response; all 1 if None.
    """

    prefix: int
    log_probs: np.ndarray
    verified: int = 0
    first: Residual | None = None
    top: TopLaw | None = None
    weights: Weights | None = None


class Cut(Protocol):
    """A coroutine function that says what is kept of a draft that is not empty."""

    async def __call__(self, draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        """Judge the draft in a session of its prompt."""
        ...


class Draw(Protocol):
    """A function that makes the random numbers of a response."""

    def __call__(self, prompt: int, sample: int, room: int, task: Task, tools: Tools) -> Draws:
        """Numbers for as many as `room` tokens."""
        ...


def inverted(prompt: int, sample: int, room: int, task: Task, tools: Tools) -> Inversion:
    """Draws by inversion, with numbers of the step's own."""
    return Inversion(tools.streams.uniforms("sampling", prompt, sample, room))


async def complete(draft: Rollout, task: Task, tools: Tools, cut: Cut | None = None, draw: Draw = inverted) -> Rollout:
    """Keep what `cut` says of a draft, if it has tokens, and sample the rest of the response."""
    async with tools.engine.session(tools.prompts[draft.prompt]) as session:
        kept = await cut(draft, session, task, tools) if cut and draft.length else Kept(0, draft.log_probs)
        finish = _finish(draft.tokens[: kept.prefix], tools.engine.stops, tools.limit)
        if finish:
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], finish)
        else:
            continuation = await _go_on(draft, kept, session, task, tools, draw)
    with tools.meter.assembling():
        return _assemble(draft, kept, continuation, tools.streams.step)


def no_draft(prompt: int, sample: int) -> Rollout:
    """A draft without tokens: nothing of it can be kept."""
    nothing = np.zeros(0, dtype=np.int32)
    return Rollout(prompt, sample, nothing, np.zeros(0, dtype=np.float32), nothing, Finish.LENGTH)


async def _go_on(draft: Rollout, kept: Kept, session: Session, task: Task, tools: Tools, draw: Draw) -> Continuation:
    """Sample behind the draft's prefix."""
    room = tools.limit - kept.prefix
    draws, top = draw(draft.prompt, draft.sample, room, task, tools), tools.memory.retention.top
    continuation = await session.decode(draft.tokens[: kept.prefix], room, draws, kept.first, top)
    if kept.prefix:
        tools.meter.cached_tokens += continuation.cached
    return continuation


def _finish(kept: np.ndarray, stops: Collection[int], limit: int) -> Finish | None:
    """End of what was kept of a draft, if that is already a whole response."""
    if len(kept) and int(kept[-1]) in stops:
        return Finish.EOS
    return Finish.LENGTH if len(kept) >= limit else None


def _assemble(draft: Rollout, kept: Kept, continuation: Continuation, step: int) -> Rollout:
    """Join the draft's prefix, which keeps its history, and the continuation."""
    sampled_now = np.full(len(continuation.tokens), step, dtype=np.int32)
    return Rollout(
        draft.prompt, draft.sample,
        tokens=np.concatenate([draft.tokens[: kept.prefix], continuation.tokens]),
        log_probs=np.concatenate([kept.log_probs, continuation.log_probs]),
        sampled_at=np.concatenate([draft.sampled_at[: kept.prefix], sampled_now]),
        finish=continuation.finish,
        prefix_length=kept.prefix, draft_length=draft.length, verified=kept.verified,
        top=_joined(kept.top or draft.top, kept.prefix, continuation.top),
        log_weights=_log_weights(kept.weights, continuation.tokens),
    )  # fmt: skip


def _log_weights(weights: Weights | None, sampled: np.ndarray) -> np.ndarray | None:
    """Log-weights of prefix and continuation, float32 (length,); all tokens but the first one sampled have weight 1."""
    if weights is None:
        return None
    behind = np.zeros(len(sampled))
    if len(sampled):
        behind[0] = weights.behind(int(sampled[0]))
    return np.concatenate([weights.kept, behind]).astype(np.float32)


def _joined(draft: TopLaw | None, prefix: int, continuation: TopLaw | None) -> TopLaw | None:
    """Top laws of prefix and continuation, of as many tokens as both have."""
    parts = [TopLaw(draft.tokens[:prefix], draft.log_probs[:prefix])] if draft and prefix else []
    parts += [continuation] if continuation else []
    if not parts:
        return None
    k = min(part.tokens.shape[1] for part in parts)
    return TopLaw(*(np.concatenate([getattr(p, name)[:, :k] for p in parts]) for name in ("tokens", "log_probs")))
