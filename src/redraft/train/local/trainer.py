"""The local trainer: one process, one model, every method and algorithm in miniature.

Rollouts come from the in-process engine, losses are verl's. Responses are graded in worker processes while the engine
decodes others.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from redraft.config.capability import Capability
from redraft.config.experiment import Run
from redraft.engines.torch.loop import Outside, now
from redraft.files import sha256
from redraft.methods.drafts.response import indices
from redraft.methods.vanilla import vanilla
from redraft.ops.locking.lease import Lease
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Rollout, Task
from redraft.tasks.problems import check_answers, load_problems
from redraft.tasks.prompts import check_lengths, encode
from redraft.train import models
from redraft.train.contract import FreshSamples, Metrics, RolloutResult, UpdateResult
from redraft.train.local.decoding import open_decoding
from redraft.train.local.grading import Graders
from redraft.train.local.learner import Batch, Learner
from redraft.train.local.tensors import restore_parts, save_parts
from redraft.train.loop import Progress, TrainingLoop, inputs_of
from redraft.train.pretrained.memory_check import available, check_memory, training
from redraft.train.pretrained.precision import dtype_of, rounded
from redraft.train.records import StageClock

MEMORY = "memory.arrow"


class LocalTrainer:
    """Trains one run.

    Args:
        model_folder: the initial policy in transformers' format; the reference policy too.
        folder: for the run's files; a checkpoint there is resumed from.
    """

    def __init__(self, run: Run, model_folder: Path, folder: Path, commit: str | None = None) -> None:
        torch.set_num_threads(run.engine.threads)
        self.run, self.commit = run, commit
        self.problems = load_problems(run.data)
        check_answers(self.problems, run.grading, "data")
        self.device = models.device_of(run.engine.device)
        self.tokenizer = models.load_tokenizer(model_folder)
        self.prompts = encode(self.tokenizer, [problem.prompt for problem in self.problems])
        check_lengths(self.prompts, run.trainer.max_prompt_tokens)
        longest = max(map(len, self.prompts))
        check_memory(training(run, model_folder, longest, self.device), available(self.device), model_folder)
        model, _ = models.load(model_folder)
        self.inputs = inputs_of(model_folder, self.problems)
        if run.calibration:
            self.inputs["calibration"] = sha256(run.calibration)
        self.loop = TrainingLoop(run, folder, self.inputs, len(self.problems))
        self.learner = Learner(run, model, model_folder, self.device, self.tokenizer.eos_token_id)
        self.memory = Memory(run.reuse.retention)
        self.strategy = run.reuse.strategy()
        self.scores_drafts = Capability.TRAINER_SCORES in run.reuse.needs
        answers = [problem.answer for problem in self.problems]
        self.graders = Graders(answers, self.tokenizer, run.engine.grading_workers, run.reward)
        # After the learner, which has moved the policy to its device.
        self.decoding = open_decoding(run, self.learner.policy, longest)
        self.engine = self.decoding.engine

    def train(self, progress: Progress = lambda *_: None, lease: Lease | None = None) -> None:
        """Take all steps that are not done yet; see `TrainingLoop.prepare` and `TrainingLoop.train`."""
        self.loop.prepare(self.commit, lease)
        self.loop.restore(self)
        with self.graders:
            self.loop.train(self, progress)

    @property
    def no_update(self) -> Metrics:
        """Metrics of a step that only rolls out."""
        return self.learner.metrics_without_update

    def now(self) -> float:
        """Processor seconds of this process on a CPU; on a GPU wall seconds, after all its work is finished."""
        return now(self.device)

    def roll_out(self, tasks: Sequence[Task], step: int) -> RolloutResult:
        """Roll out a batch and remember it."""
        result = self.rehearse(tasks, step)
        for group in result.groups:
            self.memory.put(group)
        learnt = self.decoding.adapt(result.groups, self.prompts)
        return replace(result, measured={**result.measured, **learnt})

    def rehearse(self, tasks: Sequence[Task], step: int) -> RolloutResult:
        """Roll out a batch without a lasting effect: the same tasks at the same step give the same rollouts again.

        The stage `rollout` includes decoding, scheduling and prefill, as in the paper.
        """
        clock, meter, outside = StageClock(self.now), Meter(), Outside()
        worked = self.graders.seconds
        scores = self._scores(tasks, clock) if self.scores_drafts else {}
        context = self._context(Streams(self.run.seed, step), meter, outside, scores)
        before, began = self.engine.usage.verification_seconds, self.now()
        groups = self.engine.run(*(self.strategy(task, context) for task in tasks), outside=outside)
        total, grading = self.now() - began, self.graders.seconds - worked
        verification = self.engine.usage.verification_seconds - before
        # On a CPU, seconds are processor seconds. This process uses none while it waits for rewards, so the waiting
        # time is added, but at most the graders' processor time: a busy machine must not make a step look longer.
        unseen = min(outside.seconds, grading) if self.device.type == "cpu" else 0.0
        reward = unseen if self.device.type == "cpu" else outside.seconds
        rollout = total + unseen - reward - verification - meter.assembly_seconds
        clock.add(
            {"verification": verification, "assembly": meter.assembly_seconds, "reward": reward, "rollout": rollout}
        )
        return RolloutResult(groups, clock.seconds, meter.cached_tokens, grading, unseen, self.decoding.measured())

    def _context(
        self, streams: Streams, meter: Meter, outside: Outside, scores: dict[tuple[int, int], np.ndarray]
    ) -> RolloutContext:
        async def reward(prompt: int, rollouts: Sequence[Rollout]) -> np.ndarray:
            return await outside.wait(self.graders.grade(prompt, rollouts))

        limit = self.run.trainer.max_response_tokens
        return RolloutContext(self.engine, reward, self.memory, meter, streams, self.prompts, limit, scores)

    def _scores(self, tasks: Sequence[Task], clock: StageClock) -> dict[tuple[int, int], np.ndarray]:
        """Log-probabilities of drafts under the current policy, computed by the training engine."""
        with torch.no_grad(), clock.stage("verification"):
            drafts: list[Rollout] = []
            for task in tasks:
                made, kept = indices(task), self.memory.drafts(task.prompt, before=task.visit)
                drafts += [draft for sample, draft in kept.items() if sample in made]
            if not drafts:
                return {}
            batch = Batch.of([self.prompts[d.prompt] for d in drafts], drafts, self.learner.pad, self.device)
            log_probs = self.learner.log_probs(self.learner.policy, batch)[0].cpu().numpy()
            return {(d.prompt, d.sample): row[: d.length] for d, row in zip(drafts, log_probs, strict=True)}

    def update(self, groups: Sequence[Group]) -> UpdateResult:
        """Update policy and critic."""
        clock = StageClock(self.now)
        # The loop has already counted this update.
        self.learner.warm_up(self.loop.state.training_step - 1)
        metrics = self.learner.update(groups, self.prompts, clock)
        return UpdateResult(metrics, clock.seconds)

    def publish(self) -> None:
        """Refresh the engine's weights from the updated policy."""
        self.decoding.publish()

    def fresh(self, tasks: Sequence[Task], step: int) -> FreshSamples:
        """Measure new samples of the current policy; the KL divergence is exact, over the full vocabulary."""
        meter, outside = Meter(), Outside()
        # Separate streams: with the rollouts' numbers the samples would be correlated with those that are trained on.
        context = self._context(Streams(self.run.seed, step, "fresh"), meter, outside, {})
        groups = self.engine.run(*(vanilla(task, context) for task in tasks), outside=outside)
        rewards = [reward for group in groups for reward in group.rewards.tolist()]
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        return FreshSamples(rewards, self.learner.divergence(rollouts, self.prompts))

    def save(self, folder: Path) -> None:
        """Write models, optimizers, random state, memory and the decoding's state."""
        save_parts(folder, self.learner.parts | self.decoding.parts)
        self.memory.save(folder / MEMORY)
        self.decoding.save(folder)

    def restore(self, folder: Path) -> None:
        """Load what `save` wrote."""
        restore_parts(folder, self.learner.parts | self.decoding.parts)
        self.memory = Memory.load(folder / MEMORY, self.run.reuse.retention)
        self.decoding.restore(folder)

    def save_policy(self, checkpoint: Path, folder: Path) -> None:
        """Write the policy in transformers' format, in the precision of rollouts."""
        models.save(rounded(self.learner.policy, dtype_of(self.run.engine)), self.tokenizer, folder)
