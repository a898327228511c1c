"""Group strategies: how the rollouts of one prompt come about. Each method is written here, once, for every engine.

A strategy is a coroutine over the `Engine` protocol; a trainer runs those of a whole batch concurrently.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from redraft.config.method import Method, Speculative, Vanilla
from redraft.rollout.acceptance import first_rejection
from redraft.rollout.drafts import DraftStore
from redraft.rollout.engine import Continuation, Engine, Session
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
        assembly_seconds: grows by the time spent on acceptance and on joining prefix and continuation.
    """

    seed: int
    step: int
    epoch: int
    group_size: int
    max_response_tokens: int
    drafts: DraftStore = field(default_factory=DraftStore)
    purpose: str = "rollout"
    assembly_seconds: float = 0.0


class Strategy(Protocol):
    """A coroutine function that returns the group of rollouts of one prompt."""

    async def __call__(self, prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
        """Roll out the prompt with that index and those tokens."""
        ...


async def vanilla(prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
    """Sample every rollout from its first token on."""
    samples = (_complete(_no_draft(prompt, s), tokens, engine, context) for s in range(context.group_size))
    return list(await asyncio.gather(*samples))


def speculative(lenience: float) -> Strategy:
    """SPEC-RL, Algorithm 1: verify the last epoch's rollout, keep it up to the first rejection, go on from there."""

    async def run(prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
        earlier = (context.drafts.get(prompt, s, context.epoch - 1) for s in range(context.group_size))
        drafts = [draft or _no_draft(prompt, s) for s, draft in enumerate(earlier)]
        samples = (_complete(draft, tokens, engine, context, lenience) for draft in drafts)
        return list(await asyncio.gather(*samples))

    return run


def strategy(method: Method) -> Strategy:
    """The strategy of a configured method."""
    match method:
        case Vanilla():
            return vanilla
        case Speculative(lenience=lenience):
            return speculative(lenience)


def _no_draft(prompt: int, sample: int) -> Rollout:
    """A draft without tokens, of which nothing can be reused."""
    nothing = np.zeros(0, dtype=np.int32)
    return Rollout(prompt, sample, nothing, np.zeros(0, dtype=np.float32), nothing, Finish.LENGTH)


async def _complete(
    draft: Rollout, tokens: Sequence[int], engine: Engine, context: Context, lenience: float = 0.0
) -> Rollout:
    """One rollout: what is accepted of its draft, and what is sampled behind it."""
    async with engine.session(tokens) as session:
        prefix = await _verify(draft, session, context, lenience) if draft.length else 0
        finish = _finish(draft.tokens[:prefix], engine.eos, context.max_response_tokens)
        if finish:
            continuation = Continuation(draft.tokens[:0], draft.log_probs[:0], finish)
        else:
            continuation = await _go_on(draft, prefix, session, context)
    return _assemble(draft, prefix, continuation, context)


async def _verify(draft: Rollout, session: Session, context: Context, lenience: float) -> int:
    """How many of the draft's tokens stand before its first rejection."""
    new = await session.score(draft.tokens)
    began = time.perf_counter()
    u = _uniforms(context, "acceptance", draft, draft.length)
    prefix = int(first_rejection(new[None], draft.log_probs[None], u[None], [draft.length], lenience)[0])
    context.assembly_seconds += time.perf_counter() - began
    return prefix


async def _go_on(draft: Rollout, prefix: int, session: Session, context: Context) -> Continuation:
    """Sample behind the draft's prefix."""
    room = context.max_response_tokens - prefix
    return await session.decode(draft.tokens[:prefix], room, _uniforms(context, "sampling", draft, room))


def _uniforms(context: Context, use: str, draft: Rollout, count: int) -> np.ndarray:
    position = (context.step, draft.prompt, draft.sample)
    return uniforms(context.seed, f"{context.purpose}/{use}", *position, count=count)


def _finish(kept: np.ndarray, eos: int, limit: int) -> Finish | None:
    """Whether what was kept of a draft is already a whole response."""
    if len(kept) and kept[-1] == eos:
        return Finish.EOS
    return Finish.LENGTH if len(kept) >= limit else None


def _assemble(draft: Rollout, prefix: int, continuation: Continuation, context: Context) -> Rollout:
    """Join the draft's prefix, which keeps its history, and the continuation."""
    began = time.perf_counter()
    sampled_now = np.full(len(continuation.tokens), context.step, dtype=np.int32)
    rollout = Rollout(
        draft.prompt, draft.sample,
        tokens=np.concatenate([draft.tokens[:prefix], continuation.tokens]),
        log_probs=np.concatenate([draft.log_probs[:prefix], continuation.log_probs]),
        sampled_at=np.concatenate([draft.sampled_at[:prefix], sampled_now]),
        finish=continuation.finish,
        prefix_length=prefix, draft_length=draft.length, verified=draft.length,
    )  # fmt: skip
    context.assembly_seconds += time.perf_counter() - began
    return rollout
