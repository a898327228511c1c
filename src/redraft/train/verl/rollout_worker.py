"""Processes that roll out under verl: each runs group strategies over vLLM, through verl's server client.

A prompt is one coroutine, the strategy of the run's method; verification of one response overlaps the decoding of
another, since every request is awaited by itself. Prompts, answers and the run come from the configuration, so that
only tasks travel. verl's own agent loops are not used: they start a prompt's rollouts as independent sessions.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from omegaconf import DictConfig, OmegaConf

from redraft.config.base import GENERATION_STAGES
from redraft.config.experiment import Run
from redraft.config.retention import Retention
from redraft.engines.vllm.engine import VLLMEngine
from redraft.methods.vanilla import vanilla
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.memory import Memory
from redraft.rollout.storage import pack_groups
from redraft.rollout.types import Group, Rollout, Task
from redraft.tasks.prompts import encode
from redraft.train import models
from redraft.train.verl.problem_files import read_problems
from redraft.train.verl.shard import name_of


@dataclass(frozen=True)
class WorkerRollouts:
    """Groups of some of a step's tasks, as processes exchange them.

    Attributes:
        groups: packed, in the order of the tasks.
        seconds: waited for each of `GENERATION_STAGES`, over all groups; waits of groups overlap.
        cached: tokens of prompts and kept prefixes that the engine did not compute again.
        grading_seconds: processor seconds of the grader.
    """

    groups: bytes
    seconds: dict[str, float]
    cached: int
    grading_seconds: float


class Grader:
    """Grades responses in the main thread of a process of its own, where the grader's time limits work."""

    def grade(self, texts: list[str], answer: str, rule: str) -> tuple[list[float], float]:
        """Rewards by a rule, and the processor seconds that they took: `redraft.tasks.rewards.rewards_of`."""
        from redraft.tasks.rewards import rewards_of

        return rewards_of(texts, answer, rule)


class RolloutWorker:
    """Rolls out tasks and remembers their groups.

    Args:
        config: complete, with the run under `redraft`.
    """

    def __init__(self, config: DictConfig, llm_client: Any, *_: Any) -> None:
        self.run = Run.model_validate(OmegaConf.to_container(config.redraft.run))
        self.strategy, self.llm_client = self.run.reuse.strategy(), llm_client
        self.max_length = config.actor_rollout_ref.rollout.max_model_len
        path = config.actor_rollout_ref.model.path
        self.tokenizer = models.load_tokenizer(path)
        self.stops = models.stop_tokens(models.load_generation(path), self.tokenizer)
        problems = read_problems(Path(config.data.train_files[0]))
        self.prompts = encode(self.tokenizer, [problem.prompt for problem in problems])
        self.answers = [problem.answer for problem in problems]
        # A handle keeps its actor alive; one that is looked up anew for each call would not.
        self.shards = [ray.get_actor(name_of(i)) for i in range(config.redraft.shards)]
        self.grader: Any = ray.remote(Grader).options(max_restarts=-1, max_task_retries=2).remote()

    async def roll_out(self, tasks: Sequence[Task], step: int) -> WorkerRollouts:
        """Groups of tasks under the current policy; what the method retains of them is remembered."""
        made = await asyncio.gather(*(self._group(task, step) for task in tasks))
        seconds = {stage: sum(costs[stage] for _, costs, _, _ in made) for stage in GENERATION_STAGES}
        groups = pack_groups([group for group, _, _, _ in made])
        return WorkerRollouts(
            groups, seconds, sum(cached for _, _, cached, _ in made), sum(graded for *_, graded in made)
        )

    async def _group(self, task: Task, step: int) -> tuple[Group, dict[str, float], int, float]:
        """Group of a task, seconds waited by stage, tokens found in the cache, and seconds of grading."""
        shard, retention = self.shards[task.prompt % len(self.shards)], self.run.reuse.retention
        keeps = retention.visits > 0 or retention.correct > 0
        memory = Memory.unpacked(await shard.find.remote(task.prompt), retention) if keeps else Memory(retention)
        context, waited = self._context(memory, Streams(self.run.seed, step))
        group = await self.strategy(task, context)
        if keeps:
            await shard.put.remote(pack_groups([group]))
        usage = context.engine.usage
        seconds = {
            "verification": usage.verification_seconds,
            "rollout": usage.decoding_seconds,
            "assembly": context.meter.assembly_seconds,
            "reward": waited.seconds,
        }
        return group, seconds, context.meter.cached_tokens, waited.grading_seconds

    def _context(self, memory: Memory, streams: Streams) -> tuple[Any, "GradingWait"]:
        waited = GradingWait()

        async def reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
            texts = self.tokenizer.batch_decode([r.tokens for r in rollouts], skip_special_tokens=True)
            began = time.perf_counter()
            rewards, seconds = await self.grader.grade.remote(texts, self.answers[prompt], self.run.reward)
            waited.seconds += time.perf_counter() - began
            waited.grading_seconds += seconds
            return np.array(rewards, dtype=np.float32)

        trainer = self.run.trainer
        engine = VLLMEngine(
            self.llm_client,
            self.stops,
            self.max_length,
            chunk=self.run.engine.draft_chunk,
            temperature=trainer.temperature,
        )
        limit = trainer.max_response_tokens
        return RolloutContext(engine, reward, memory, Meter(), streams, self.prompts, limit), waited

    async def fresh(self, tasks: Sequence[Task], step: int) -> bytes:
        """Packed groups of new samples of the current policy, which nobody remembers."""
        context, _ = self._context(Memory(Retention()), Streams(self.run.seed, step, "fresh"))
        return pack_groups(await asyncio.gather(*(vanilla(task, context) for task in tasks)))


@dataclass
class GradingWait:
    """Wall seconds that a group waited for its rewards, and processor seconds of grading them."""

    seconds: float = 0.0
    grading_seconds: float = 0.0
