"""Group strategies: how the rollouts of one prompt come about. Each method is written here, once, for every engine.

A strategy is a coroutine over the `Engine` protocol; a trainer runs those of a whole batch concurrently.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from redraft.config.reuse import DelayedReuse, RandomReuse, ReleaseVariant, Reuse, Speculative, Vanilla
from redraft.rollout.acceptance import first_rejection, random_rejection
from redraft.rollout.drafts import DraftStore
from redraft.rollout.engine import Continuation, Engine, Inversion, Session
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish, Rollout


@dataclass
class Context:
    """Where in a run a group is rolled out.

    Attributes:
        seed: the run's seed.
        step: training step, from 0.
        epoch: pass over the data, from 0.
        group_size: rollouts a prompt.
        max_response_tokens: longest response, tokens.
        drafts: earlier rollouts.
        purpose: what the rollouts are for; keeps random streams of different uses apart.
        scores: log-probabilities of drafts under the current policy, float32, by (prompt, sample), where the trainer
            has scored them; the engine scores the others.
        assembly_seconds: grows by the processor time of acceptance and of joining prefix and continuation.
        cached_tokens: grows by the tokens of prompt and prefix that the engine did not compute again, of continuations
            behind a kept prefix.
    """

    seed: int
    step: int
    epoch: int
    group_size: int
    max_response_tokens: int
    drafts: DraftStore = field(default_factory=DraftStore)
    purpose: str = "rollout"
    scores: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    assembly_seconds: float = 0.0
    cached_tokens: int = 0


class Strategy(Protocol):
    """A coroutine function that returns the group of rollouts of one prompt."""

    async def __call__(self, prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
        """Roll out the prompt with that index and those tokens."""
        ...


@dataclass(frozen=True)
class Kept:
    """What is kept of a draft.

    Attributes:
        prefix: number of its tokens.
        log_probs: float32 (prefix,), what is stored with them.
        verified: draft tokens that were scored to find out.
    """

    prefix: int
    log_probs: np.ndarray
    verified: int = 0


class Cut(Protocol):
    """A coroutine function that says what is kept of a draft that is not empty."""

    async def __call__(self, draft: Rollout, session: Session, context: Context) -> Kept:
        """Look at the draft in a session of its prompt."""
        ...


async def vanilla(prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
    """Sample every rollout from its first token on."""
    samples = (_complete(_no_draft(prompt, s), tokens, engine, context, _at_random) for s in range(context.group_size))
    return list(await asyncio.gather(*samples))


def reuse(cut: Cut, epochs_ago: int = 1) -> Strategy:
    """Take each sample's rollout of so many epochs ago, or the oldest, as a draft; keep what `cut` says and go on."""

    async def run(prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
        # While there are fewer epochs, their oldest: the paper's delayed run saves tokens from its second epoch on.
        epoch = max(context.epoch - epochs_ago, 0) if context.epoch else -1
        earlier = (context.drafts.get(prompt, s, epoch) for s in range(context.group_size))
        drafts = [draft or _no_draft(prompt, s) for s, draft in enumerate(earlier)]
        samples = (_complete(draft, tokens, engine, context, cut) for draft in drafts)
        return list(await asyncio.gather(*samples))

    return run


def speculative(lenience: float, epochs_ago: int = 1) -> Strategy:
    """SPEC-RL, Algorithm 1: verify an earlier rollout and keep it up to the first rejection."""
    return reuse(verified(lenience), epochs_ago)


def strategy(method: Reuse) -> Strategy:
    """The strategy of a configured method."""
    match method:
        case Vanilla():
            return vanilla
        case Speculative(lenience=lenience):
            return speculative(lenience)
        case RandomReuse():
            return reuse(_at_random)
        case DelayedReuse(lenience=lenience):
            return speculative(lenience, epochs_ago=2)
        case ReleaseVariant(lenience=lenience, fixed_uniforms=fixed, refreshed_log_probs=refreshed):
            return reuse(verified(lenience, fixed, refreshed))


def verified(lenience: float, fixed_uniforms: bool = False, refreshed_log_probs: bool = False) -> Cut:
    """Cut at the first token that equation (3) rejects.

    Args:
        lenience: of equation (3).
        fixed_uniforms: whether the same numbers decide at every step.
        refreshed_log_probs: whether a kept token's log-probability becomes the current policy's; else it stays that of
            the policy which sampled it.
    """

    async def cut(draft: Rollout, session: Session, context: Context) -> Kept:
        known = context.scores.get((draft.prompt, draft.sample))
        new = (await session.score(draft.tokens)).log_probs if known is None else known
        began = time.process_time()
        u = _fixed_uniforms(context, draft) if fixed_uniforms else _uniforms(context, "acceptance", draft, draft.length)
        prefix = int(first_rejection(new[None], draft.log_probs[None], u[None], [draft.length], lenience)[0])
        context.assembly_seconds += time.process_time() - began
        return Kept(prefix, (new if refreshed_log_probs else draft.log_probs)[:prefix], verified=draft.length)

    return cut


async def _at_random(draft: Rollout, session: Session, context: Context) -> Kept:
    """Cut at a random token; nothing is scored."""
    u = _uniforms(context, "acceptance", draft, 1)
    prefix = int(random_rejection(u, [draft.length])[0])
    return Kept(prefix, draft.log_probs[:prefix])


def _no_draft(prompt: int, sample: int) -> Rollout:
    """A draft without tokens, of which nothing can be reused."""
    nothing = np.zeros(0, dtype=np.int32)
    return Rollout(prompt, sample, nothing, np.zeros(0, dtype=np.float32), nothing, Finish.LENGTH)


async def _complete(draft: Rollout, tokens: Sequence[int], engine: Engine, context: Context, cut: Cut) -> Rollout:
    """One rollout: what is kept of its draft, and what is sampled behind it."""
    async with engine.session(tokens) as session:
        kept = await cut(draft, session, context) if draft.length else Kept(0, draft.log_probs)
        finish = _finish(draft.tokens[: kept.prefix], engine.stops, context.max_response_tokens)
        if finish:
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], finish)
        else:
            continuation = await _go_on(draft, kept.prefix, session, context)
    return _assemble(draft, kept, continuation, context)


