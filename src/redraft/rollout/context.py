"""Context of a group strategy: engine, reward, memory, meter, and the random streams of its step."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from redraft.rollout.engine import Engine
from redraft.rollout.memory import Memory
from redraft.rollout.streams import stream, uniforms
from redraft.rollout.types import Rollout


class Reward(Protocol):
    """A coroutine function that grades responses; an engine decodes others meanwhile."""

    async def __call__(self, prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
        """Rewards of responses to a prompt, float32 (rollouts,), before any shaping."""
        ...


async def no_reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
    """A `Reward` of zeros, for rollouts that are graded later or not at all."""
    return np.zeros(len(rollouts), dtype=np.float32)


@dataclass
class Meter:
    """Costs that no engine sees.

    Attributes:
        assembly_seconds: processor time of acceptance and of joining prefix and continuation.
        cached_tokens: tokens of prompt and kept prefix that the engine did not compute again.
    """

    assembly_seconds: float = 0.0
    cached_tokens: int = 0

    @contextmanager
    def assembling(self) -> Iterator[None]:
        """Count the processor time of the block."""
        began = time.process_time()
        yield
        self.assembly_seconds += time.process_time() - began


@dataclass(frozen=True)
class Streams:
    """Random streams of one step of a run; `purpose` separates rollouts that are trained on from measured ones."""

    seed: int
    step: int
    purpose: str = "rollout"

    def uniforms(self, use: str, prompt: int, sample: int, count: int) -> np.ndarray:
        """Numbers for one use in one sample at this step, float64 (count,) on (0, 1]."""
        return uniforms(self.seed, f"{self.purpose}/{use}", self.step, prompt, sample, count=count)

    def fixed_uniforms(self, use: str, prompt: int, sample: int, count: int) -> np.ndarray:
        """The same numbers at every step, like a generator that is seeded again at every call."""
        return uniforms(self.seed, f"{self.purpose}/{use}/fixed", prompt, sample, count=count)

    def key(self, use: str, prompt: int, sample: int, generation: int) -> int:
        """64-bit key of a sample's noise, the same at every step of a generation."""
        return int(
            stream(self.seed, f"{self.purpose}/{use}", prompt, sample, generation).integers(2**64, dtype="uint64")
        )


@dataclass(frozen=True)
class RolloutContext:
    """Everything that a strategy may use.

    Attributes:
        memory: earlier rollouts, to be read.
        prompts: tokens of every prompt by its index.
        limit: longest response, tokens.
        scores: log-probabilities of drafts under the current policy, float32, by (prompt, sample), where the training
            engine has scored them; the rollout engine scores the others.
    """

    engine: Engine
    reward: Reward
    memory: Memory
    meter: Meter
    streams: Streams
    prompts: Sequence[Sequence[int]] | Mapping[int, Sequence[int]]
    limit: int
    scores: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)
