"""Where groups are rolled out: verl's agent-loop worker, running this project's group strategies.

verl starts a prompt's rollouts as independent sessions. Here a prompt is one coroutine, the strategy of the run's
method, over an engine that speaks to vLLM through verl's server client; verification of one response overlaps the
decoding of another, since every request is awaited by itself. Prompts, answers and the run come from the
configuration, so that nothing but a prompt's index travels with a batch.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopWorkerTQ

from redraft.config.experiment import Run
from redraft.engines.vllm_engine import VLLMEngine
from redraft.rollout.drafts import DraftStore, unpack
from redraft.rollout.strategies import Context, strategy, vanilla
from redraft.rollout.types import Rollout
from redraft.tasks.prompts import encode
from redraft.train.losses import shaped
from redraft.train.models import stop_tokens
from redraft.train.verl.data import read_problems
from redraft.train.verl.shard import Group, epochs_kept, name_of

log = logging.getLogger(__name__)
PARTITION = "train"


class Grader:
    """Grades responses in the main thread of a process of its own, where the grader's time limits work."""

    def grade(self, texts: list[str], answers: list[str]) -> list[float]:
        """1.0 for each text that holds its answer, else 0.0."""
        from redraft.tasks.grading import is_correct

        return [float(is_correct(text, answer)) for text, answer in zip(texts, answers, strict=True)]


class GroupWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Rolls out prompts with the run's strategy and hands the groups to verl and to the draft store.

    Args:
        config: complete, with the run under `redraft`.
    """

    def __init__(self, config: DictConfig, *args: Any) -> None:
        super().__init__(config, *args)
        self.run = Run.model_validate(OmegaConf.to_container(config.redraft.run))
        self.strategy = strategy(self.run.reuse)
        problems = read_problems(Path(config.data.train_files[0]))
        self.prompts = encode(self.tokenizer, [problem.prompt for problem in problems])
        self.answers = [problem.answer for problem in problems]
        self.stops = stop_tokens(self.model_config, self.tokenizer)
        # A handle keeps its actor alive; one that is looked up anew for each call would not.
        self.shards = [ray.get_actor(name_of(i)) for i in range(config.redraft.shards)]
        self.grader: Any = ray.remote(Grader).options(max_restarts=-1, max_task_retries=2).remote()

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """Roll out one prompt. A group is handed over whole; one that fails is noted, and ends the run."""
        uid, index = prompt["uid"], int(prompt["extra_info"]["index"])
        try:
            await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": "running"})
            group = await self._group(index, int(prompt["generation_step"]), int(prompt["epoch"]))
            await self._hand_over(prompt, group)
            await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": "finished"})
        except Exception as error:
            log.exception("prompt %s could not be rolled out", index)
            await self._shard(index).fail.remote(f"prompt {index}: {type(error).__name__}: {error}")

    def _shard(self, index: int) -> Any:
        return self.shards[index % len(self.shards)]

    async def _group(self, index: int, step: int, epoch: int) -> Group:
        """The finished group of a prompt."""
        context = await self._context(index, step, epoch)
        engine = self._engine()
        rollouts = await self.strategy(index, self.prompts[index], engine, context)
        began = time.perf_counter()
        rewards = await self._rewards(rollouts)
        usage = engine.usage
        seconds = {
            "verification": usage.verification_seconds, "rollout": usage.decoding_seconds,
            "assembly": context.assembly_seconds, "reward": time.perf_counter() - began,
        }  # fmt: skip
        return Group(step, epoch, rollouts, rewards, seconds, context.cached_tokens)

    def _engine(self) -> VLLMEngine:
        return VLLMEngine(self.llm_client, self.stops, max_length=self.rollout_config.max_model_len)

    async def _context(self, index: int, step: int, epoch: int) -> Context:
        """What the strategy needs to know, with the drafts that it may use."""
        trainer, drafts = self.run.trainer, DraftStore()
        earlier = list(range(max(epoch - epochs_kept(self.run.reuse), 0), epoch))
        kept = await self._shard(index).find.remote(index, trainer.group_size, earlier) if earlier else []
        for found, arrays in kept:
            for draft in unpack(arrays):
                drafts.put(draft, found)
        return Context(self.run.seed, step, epoch, trainer.group_size, trainer.max_response_tokens, drafts)

    async def _rewards(self, rollouts: list[Rollout]) -> np.ndarray:
        """Rewards of rollouts, float32 (rollouts,), before any shaping."""
        texts = self.tokenizer.batch_decode([r.tokens for r in rollouts], skip_special_tokens=True)
        answers = [self.answers[r.prompt] for r in rollouts]
        return np.array(await self.grader.grade.remote(texts, answers), dtype=np.float32)

    async def _hand_over(self, prompt: dict[str, Any], group: Group) -> None:
        """Give verl a group to train on, and the store its drafts."""
        lengths = np.array([rollout.length for rollout in group.rollouts])
        final = shaped(self.run.algorithm, group.rewards, lengths, self.run.trainer.max_response_tokens)
        for rollout, reward, accuracy in zip(group.rollouts, final, group.rewards, strict=True):
            output = self._output(rollout, float(reward), float(accuracy), int(prompt["global_steps"]))
            await self._agent_loop_postprocess(output, False, session_id=rollout.sample, **prompt)
        index = group.rollouts[0].prompt
        await self._shard(index).finish.remote(group.packed())

    def _output(self, rollout: Rollout, reward: float, accuracy: float, global_step: int) -> AgentLoopOutput:
        """A rollout as verl trains on it.

        `response_logprobs` are those of the policy that sampled each token, which for a reused one is an older policy.
        """
        fields = {
            "reward_extra_info": {"acc": accuracy}, "prefix_length": rollout.prefix_length, "turn_scores": [],
            "tool_rewards": [], "min_global_steps": global_step - 1, "max_global_steps": global_step - 1,
        }  # fmt: skip
        return AgentLoopOutput(
            prompt_ids=self.prompts[rollout.prompt], response_ids=rollout.tokens.tolist(),
            response_mask=[1] * rollout.length, response_logprobs=rollout.log_probs.tolist(), reward_score=reward,
            num_turns=2, metrics=AgentLoopMetrics(), extra_fields=fields,
        )  # fmt: skip

    async def fresh_rewards(self, prompts: list[int], step: int) -> list[float]:
        """Rewards of new samples of the current policy on these prompts, not trained on."""
        trainer = self.run.trainer
        context = Context(self.run.seed, step, 0, trainer.fresh_samples, trainer.max_response_tokens, purpose="fresh")
        engine = self._engine()
        groups = await asyncio.gather(*(vanilla(i, self.prompts[i], engine, context) for i in prompts))
        return (await self._rewards([rollout for group in groups for rollout in group])).tolist()


@ray.remote
class WorkerProcess:
    """The process of a `GroupWorker`; Ray cannot make one of a class that derives from a remote one."""

    def __init__(self, *args: Any) -> None:
        self.worker = GroupWorker(*args)

    async def generate_sequences(self, batch: Any) -> None:
        """Start rolling out a batch of prompts."""
        await self.worker.generate_sequences(batch)

    async def fresh_rewards(self, prompts: list[int], step: int) -> list[float]:
        """See `GroupWorker.fresh_rewards`."""
        return await self.worker.fresh_rewards(prompts, step)

    async def check(self) -> None:
        """Answer, if there is someone to."""
