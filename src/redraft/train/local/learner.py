"""Policy and, for PPO, critic; one call updates them from graded groups, which may differ in size."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.errors import UserError
from redraft.rollout.types import Group, OldLogProbs, Rollout, Use
from redraft.train import models
from redraft.train.local.batch import Batch
from redraft.train.losses import WEIGHTS, PolicyLoss, advantages, importance_weights, shaped, value_loss
from redraft.train.pretrained.precision import computing_in, dtype_of
from redraft.train.records import StageClock

NO_UPDATE: dict[str, float | None] = dict.fromkeys(("entropy", "drift", "kl", "clip_fraction", "gradient_norm"))
"""Metrics of a step without an update."""
CRITIC = ("critic_loss", "critic_gradient_norm")
"""Further metrics of an update with a critic."""

MiniBatch = tuple[torch.Tensor, dict[str, Any]]
"""Row indices, int64 (n,), and verl's `batch_num_tokens` and `global_batch_size` of the rows that are trained on."""


class Learner:
    """Policy, reference policy and critic of a run.

    Args:
        policy: the initial policy; it is trained in place.
        model_folder: the model that policy, reference policy and critic start from.
        pad: token that fills rows after the end of a response.
    """

    def __init__(self, run: Run, policy: Any, model_folder: Path, device: torch.device, pad: int) -> None:
        self.run, self.policy, self.device, self.pad = run, policy.to(device), device, pad
        self.loss, self.dtype = PolicyLoss(run.algorithm), dtype_of(run.engine)
        self.importance = run.reuse.importance
        self.parts: dict[str, Any] = {"model": self.policy, "optimizer": self._adamw(self.policy, 1.0)}
        self.reference = self.critic = None
        if run.algorithm.kl_loss_coef:
            # In float32 like the policy's weights, so that both are rounded alike and the divergence starts at 0.
            self.reference = models.load(model_folder)[0].to(device).eval().requires_grad_(False)
        if isinstance(run.algorithm, PPO):
            self.critic = models.load_critic(model_folder, run.seed).to(device)
            self.parts["critic"] = self.critic
            self.parts["critic_optimizer"] = self._adamw(self.critic, run.algorithm.critic_learning_rate_ratio)

    def _adamw(self, model: Any, ratio: float) -> torch.optim.AdamW:
        trainer = self.run.trainer
        # One kernel reads each weight, gradient and moment once; the default takes eight times as long on a processor.
        return torch.optim.AdamW(
            model.parameters(), lr=trainer.learning_rate * ratio, weight_decay=trainer.weight_decay, fused=True
        )

    def warm_up(self, batches: int) -> None:
        """Set the learning rates of the next update.

        Args:
            batches: number of earlier update batches; the rates rise linearly with it, from 0, as in verl.
        """
        steps, rate = self.run.trainer.warmup_steps, self.run.trainer.learning_rate
        share = min(batches / steps, 1.0) if steps else 1.0
        rates = {"optimizer": rate * share}
        if isinstance(self.run.algorithm, PPO):
            rates["critic_optimizer"] = rate * share * self.run.algorithm.critic_learning_rate_ratio
        for optimizer, warmed in rates.items():
            for group in self.parts[optimizer].param_groups:
                group["lr"] = warmed

    @property
    def metrics_without_update(self) -> dict[str, float | None]:
        """Metrics of a step without an update."""
        weights = WEIGHTS if self.importance else ()
        return NO_UPDATE | (dict.fromkeys(CRITIC) if self.critic else {}) | dict.fromkeys(weights)

    def update(
        self, groups: Sequence[Group], prompts: Sequence[Sequence[int]], clock: StageClock
    ) -> dict[str, float | None]:
        """Update from graded groups, a mini-batch of whole groups at a time.

        Args:
            groups: in the order of their mini-batches.
            prompts: tokens of every prompt by its index.

        Raises:
            UserError: before an update that is not finite.
        """
        samples = [sample for group in groups for sample in group.samples]
        rollouts = [sample.rollout for sample in samples]
        stopped = [sample.use is Use.STOPPED for sample in samples]
        batch = Batch.of([prompts[r.prompt] for r in rollouts], rollouts, self.pad, self.device, stopped)
        owner = np.repeat(np.arange(len(groups)), [len(group.samples) for group in groups])
        with torch.no_grad(), clock.stage("old_log_probs"):
            old, entropy = self.log_probs(self.policy, batch, entropy=True)
            for row, sample in enumerate(samples):
                if sample.old_log_probs is OldLogProbs.STORED:
                    stored = torch.from_numpy(sample.rollout.log_probs)
                    old[row, : len(stored)] = stored.to(old)
            drift = _drift(old, rollouts, batch.mask)
        ref = values = None
        if self.reference is not None:
            with torch.no_grad(), clock.stage("ref"):
                ref, _ = self.log_probs(self.reference, batch)
        if self.critic is not None:
            with torch.no_grad(), clock.stage("values"):
                values = self._values(batch)
        with clock.stage("adv"):
            rewards = np.array([sample.reward for sample in samples], dtype=np.float32)
            lengths = np.array([rollout.length for rollout in rollouts])
            rewards = shaped(self.run.algorithm, rewards, lengths, self.run.trainer.max_response_tokens)
            on_device = torch.from_numpy(rewards).to(self.device)
            advantage, returns = advantages(self.run.algorithm, on_device, batch.mask, owner, values)
        metrics: dict[str, float | None] = {"entropy": float(entropy.sum() / batch.mask.sum()), "drift": drift}
        weights = None
        if self.importance:
            none = np.zeros(0, np.float32)  # padded with 0, the log of weight 1
            rows = [none if r.log_weights is None else r.log_weights for r in rollouts]
            weights, measured = importance_weights(self.importance, _padded(rows, batch.mask), batch.mask)
            metrics |= measured
        minis = self._mini_batches(batch, owner)
        if not minis:  # every gradient is stopped
            return self.metrics_without_update | metrics
        if values is not None:
            with clock.stage("update_critic"):
                metrics |= self._update_critic(batch, minis, values, returns)
        with clock.stage("update_actor"):
            return metrics | self._update_actor(batch, minis, old, ref, advantage, weights)

    def log_probs(self, model: Any, batch: Batch, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies at the run's temperature; entropies are 0 unless requested.

        Both are float32 (rows, longest response).
        """
        model.eval()
        log_probs, entropies = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
        for rows, part in self._parts(batch):
            with computing_in(self.dtype, self.device):
                log_probs[rows], of_part = part.log_probs(model, entropy, self.run.trainer.temperature)
            if of_part is not None:
                entropies[rows] = of_part
        return log_probs, entropies

    def divergence(self, rollouts: Sequence[Rollout], prompts: Sequence[Sequence[int]]) -> float | None:
        """KL divergence of the policy from the reference policy over the whole vocabulary, nats a token.

        The mean over the tokens of rollouts that the current policy sampled, at the run's temperature; None without a
        reference policy.
        """
        if self.reference is None:
            return None
        batch = Batch.of([prompts[r.prompt] for r in rollouts], rollouts, self.pad, self.device)
        self.policy.eval()
        with torch.no_grad(), computing_in(self.dtype, self.device):
            total = sum(
                float(part.divergences(self.policy, self.reference, self.run.trainer.temperature).sum())
                for _, part in self._parts(batch)
            )
        return total / float(batch.mask.sum())

    def _values(self, batch: Batch) -> torch.Tensor:
        """The critic's values, float32 (rows, longest response)."""
        assert self.critic is not None
        self.critic.eval()
        values = torch.zeros_like(batch.mask)
        for rows, part in self._parts(batch):
            with computing_in(self.dtype, self.device):
                values[rows] = part.values(self.critic)
        return values

    def _parts(self, batch: Batch) -> Iterator[tuple[torch.Tensor, Batch]]:
        """All rows in micro-batches."""
        return batch.parts(torch.arange(len(batch.mask), device=self.device), self.run.engine.rows_per_micro_batch)

    def _mini_batches(self, batch: Batch, owner: np.ndarray) -> list[MiniBatch]:
        """Rows of each mini-batch, in the order of the batch as in verl, and the normalisers of its losses.

        A mini-batch whose gradient is stopped everywhere is left out, since its normalisers are 0.
        """
        sizes = self.run.trainer.groups_of_updates(int(owner[-1]) + 1)
        update = np.repeat(np.arange(len(sizes)), sizes)[owner]
        minis = []
        for rows in torch.arange(len(owner), device=self.device).split(np.bincount(update).tolist()):
            tokens = batch.trained[rows].sum()
            sequences = int((batch.trained[rows].sum(1) > 0).sum())
            if sequences:
                minis.append((rows, {"batch_num_tokens": tokens, "global_batch_size": sequences}))
        return minis

    def _update_critic(
        self, batch: Batch, minis: Sequence[MiniBatch], old: torch.Tensor, returns: torch.Tensor
    ) -> dict[str, float | None]:
        assert isinstance(self.run.algorithm, PPO)
        assert self.critic is not None
        self.critic.train()
        losses, norms = [], []
        for mini, whole in minis:
            self.parts["critic_optimizer"].zero_grad(set_to_none=True)
            total = 0.0
            for rows, part in batch.parts(mini, self.run.engine.rows_per_micro_batch):
                with computing_in(self.dtype, self.device):
                    values = part.values(self.critic)
                loss = value_loss(self.run.algorithm, values, old[rows], returns[rows], part.trained, whole)
                loss.backward()
                total += float(loss.detach())
            losses.append(total)
            norms.append(self._step("critic", "critic_optimizer", {"loss of the critic": total}))
        return {"critic_loss": float(np.mean(losses)), "critic_gradient_norm": float(np.mean(norms))}

    def _update_actor(
        self,
        batch: Batch,
        minis: Sequence[MiniBatch],
        old: torch.Tensor,
        ref: torch.Tensor | None,
        advantage: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> dict[str, float | None]:
        self.policy.train()
        kl, clip_fraction, norms = 0.0, 0.0, []
        for mini, whole in minis:
            self.parts["optimizer"].zero_grad(set_to_none=True)
            total = 0.0
            for rows, part in batch.parts(mini, self.run.engine.rows_per_micro_batch):
                with computing_in(self.dtype, self.device):
                    log_probs, _ = part.log_probs(self.policy, temperature=self.run.trainer.temperature)
                reference = None if ref is None else ref[rows]
                weight = None if weights is None else weights[rows]
                result = self.loss(log_probs, old[rows], reference, advantage[rows], part.trained, whole, weight)
                result.loss.backward()
                total += float(result.loss.detach())
                share = float(part.trained.sum() / batch.trained.sum())
                kl += (result.kl or 0.0) * share
                clip_fraction += result.clip_fraction * share
            norms.append(self._step("model", "optimizer", {"loss": total, "kl": kl}))
        return {
            "kl": None if ref is None else kl,
            "clip_fraction": clip_fraction,
            "gradient_norm": float(np.mean(norms)),
        }

    def _step(self, part: str, optimizer: str, measured: dict[str, float]) -> float:
        """One optimiser step; returns the gradient's norm before it was clipped."""
        limit = self.run.trainer.gradient_clip
        norm = float(torch.nn.utils.clip_grad_norm_(self.parts[part].parameters(), limit))
        for quantity, value in {**measured, "gradient norm": norm}.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the policy has diverged: the {quantity} of an update is {value}",
                    key="trainer.learning_rate",
                    value=self.run.trainer.learning_rate,
                    hint="take a smaller one",
                )
        self.parts[optimizer].step()
        return norm


def _drift(old_BT: torch.Tensor, rollouts: Sequence[Rollout], mask_BT: torch.Tensor) -> float:
    """KL divergence of the behaviour policies q from the current policy p, estimated on the batch, nats per token.

    The estimator is exp(d) - 1 - d with d = log p - log q (Schulman, 2020, "Approximating KL Divergence", k3).
    """
    gaps_BT = (old_BT - _padded([rollout.behaviour for rollout in rollouts], mask_BT)).double() * mask_BT
    return float((gaps_BT.expm1() - gaps_BT).sum() / mask_BT.sum())


def _padded(rows: Sequence[np.ndarray], like: torch.Tensor) -> torch.Tensor:
    """Rows of numbers in a tensor of the shape and device of `like`, padded with 0."""
    padded = torch.zeros_like(like)
    for row, values in enumerate(rows):
        padded[row, : len(values)] = torch.from_numpy(values)
    return padded
