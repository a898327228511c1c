"""Responses that a reuse method draws with a real engine over visits of a changing policy."""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from redraft.config.retention import Retention
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.models import PROMPT
from redraft.methods.strategy import Strategy
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.engine import Engine
from redraft.rollout.memory import Memory
from redraft.rollout.types import Rollout, Task

T = TypeVar("T")


class Running(Engine, Protocol):
    """An engine that runs its sessions in this process."""

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines that use this engine to their ends; return their results in order."""
        ...


@dataclass(frozen=True)
class SharedUniforms(Streams):
    """A fault to be found: the same numbers accept drafts and draw tokens, in every visit."""

    def uniforms(self, use: str, prompt: int, sample: int, count: int) -> np.ndarray:
        """The same numbers for every use and step."""
        return self.fixed_uniforms("shared", prompt, sample, count)


def last_visit(
    strategy: Strategy,
    retention: Retention,
    engines: Sequence[Running],
    space: Space,
    draws: int,
    streams: type[Streams] = Streams,
) -> list[Rollout]:
    """Responses of the last of as many visits as engines, each with the response of the visit before as its draft.

    Each of the `draws` chains of visits is independent of the others.
    """
    memory = Memory(retention)
    group = None
    for visit, engine in enumerate(engines):
        context = RolloutContext(engine, _no_reward, memory, Meter(), streams(0, visit), {0: PROMPT}, space.longest)
        (group,) = engine.run(strategy(Task(0, visit, draws), context))
        memory.put(group)
    assert group is not None
    return group.rollouts


def counts(rollouts: Sequence[Rollout], space: Space) -> tuple[np.ndarray, float]:
    """How often each response was drawn, int64 (responses,), and mean kept tokens."""
    places = [space.index[tuple(map(int, rollout.tokens))] for rollout in rollouts]
    kept = float(np.mean([rollout.prefix_length for rollout in rollouts]))
    return np.bincount(places, minlength=len(space.responses)), kept


async def _no_reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
    return np.zeros(len(rollouts), np.float32)
