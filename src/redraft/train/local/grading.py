"""Rewards from worker processes: the grader's time limits need a main thread, and the engine goes on decoding."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from pebble import ProcessExpired, ProcessPool

from redraft.ops.locking.termination import exit_deferred
from redraft.rollout.types import Rollout
from redraft.tasks.workers import pool, reward

SECONDS = 30.0
"""Limit for one response: twice what the grader allows itself. A response beyond it earns nothing."""


class Graders:
    """Grades responses by their prompts' answers.

    Use as a context: entering starts the processes, leaving ends them.

    Args:
        answers: of every prompt, by its index.
        rule: which rule of `redraft.tasks.rewards` rewards (`Run.reward`).

    Attributes:
        seconds: processor seconds that the processes have graded for.
    """

    def __init__(self, answers: Sequence[str], tokenizer: Any, processes: int, rule: str) -> None:
        self.answers, self.tokenizer, self.processes, self.rule = answers, tokenizer, processes, rule
        self.seconds = 0.0
        self.pool: ProcessPool | None = None

    def __enter__(self) -> "Graders":
        self.pool = pool(self.processes)
        arguments = ([""], self.answers[0], self.rule)
        ready = [self.pool.schedule(reward, args=arguments, timeout=SECONDS) for _ in range(self.processes)]
        for each in ready:
            each.result()  # loading the grader must not count as reward time of the first step
        return self

    def __exit__(self, *_: object) -> None:
        assert self.pool is not None
        with exit_deferred():
            self.pool.stop()
            self.pool.join()
        self.pool = None

    async def grade(self, prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
        """Rewards of responses to a prompt, float32 (rollouts,): 1 for a right answer, else 0."""
        texts = self.tokenizer.batch_decode([r.tokens for r in rollouts], skip_special_tokens=True)
        return np.array(await self._graded(texts, self.answers[prompt]), dtype=np.float32)

    async def _graded(self, texts: list[str], answer: str) -> list[float]:
        """Rewards; if a batch hangs or kills its process, each text is graded alone, and the culprit earns 0."""
        assert self.pool is not None, "graders are used as a context"
        with exit_deferred():  # both take locks that the pool's threads wait for
            future = asyncio.wrap_future(
                self.pool.schedule(reward, args=(texts, answer, self.rule), timeout=SECONDS * len(texts))
            )
        try:
            rewards, seconds = await future
        # A MemoryError comes from the worker's limit (`tasks.workers.MEMORY`).
        except (TimeoutError, ProcessExpired, MemoryError):
            if len(texts) == 1:
                return [0.0]
            return [reward for text in texts for reward in await self._graded([text], answer)]
        self.seconds += seconds
        return rewards
