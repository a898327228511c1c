"""The local trainer: one process, one model, every method and algorithm in miniature.

A step rolls out a batch of prompts with the run's strategy, rewards it, and updates the policy with verl's losses.
What a step did is one record; what it produced is one Parquet file; a checkpoint makes both resumable.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.config.experiment import Run
from redraft.config.identity import fingerprint, run_fingerprint
from redraft.config.reuse import ReleaseVariant
from redraft.errors import UserError
from redraft.files import sha256
from redraft.ops.lease import Lease
from redraft.rollout.strategies import Context, strategy, vanilla
from redraft.rollout.streams import stream
from redraft.rollout.types import Rollout
from redraft.tasks.grading import is_correct
from redraft.tasks.problems import load_problems
from redraft.tasks.prompts import encode
from redraft.train import models
from redraft.train.batch import Batch
from redraft.train.checkpoint import Checkpoints, State, append_record, truncate_records
from redraft.train.gather import gather
from redraft.train.learner import Learner
from redraft.train.losses import shaped
from redraft.train.records import describe, save_rollouts_of_step
from redraft.train.run_folder import RunFolder
from redraft.train.stages import StageClock

Progress = Callable[[int, int, dict[str, Any]], None]
"""Called after each step with (steps done, steps in all, the step's record)."""


class LocalTrainer:
    """Trains one run.

    Args:
        run: what to train.
        model_folder: the initial policy in transformers' format; the reference policy too.
        folder: where the run's files go; a checkpoint there is resumed from.
        commit: of the code, for the record.
    """

    def __init__(self, run: Run, model_folder: Path, folder: Path, commit: str | None = None) -> None:
        torch.set_num_threads(run.engine.threads)
        self.run, self.folder, self.commit = run, RunFolder(folder), commit
        self.device = models.device_of(run.engine.device)
        model, self.tokenizer = models.load(model_folder)
        self.learner = Learner(run, model, model_folder, self.device)
        self.problems = load_problems(run.data)
        self.inputs = {
            "initial_policy": sha256(model_folder / "model.safetensors"),
            "problems": fingerprint([[problem.prompt, problem.answer] for problem in self.problems]),
        }
        self.prompts = encode(self.tokenizer, [problem.prompt for problem in self.problems])
        trainer = run.trainer
        if len(self.problems) % trainer.prompts_per_step:
            raise UserError(
                "prompts_per_step must divide the number of problems",
                key="trainer.prompts_per_step",
                value=trainer.prompts_per_step,
                allowed=f"divisors of {len(self.problems)}",
            )
        self.steps_per_epoch, self.steps = trainer.steps_per_epoch(len(self.problems)), run.steps
        self.strategy = strategy(run.reuse)
        self.state = State()
        self.lease: Lease | None = None
        self.engine = self._engine()

    def _engine(self) -> Any:
        from redraft.engines.torch_engine import TorchEngine

        longest = max(map(len, self.prompts)) + self.run.trainer.max_response_tokens
        settings = self.run.engine
        return TorchEngine(
            self.learner.policy, stops=models.stop_tokens(self.learner.policy, self.tokenizer), max_length=longest,
            max_rows=settings.max_rows, max_batched_tokens=settings.max_batched_tokens,
        )  # fmt: skip

    def train(self, progress: Progress = lambda *_: None, lease: Lease | None = None) -> None:
        """Run all steps that are not done yet; policies are kept at the steps that are evaluated, the last included.

        Args:
            progress: called after each step.
            lease: of the folder, without which nobody makes sure that no other process works in it.

        Raises:
            LeaseLost: if another process has taken the folder.
            UserError: if the folder holds another experiment, or a finished run without its last checkpoint.
        """
        self.lease = lease
        identity = run_fingerprint(self.run)
        checkpoints = Checkpoints(self.folder.checkpoints(identity), identity, self.inputs)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self.state = checkpoints.restore(self.learner.parts)
        if state.step < self.steps:
            self.folder.keep_finished(identity, self.inputs)
        if lease:
            lease.resumed_from(state.step)
        self.folder.keep_checkpoints(identity)
        truncate_records(self.folder.records, state.step)
        self.folder.truncate_rollouts(state.step)
        evaluated = self.run.evaluated_steps
        self.folder.keep_policies([step for step in evaluated if step <= state.step])
        if state.step < self.steps and self.commit not in state.commits:
            state.commits.append(self.commit)
        while state.step < self.steps:
            began = time.perf_counter()
            record = self.step(state.step)
            self._check_lease()
            append_record(self.folder.records, record)
            state.step, state.seconds = state.step + 1, state.seconds + time.perf_counter() - began
            if state.step in evaluated:
                models.save(self.learner.policy, self.tokenizer, self.folder.policy(state.step))
            if state.step % self.run.engine.checkpoint_every == 0 or state.step == self.steps:
                self._check_lease()
                checkpoints.save(state, self.learner.parts)
            progress(state.step, self.steps, record)

    def _check_lease(self) -> None:
        if self.lease:
            self.lease.check()

    def step(self, step: int) -> dict[str, Any]:
        """One step: roll out, reward, and update if there is enough to update from; returns its record."""
        clock = StageClock(self.device)
        epoch, position = divmod(step, self.steps_per_epoch)
        trainer, size = self.run.trainer, self.run.trainer.prompts_per_step
        order = stream(self.run.seed, "order", epoch).permutation(len(self.problems))
        chosen = [int(i) for i in order[position * size : (position + 1) * size]]
        context = self._context(step, epoch, trainer.group_size, "rollout")
        rollouts = self._roll_out(chosen, context, clock)
        with clock.stage("reward"):
            rewards = self._rewards(rollouts)
        enough = gather(self.run.algorithm, self.state, rollouts, rewards, trainer.group_size, size)
        update = self._update(*enough, clock) if enough else self.learner.metrics_without_update
        for rollout in rollouts:
            self.state.drafts.put(rollout, epoch)
        self._check_lease()
        save_rollouts_of_step(self.folder.rollouts(step), epoch, rollouts, rewards)
        with clock.excluded():
            fresh = self._fresh_reward(chosen, step, epoch)
        return {
            "step": step, "epoch": epoch, "training_step": self.state.training_step, "updated": enough is not None,
            **describe(rollouts, rewards, step, self.steps_per_epoch, trainer.group_size),
            "tokens_cached": context.cached_tokens, "fresh_reward": fresh, **update, "seconds": clock.finish(),
        }  # fmt: skip

    def _context(self, step: int, epoch: int, group_size: int, purpose: str) -> Context:
        limit = self.run.trainer.max_response_tokens
        return Context(self.run.seed, step, epoch, group_size, limit, self.state.drafts, purpose)

    def _roll_out(self, chosen: Sequence[int], context: Context, clock: StageClock) -> list[Rollout]:
        """Rollouts of a batch; decoding, scheduling and prefill count as rollout, as in the paper."""
        if isinstance(self.run.reuse, ReleaseVariant) and self.run.reuse.trainer_verification:
            with torch.no_grad(), clock.stage("verification"):
                context.scores = self._scores(chosen, context)
        before, began = self.engine.usage.verification_seconds, clock.now()
        groups = self.engine.run(*(self.strategy(i, self.prompts[i], self.engine, context) for i in chosen))
        total = clock.now() - began
        verification = self.engine.usage.verification_seconds - before
        clock.seconds["verification"] += verification
        clock.seconds["assembly"] = context.assembly_seconds
        clock.seconds["rollout"] = total - verification - context.assembly_seconds
        return [rollout for group in groups for rollout in group]

    def _scores(self, chosen: Sequence[int], context: Context) -> dict[tuple[int, int], np.ndarray]:
        """Log-probabilities of the last epoch's rollouts under the current policy, by the training engine."""
        keys = [(prompt, sample) for prompt in chosen for sample in range(context.group_size)]
        found = [context.drafts.get(prompt, sample, context.epoch - 1) for prompt, sample in keys]
        drafts = [draft for draft in found if draft]
        if not drafts:
            return {}
        batch = Batch.of([self.prompts[d.prompt] for d in drafts], drafts, self.tokenizer.eos_token_id, self.device)
        log_probs = self.learner.log_probs(self.learner.policy, batch)[0].cpu().numpy()
        return {(d.prompt, d.sample): row[: d.length] for d, row in zip(drafts, log_probs, strict=True)}

    def _rewards(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        texts = self.tokenizer.batch_decode([r.tokens for r in rollouts], skip_special_tokens=True)
        answers = [self.problems[r.prompt].answer for r in rollouts]
        return np.array([float(is_correct(t, a)) for t, a in zip(texts, answers, strict=True)], dtype=np.float32)

    def _update(self, rollouts: Sequence[Rollout], rewards: np.ndarray, clock: StageClock) -> dict[str, Any]:
        """Update from whole groups, one after the other."""
        trainer = self.run.trainer
        self.state.training_step += 1
        lengths = np.array([rollout.length for rollout in rollouts])
        groups = np.arange(len(rollouts)) // trainer.group_size
        batch = Batch.of([self.prompts[r.prompt] for r in rollouts], rollouts, self.tokenizer.eos_token_id, self.device)
        final = shaped(self.run.algorithm, rewards, lengths, trainer.max_response_tokens)
        return self.learner.update(batch, final, groups, clock)

    def _fresh_reward(self, chosen: Sequence[int], step: int, epoch: int) -> float | None:
        """Mean reward of new samples of the updated policy: a reused rollout's reward says what the old one could."""
        count = self.run.trainer.fresh_samples
        if not count:
            return None
        context = self._context(step, epoch, count, "fresh")
        groups = self.engine.run(*(vanilla(i, self.prompts[i], self.engine, context) for i in chosen))
        return float(self._rewards([rollout for group in groups for rollout in group]).mean())
