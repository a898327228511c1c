"""Responses that a reuse method draws with a real engine over visits of a changing policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.audit.enumeration import Space
from redraft.audit.models import PROMPT
from redraft.config.reuse import Retention
from redraft.engines.torch_engine import TorchEngine
from redraft.rollout.memory import Memory
from redraft.rollout.strategies.tools import Meter, Strategy, Streams, Tools
from redraft.rollout.types import Rollout, Task


@dataclass(frozen=True)
class SharedUniforms(Streams):
    """A fault to be found: the same numbers accept drafts and draw tokens, in every visit."""

    def uniforms(self, use: str, prompt: int, sample: int, count: int) -> np.ndarray:
        """The same numbers for every use and step."""
        return self.fixed_uniforms("shared", prompt, sample, count)


def counts(
    strategy: Strategy,
    retention: Retention,
    engines: Sequence[TorchEngine],
    space: Space,
    draws: int,
    streams: type[Streams] = Streams,
) -> tuple[np.ndarray, float]:
    """Draw responses in a visit of each engine's policy, each from the response of the visit before as its draft.

    Args:
        strategy: of the method.
        retention: of the method.
        engines: one a visit, with its policy.
        space: of the responses.
        draws: number of independent chains of visits.
        streams: of the random numbers.

    Returns:
        How often each response was drawn in the last visit, int64 (responses,), and mean kept tokens there.
    """
    memory = Memory(retention)
    group = None
    for visit, engine in enumerate(engines):
        tools = Tools(engine, _no_reward, memory, Meter(), streams(0, visit), {0: PROMPT}, space.longest)
        (group,) = engine.run(strategy(Task(0, visit, draws), tools))
        memory.put(group)
    assert group is not None
    places = [space.index[tuple(map(int, rollout.tokens))] for rollout in group.rollouts]
    kept = float(np.mean([rollout.prefix_length for rollout in group.rollouts]))
    return np.bincount(places, minlength=len(space.responses)), kept


async def _no_reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
    return np.zeros(len(rollouts), np.float32)
