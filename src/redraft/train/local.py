"""The local trainer: one process, one model, every method and algorithm in miniature.

A step rolls out a batch of prompts with the run's strategy, rewards it, and updates the policy with verl's losses.
What a step did is one record; what it produced is one Parquet file; a checkpoint makes both resumable.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from redraft.config.experiment import Run
from redraft.config.identity import fingerprint, run_fingerprint
from redraft.errors import UserError
from redraft.files import atomic, sha256
from redraft.rollout.strategies import Context, strategy, vanilla
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Rollout
from redraft.tasks.grading import is_correct
from redraft.tasks.problems import load_problems
from redraft.train import models
from redraft.train.batch import Batch
from redraft.train.checkpoint import Checkpoints, State, append_record, truncate_records
from redraft.train.losses import PolicyLoss, advantages
from redraft.train.stages import StageClock

Progress = Callable[[int, int, dict[str, Any]], None]
"""Called after each step with (steps done, steps in all, the step's record)."""


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files."""

    path: Path

    @property
    def records(self) -> Path:
        """One JSON line a step."""
        return self.path / "steps.jsonl"

    @property
    def policy(self) -> Path:
        """The final model in transformers' format."""
        return self.path / "policy"

    def checkpoints(self, fingerprint: str) -> Path:
        """Checkpoints of the experiment with that fingerprint, so that a changed one starts anew."""
        return self.path / "checkpoints" / fingerprint

    def rollouts(self, step: int) -> Path:
        """What a step rolled out."""
        return self.path / "rollouts" / f"step-{step:04d}.parquet"

    def truncate_rollouts(self, count: int) -> None:
        """Keep those of the first `count` steps: a longer experiment's would be measured with this one's."""
        kept = {self.rollouts(step) for step in range(count)}
        for other in set(self.rollouts(0).parent.glob("step-*.parquet")) - kept:
            other.unlink()


class LocalTrainer:
    """Trains one run.

    Args:
        run: what to train.
        model_folder: the initial policy in transformers' format; the reference policy too.
        folder: where the run's files go; a checkpoint there is resumed from.
    """

    def __init__(self, run: Run, model_folder: Path, folder: Path) -> None:
        torch.set_num_threads(run.engine.threads)
        self.run, self.folder = run, RunFolder(folder)
        self.device = models.device_of(run.engine.device)
        self.model, self.tokenizer = models.load(model_folder)
        self.model.to(self.device)
        self.reference = models.load(model_folder)[0].to(self.device).eval().requires_grad_(False)
        self.problems = load_problems(run.data)
        self.inputs = {
            "initial_policy": sha256(model_folder / "model.safetensors"),
            "problems": fingerprint([[problem.prompt, problem.answer] for problem in self.problems]),
        }
        self.prompts = self.tokenizer([problem.prompt for problem in self.problems])["input_ids"]
        trainer = run.trainer
        if len(self.problems) % trainer.prompts_per_step:
            raise UserError(
                "prompts_per_step must divide the number of problems",
                key="trainer.prompts_per_step",
                value=trainer.prompts_per_step,
                allowed=f"divisors of {len(self.problems)}",
            )
        self.steps_per_epoch = len(self.problems) // trainer.prompts_per_step
        self.steps = trainer.epochs * self.steps_per_epoch
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=trainer.learning_rate, weight_decay=trainer.weight_decay
        )
        self.loss = PolicyLoss(run.algorithm)
        self.strategy = strategy(run.method)
        self.state = State()
        self.engine = self._engine()

    def _engine(self) -> Any:
        from redraft.engines.torch_engine import TorchEngine

        longest = max(map(len, self.prompts)) + self.run.trainer.max_response_tokens
        settings = self.run.engine
        return TorchEngine(
            self.model, eos=self.tokenizer.eos_token_id, max_length=longest, max_rows=settings.max_rows,
            max_batched_tokens=settings.max_batched_tokens,
        )  # fmt: skip

    def train(self, progress: Progress = lambda *_: None) -> None:
        """Run all steps that are not done yet, then save the policy."""
        identity = run_fingerprint(self.run)
        checkpoints = Checkpoints(self.folder.checkpoints(identity), identity, self.inputs)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        state = self.state = checkpoints.restore(self.model, self.optimizer)
        checkpoints.remove_others()
        truncate_records(self.folder.records, state.step)
        self.folder.truncate_rollouts(state.step)
        while state.step < self.steps:
            began = time.perf_counter()
            record = self.step(state.step)
            append_record(self.folder.records, record)
            state.step, state.seconds = state.step + 1, state.seconds + time.perf_counter() - began
            if state.step % self.run.engine.checkpoint_every == 0 or state.step == self.steps:
                checkpoints.save(state, self.model, self.optimizer)
            progress(state.step, self.steps, record)
        models.save(self.model, self.tokenizer, self.folder.policy)

    def step(self, step: int) -> dict[str, Any]:
        """One step: roll out, reward, update; returns its record."""
        clock = StageClock(self.device)
        epoch, position = divmod(step, self.steps_per_epoch)
        size = self.run.trainer.prompts_per_step
        order = stream(self.run.seed, "order", epoch).permutation(len(self.problems))
        chosen = [int(i) for i in order[position * size : (position + 1) * size]]
        context = self._context(step, epoch, self.run.trainer.group_size, "rollout")
        usage, rollouts = self._roll_out(chosen, context, clock)
        with clock.stage("reward"):
            rewards = self._rewards(rollouts)
        batch = Batch.of([self.prompts[r.prompt] for r in rollouts], rollouts, self.engine.eos, self.device)
        update = self._update(batch, rewards, np.array([r.prompt for r in rollouts]), clock)
        for rollout in rollouts:
            self.state.drafts.put(rollout, epoch)
        self._save_rollouts(step, epoch, rollouts, rewards)
        with clock.excluded():
            fresh = self._fresh_reward(chosen, step, epoch)
        return {
            "step": step, "epoch": epoch, **_describe(rollouts, step, self.steps_per_epoch), **usage,
            "reward": float(rewards.mean()), "fresh_reward": fresh, **update, "seconds": clock.finish(),
        }  # fmt: skip

    def _context(self, step: int, epoch: int, group_size: int, purpose: str) -> Context:
        limit = self.run.trainer.max_response_tokens
        return Context(self.run.seed, step, epoch, group_size, limit, self.state.drafts, purpose)

    def _roll_out(self, chosen: Sequence[int], context: Context, clock: StageClock) -> tuple[dict, list[Rollout]]:
        """Rollouts of a batch; decoding, scheduling and prefill count as rollout, as in the paper."""
        before = (self.engine.usage.verification_seconds, self.engine.usage.scored_tokens)
        began = clock.now()
        groups = self.engine.run(*(self.strategy(i, self.prompts[i], self.engine, context) for i in chosen))
        total = clock.now() - began
        verification = self.engine.usage.verification_seconds - before[0]
        clock.seconds["verification"] = verification
        clock.seconds["assembly"] = context.assembly_seconds
        clock.seconds["rollout"] = total - verification - context.assembly_seconds
        scored = self.engine.usage.scored_tokens - before[1]
        return {"tokens_verified": scored}, [rollout for group in groups for rollout in group]

    def _rewards(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        texts = self.tokenizer.batch_decode([r.tokens for r in rollouts], skip_special_tokens=True)
        answers = [self.problems[r.prompt].answer for r in rollouts]
        return np.array([float(is_correct(t, a)) for t, a in zip(texts, answers, strict=True)], dtype=np.float32)

    def _update(self, batch: Batch, rewards: np.ndarray, groups: np.ndarray, clock: StageClock) -> dict[str, Any]:
        with torch.no_grad(), clock.stage("old_log_probs"):
            old, entropy = self._all_log_probs(self.model, batch, entropy=True)
        with torch.no_grad(), clock.stage("ref"):
            ref, _ = self._all_log_probs(self.reference, batch)
        with clock.stage("adv"):
            rewards_tensor = torch.from_numpy(rewards).to(self.device)
            advantage = advantages(self.run.algorithm, rewards_tensor, batch.mask, groups)
        with clock.stage("update_actor"):
            metrics = self._update_actor(batch, old, ref, advantage)
        return {"entropy": float(entropy.sum() / batch.mask.sum()), **metrics}

    def _all_log_probs(self, model: Any, batch: Batch, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (zero unless asked for), float32 (rows, longest response)."""
        model.eval()
        log_probs, entropies = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
        everything = torch.arange(len(batch.mask), device=self.device)
        for rows, part in batch.parts(everything, self.run.engine.rows_per_micro_batch):
            log_probs[rows], entropy_of_part = part.log_probs(model, entropy)
            if entropy_of_part is not None:
                entropies[rows] = entropy_of_part
        return log_probs, entropies

    def _update_actor(self, batch: Batch, old: torch.Tensor, ref: torch.Tensor, advantage: torch.Tensor) -> dict:
        """One optimiser update a mini-batch, in the order of the batch, as verl does without shuffling.

        Raises:
            UserError: before an update that is not finite.
        """
        self.model.train()
        size = self.run.trainer.prompts_per_update * self.run.trainer.group_size
        totals = {"loss": 0.0, "kl": 0.0, "clip_fraction": 0.0}
        norms = []
        for mini in torch.arange(len(batch.mask), device=self.device).split(size):
            whole = {"batch_num_tokens": batch.mask[mini].sum(), "global_batch_size": len(mini)}
            self.optimizer.zero_grad(set_to_none=True)
            for rows, part in batch.parts(mini, self.run.engine.rows_per_micro_batch):
                log_probs, _ = part.log_probs(self.model)
                result = self.loss(log_probs, old[rows], ref[rows], advantage[rows], part.mask, whole)
                result.loss.backward()
                totals["loss"] += float(result.loss.detach())
                share = float(part.mask.sum() / batch.mask.sum())
                totals["kl"] += result.kl * share
                totals["clip_fraction"] += result.clip_fraction * share
            norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.trainer.gradient_clip)))
            self._refuse_divergence({**totals, "gradient norm": norms[-1]})
            self.optimizer.step()
        return {"kl": totals["kl"], "clip_fraction": totals["clip_fraction"], "gradient_norm": float(np.mean(norms))}

    def _refuse_divergence(self, update: dict[str, float]) -> None:
        for quantity, value in update.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the policy has diverged: the {quantity} of an update is {value}",
                    key="trainer.learning_rate",
                    value=self.run.trainer.learning_rate,
                    allowed="a smaller one",
                )

    def _fresh_reward(self, chosen: Sequence[int], step: int, epoch: int) -> float | None:
        """Mean reward of new samples of the updated policy: a reused rollout's reward says what the old one could."""
        count = self.run.trainer.fresh_samples
        if not count:
            return None
        context = self._context(step, epoch, count, "fresh")
        groups = self.engine.run(*(vanilla(i, self.prompts[i], self.engine, context) for i in chosen))
        return float(self._rewards([rollout for group in groups for rollout in group]).mean())

    def _save_rollouts(self, step: int, epoch: int, rollouts: Sequence[Rollout], rewards: np.ndarray) -> None:
        frame = pd.DataFrame(
            {
                "epoch": epoch,
                "prompt": [r.prompt for r in rollouts],
                "sample": [r.sample for r in rollouts],
                "tokens": [r.tokens for r in rollouts],
                "sampled_at": [r.sampled_at for r in rollouts],
                "prefix_length": [r.prefix_length for r in rollouts],
                "draft_length": [r.draft_length for r in rollouts],
                "finish": [str(r.finish) for r in rollouts],
                "reward": rewards,
            }
        )
        with atomic(self.folder.rollouts(step)) as temporary:
            frame.to_parquet(temporary, index=False)


def _describe(rollouts: Sequence[Rollout], step: int, steps_per_epoch: int) -> dict[str, Any]:
    """Counts and means over a batch; those about drafts are None where no rollout had one."""
    drafted = [r for r in rollouts if r.draft_length]
    lengths = np.array([r.length for r in rollouts])
    ages = step - np.concatenate([r.sampled_at for r in rollouts])
    return {
        "rollouts": len(rollouts),
        "tokens_decoded": sum(r.decoded for r in rollouts),
        "tokens_reused": sum(r.prefix_length for r in rollouts),
        "response_length": float(lengths.mean()),
        "truncated": float(np.mean([r.finish is Finish.LENGTH for r in rollouts])),
        "prefix_length": float(np.mean([r.prefix_length for r in drafted])) if drafted else None,
        "full_reuse_ratio": float(np.mean([r.fully_reused for r in drafted])) if drafted else None,
        "token_age_epochs": float(ages.mean()) / steps_per_epoch,
    }
