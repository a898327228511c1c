"""Rollout processes under verl: each runs group strategies on vLLM, through verl's server client.

Each prompt is one coroutine, the strategy of the run's method. Requests are awaited separately, so verification of one
response overlaps with decoding of another. Prompts, answers and the run come from the configuration, so only tasks are
sent. verl's own agent loops are not used, since they start a prompt's rollouts as independent sessions.
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
from redraft.train.verl.settings import engine_of
from redraft.train.verl.shard import name_of


@dataclass(frozen=True)
class WorkerRollouts:
    """One worker's share of a step's rollouts, serialised for the trainer's process.

    Attributes:
        groups: packed, in the order of the tasks.
        seconds: wait for each of `GENERATION_STAGES`, summed over groups, whose waits overlap.
        cached: tokens of prompts and kept prefixes from the engine's prefix cache.
        grading_seconds: CPU seconds of the grader.
    """

    groups: bytes
    seconds: dict[str, float]
    cached: int
    grading_seconds: float


class Grader:
    """Grades responses in the main thread of a separate process, where the grader's time limits work."""

    def grade(self, texts: list[str], answer: str, rule: str) -> tuple[list[float], float]:
        """See `redraft.tasks.rewards.rewards_of`."""
        from redraft.tasks.rewards import rewards_of

        return rewards_of(texts, answer, rule)


class RolloutWorker:
    """Rolls out tasks and remembers their groups.

    Args:
        config: the complete configuration, with the run under `redraft`.
    """

    def __init__(self, config: DictConfig, llm_client: Any, *_: Any) -> None:
        self.run = Run.model_validate(OmegaConf.to_container(config.redraft.run))
        self.strategy, self.llm_client = self.run.reuse.strategy(), llm_client
        self.max_length = config.actor_rollout_ref.rollout.max_model_len
        path = config.actor_rollout_ref.model.path
        self.tokenizer = models.load_tokenizer(path)
        self.stops = models.ends(path, self.tokenizer)
        problems = read_problems(Path(config.data.train_files[0]))
        self.prompts = encode(self.tokenizer, [problem.prompt for problem in problems])
        self.answers = [problem.answer for problem in problems]
        # Handles are kept, since an actor lives only as long as a handle to it.
        self.shards = [ray.get_actor(name_of(i)) for i in range(config.redraft.shards)]
        # A grader that a response kills is started again and tries twice more; then Ray's error ends the run.
        self.grader: Any = ray.remote(Grader).options(max_restarts=-1, max_task_retries=2).remote()

    async def roll_out(self, tasks: Sequence[Task], step: int) -> WorkerRollouts:
        """Roll out tasks with the current policy and store the groups that the method retains."""
        results = await asyncio.gather(*(self._group(task, step) for task in tasks))
        seconds = {stage: sum(costs[stage] for _, costs, _, _ in results) for stage in GENERATION_STAGES}
        groups = pack_groups([group for group, _, _, _ in results])
        return WorkerRollouts(
            groups, seconds, sum(cached for _, _, cached, _ in results), sum(graded for *_, graded in results)
        )

    async def _group(self, task: Task, step: int) -> tuple[Group, dict[str, float], int, float]:
        """Group of a task, wait in seconds by stage, cached tokens, and CPU seconds of grading."""
        # The same assignment as in `Shard.load`.
        shard, retention = self.shards[task.prompt % len(self.shards)], self.run.reuse.retention
        keeps = retention.visits > 0 or retention.correct > 0
        memory = Memory.unpacked(await shard.find.remote(task.prompt), retention) if keeps else Memory(retention)
        context, waited = self._context(memory, Streams(self.run.seed, step))
        group = await self.strategy(task, context)
        if keeps:
            # Awaited, since a checkpoint of this step saves the shards.
            await shard.put.remote(pack_groups([group]))
        # Of this group alone: each context has an engine, whose stopwatches start from 0.
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
            seeded=engine_of(self.run).seeds == "request",
        )
        limit = trainer.max_response_tokens
        return RolloutContext(engine, reward, memory, Meter(), streams, self.prompts, limit), waited

    async def fresh(self, tasks: Sequence[Task], step: int) -> bytes:
        """Packed groups of new samples of the current policy, which are not stored in the memory."""
        context, _ = self._context(Memory(Retention()), Streams(self.run.seed, step, "fresh"))
        return pack_groups(await asyncio.gather(*(vanilla(task, context) for task in tasks)))


@dataclass
class GradingWait:
    """Wall seconds of a group's wait for rewards, and CPU seconds of grading them."""

    seconds: float = 0.0
    grading_seconds: float = 0.0