async def _go_on(draft: Rollout, prefix: int, session: Session, context: Context) -> Continuation:
    """Sample behind the draft's prefix."""
    room = context.max_response_tokens - prefix
    draws = Inversion(_uniforms(context, "sampling", draft, room))
    continuation = await session.decode(draft.tokens[:prefix], room, draws)
    if prefix:
        context.cached_tokens += continuation.cached
    return continuation


def _uniforms(context: Context, use: str, draft: Rollout, count: int) -> np.ndarray:
    position = (context.step, draft.prompt, draft.sample)
    return uniforms(context.seed, f"{context.purpose}/{use}", *position, count=count)


def _fixed_uniforms(context: Context, draft: Rollout) -> np.ndarray:
    """As if from a generator that is seeded anew at every call: the step does not enter."""
    purpose = f"{context.purpose}/acceptance/fixed"
    return uniforms(context.seed, purpose, draft.prompt, draft.sample, count=draft.length)


def _finish(kept: np.ndarray, stops: Collection[int], limit: int) -> Finish | None:
    """Whether what was kept of a draft is already a whole response."""
    if len(kept) and int(kept[-1]) in stops:
        return Finish.EOS
    return Finish.LENGTH if len(kept) >= limit else None


def _assemble(draft: Rollout, kept: Kept, continuation: Continuation, context: Context) -> Rollout:
    """Join the draft's prefix, which keeps its history, and the continuation."""
    began = time.process_time()
    sampled_now = np.full(len(continuation.tokens), context.step, dtype=np.int32)
    rollout = Rollout(
        draft.prompt, draft.sample,
        tokens=np.concatenate([draft.tokens[: kept.prefix], continuation.tokens]),
        log_probs=np.concatenate([kept.log_probs, continuation.log_probs]),
        sampled_at=np.concatenate([draft.sampled_at[: kept.prefix], sampled_now]),
        finish=continuation.finish,
        prefix_length=kept.prefix, draft_length=draft.length, verified=kept.verified,
    )  # fmt: skip
    context.assembly_seconds += time.process_time() - began
    return rollout
