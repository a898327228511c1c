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
from redraft.rollout.engine import Engine
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
    samples = (_complete(prompt, s, tokens, engine, context, None, 0.0) for s in range(context.group_size))
    return list(await asyncio.gather(*samples))


def speculative(lenience: float) -> Strategy:
    """SPEC-RL, Algorithm 1: verify the last epoch's rollout, keep it up to the first rejection, go on from there."""

    async def run(prompt: int, tokens: Sequence[int], engine: Engine, context: Context) -> list[Rollout]:
        drafts = [context.drafts.get(prompt, s, context.epoch - 1) for s in range(context.group_size)]
        samples = (_complete(prompt, s, tokens, engine, context, d, lenience) for s, d in enumerate(drafts))
        return list(await asyncio.gather(*samples))

    return run


def strategy(method: Method) -> Strategy:
    """The strategy of a configured method."""
    match method:
        case Vanilla():
            return vanilla
        case Speculative(lenience=lenience):
            return speculative(lenience)


async def _complete(
    prompt: int,
    sample: int,
    tokens: Sequence[int],
    engine: Engine,
    context: Context,
    draft: Rollout | None,
    lenience: float,
) -> Rollout:
    """One rollout: what is accepted of the draft, and what is sampled behind it."""
    position = (context.step, prompt, sample)
    async with engine.session(tokens) as session:
        prefix = 0
        if draft is not None and draft.length:
            new = await session.score(draft.tokens)
            began = time.perf_counter()
            u = uniforms(context.seed, f"{context.purpose}/acceptance", *position, count=draft.length)
            prefix = int(first_rejection(new[None], draft.log_probs[None], u[None], [draft.length], lenience)[0])
            context.assembly_seconds += time.perf_counter() - began
        if draft is not None and (finish := _finish(draft.tokens[:prefix], engine.eos, context.max_response_tokens)):
            return _reused(draft, finish, prefix)
        kept = draft.tokens[:prefix] if draft is not None else np.zeros(0, dtype=np.int32)
        room = context.max_response_tokens - prefix
        u = uniforms(context.seed, f"{context.purpose}/sampling", *position, count=room)
        new_part = await session.decode(kept, room, u)
    began = time.perf_counter()
    rollout = Rollout(
        prompt, sample,
        tokens=np.concatenate([kept, new_part.tokens]),
        log_probs=np.concatenate([draft.log_probs[:prefix], new_part.log_probs]) if draft else new_part.log_probs,
        sampled_at=np.concatenate([
            draft.sampled_at[:prefix] if draft else np.zeros(0, dtype=np.int32),
            np.full(len(new_part.tokens), context.step, dtype=np.int32),
        ]),
        finish=new_part.finish,
        prefix_length=prefix,
        draft_length=draft.length if draft else 0,
        verified=draft.length if draft else 0,
    )  # fmt: skip
    context.assembly_seconds += time.perf_counter() - began
    return rollout


def _finish(kept: np.ndarray, eos: int, limit: int) -> Finish | None:
    """Whether what was kept of a draft is already a whole response."""
    if len(kept) and kept[-1] == eos:
        return Finish.EOS
    return Finish.LENGTH if len(kept) >= limit else None


def _reused(draft: Rollout, finish: Finish, prefix: int) -> Rollout:
    return Rollout(
        draft.prompt, draft.sample, draft.tokens[:prefix], draft.log_probs[:prefix], draft.sampled_at[:prefix],
        finish, prefix_length=prefix, draft_length=draft.length, verified=draft.length,
    )  # fmt: skip
