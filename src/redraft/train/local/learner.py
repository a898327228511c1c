"""Policy and, for PPO, critic; one call updates them from graded groups, which may differ in size.

Shapes: B responses of a batch, T tokens of the longest response.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.engines.torch.head import Head, hidden_states
from redraft.errors import UserError
from redraft.rollout.types import Group, OldLogProbs, Rollout, Use
from redraft.train import models
from redraft.train.losses import WEIGHTS, PolicyLoss, advantages, importance_weights, shaped, value_loss
from redraft.train.pretrained.precision import dtype_of
from redraft.train.records import StageClock

NO_UPDATE: dict[str, float | None] = dict.fromkeys(("entropy", "drift", "kl", "clip_fraction", "gradient_norm"))
"""Metrics of a step without an update."""
CRITIC = ("critic_loss", "critic_gradient_norm")
"""Further metrics of an update with a critic."""

MiniBatch = tuple[torch.Tensor, dict[str, Any]]
"""Row indices, int64 (n,), and verl's `batch_num_tokens` and `global_batch_size` of the rows that are trained on."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts and responses side by side, padded on the right.

    Attributes:
        tokens: int64 (rows, width), prompt and response.
        starts: int64 (rows,), position at which each response begins.
        mask: float32 (rows, longest response), 1 on response tokens.
        trained: float32 (rows, longest response), 1 on response tokens that losses are taken of.
    """

    tokens: torch.Tensor
    starts: torch.Tensor
    mask: torch.Tensor
    trained: torch.Tensor

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        rollouts: Sequence[Rollout],
        pad: int,
        device: torch.device,
        stopped: Sequence[bool] = (),
    ) -> "Batch":
        """Join each rollout with its prompt; `stopped` are the rollouts whose gradient is, none if empty."""
        rows = [[*prompt, *rollout.tokens.tolist()] for prompt, rollout in zip(prompts, rollouts, strict=True)]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([rollout.length for rollout in rollouts], device=device)
        mask = (torch.arange(int(lengths.max()), device=device) < lengths[:, None]).float()
        trained = mask * ~torch.tensor(stopped, device=device)[:, None] if any(stopped) else mask
        return cls(tokens, torch.tensor([len(p) for p in prompts], device=device), mask, trained)

    def parts(self, size: int, rows: torch.Tensor | None = None) -> Iterator[tuple[torch.Tensor, "Batch"]]:
        """Rows in micro-batches of about equal length, each no wider than it must be.

        Args:
            size: largest number of rows of a micro-batch.
            rows: indices, int64 (n,); all rows if None.

        Yields:
            The micro-batch's row indices, int64, and the micro-batch; its mask keeps the width of the whole.
        """
        rows = torch.arange(len(self.mask), device=self.mask.device) if rows is None else rows
        ends = self.starts + self.mask.sum(1).long()
        # Stable, since the order of rows decides the last bits of sums.
        for chosen in rows[ends[rows].argsort(stable=True)].split(size):
            width = int(ends[chosen].max())
            whole = (self.starts, self.mask, self.trained)
            yield chosen, Batch(self.tokens[chosen, :width], *(part[chosen] for part in whole))

    def log_probs(
        self, model: Any, entropy: bool = False, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability, and on request entropy, of each response token: float32 (rows, longest response)."""
        rows, index = self.mask.nonzero(as_tuple=True)
        tokens = self.tokens[rows, self.starts[rows] + index]
        log_probs, entropies = Head(model, temperature).log_probs(self._hidden(model), tokens, entropy)
        return self._spread(log_probs), None if entropies is None else self._spread(entropies)

    def divergences(self, model: Any, reference: Any, temperature: float = 1.0) -> torch.Tensor:
        """KL divergence of a model from a reference at each response token, float32 (rows, longest response), nats."""
        states = (self._hidden(model), self._hidden(reference))
        heads = (Head(model, temperature), Head(reference, temperature))
        return self._spread(heads[0].divergences(states[0], heads[1], states[1]))

    def _hidden(self, model: Any) -> torch.Tensor:
        """Hidden states before each response token, (response tokens of all rows, size)."""
        # Pad tokens after the end need no attention mask: attention is causal, and `mask` drops their own outputs.
        hidden = hidden_states(model, input_ids=self.tokens, attention_mask=None)
        rows, index = self.mask.nonzero(as_tuple=True)
        # The state before a token has the distribution of that token.
        return hidden[rows, self.starts[rows] + index - 1]

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of all response tokens in (rows, longest response), 0 after their ends."""
        # In the order of `nonzero` in `_hidden`: row by row.
        return torch.zeros_like(self.mask, dtype=values.dtype).masked_scatter(self.mask > 0, values)

    def values(self, critic: Any) -> torch.Tensor:
        """The critic's value before each response token: float32 (rows, longest response)."""
        # The one label of each token is its value.
        values = critic(input_ids=self.tokens, attention_mask=None).logits.float()[..., 0]
        rows, index = self.mask.nonzero(as_tuple=True)
        return self._spread(values[rows, self.starts[rows] + index - 1])


class Learner:
    """Policy, reference policy and critic of a run.

    Args:
        policy: the initial policy; it is trained in place.
        model_folder: the model that policy, reference policy and critic start from.
        pad: token that fills rows after the end of a response.
    """

    def __init__(self, run: Run, policy: Any, model_folder: Path, device: torch.device, pad: int) -> None:
        self.run, self.policy, self.device, self.pad = run, policy.to(device), device, pad
        self.loss, dtype = PolicyLoss(run.algorithm), dtype_of(run.engine)
        self.autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)  # weights stay in float32
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
        owner_B = np.repeat(np.arange(len(groups)), [len(group.samples) for group in groups])
        with torch.no_grad(), clock.stage("old_log_probs"):
            old_BT, entropy_BT = self.log_probs(self.policy, batch, entropy=True)
            # KL divergence of the behaviour policies q from the current policy p, nats per token, estimated by
            # exp(d) - 1 - d with d = log p - log q (Schulman, 2020, "Approximating KL Divergence", k3).
            behaviour_BT = pad_sequence([torch.from_numpy(r.behaviour) for r in rollouts], batch_first=True).to(old_BT)
            # float64, since exp(d) - 1 - d is about d^2 / 2, and d is often no more than rounding.
            gaps_BT = (old_BT - behaviour_BT).double() * batch.mask
            drift = float((gaps_BT.expm1() - gaps_BT).sum() / batch.mask.sum())
            # After the drift, which is of the current policy for these samples too.
            for row, sample in enumerate(samples):
                if sample.old_log_probs is OldLogProbs.STORED:
                    stored = torch.from_numpy(sample.rollout.log_probs)
                    old_BT[row, : len(stored)] = stored.to(old_BT)
        ref_BT = values_BT = None
        if self.reference is not None:
            with torch.no_grad(), clock.stage("ref"):
                ref_BT, _ = self.log_probs(self.reference, batch)
        if self.critic is not None:
            with torch.no_grad(), clock.stage("values"):
                values_BT = self._values(batch)
        with clock.stage("adv"):
            rewards_B = np.array([sample.reward for sample in samples], dtype=np.float32)
            lengths_B = np.array([rollout.length for rollout in rollouts])
            rewards_B = shaped(self.run.algorithm, rewards_B, lengths_B, self.run.trainer.max_response_tokens)
            on_device_B = torch.from_numpy(rewards_B).to(self.device)
            # `mask` and not `trained`: a sample whose gradient is stopped counts in the baseline.
            advantage_BT, returns_BT = advantages(self.run.algorithm, on_device_B, batch.mask, owner_B, values_BT)
        metrics: dict[str, float | None] = {"entropy": float(entropy_BT.sum() / batch.mask.sum()), "drift": drift}
        weights_BT = None
        if self.importance:
            logs = [np.zeros_like(r.log_probs) if r.log_weights is None else r.log_weights for r in rollouts]
            log_weights_BT = pad_sequence([torch.from_numpy(row) for row in logs], batch_first=True).to(batch.mask)
            weights_BT, measured = importance_weights(self.importance, log_weights_BT, batch.mask)
            metrics |= measured
        minis = self._mini_batches(batch, owner_B)
        if not minis:  # every gradient is stopped
            return self.metrics_without_update | metrics
        if values_BT is not None:
            with clock.stage("update_critic"):
                metrics |= self._update_critic(batch, minis, values_BT, returns_BT)
        with clock.stage("update_actor"):
            return metrics | self._update_actor(batch, minis, old_BT, ref_BT, advantage_BT, weights_BT)

    def log_probs(self, model: Any, batch: Batch, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies at the run's temperature; entropies are 0 unless requested.

        Both are float32 (rows, longest response).
        """
        model.eval()
        log_probs_BT, entropies_BT = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
        for rows, part in batch.parts(self.run.engine.rows_per_micro_batch):
            with self.autocast:
                log_probs_BT[rows], of_part = part.log_probs(model, entropy, self.run.trainer.temperature)
            if of_part is not None:
                entropies_BT[rows] = of_part
        return log_probs_BT, entropies_BT

    def divergence(self, rollouts: Sequence[Rollout], prompts: Sequence[Sequence[int]]) -> float | None:
        """KL divergence of the policy from the reference policy over the whole vocabulary, nats a token.

        The mean over the tokens of rollouts that the current policy sampled, at the run's temperature; None without a
        reference policy.
        """
        if self.reference is None:
            return None
        batch = Batch.of([prompts[r.prompt] for r in rollouts], rollouts, self.pad, self.device)
        self.policy.eval()
        with torch.no_grad(), self.autocast:
            total = sum(
                float(part.divergences(self.policy, self.reference, self.run.trainer.temperature).sum())
                for _, part in batch.parts(self.run.engine.rows_per_micro_batch)
            )
        return total / float(batch.mask.sum())

    def _values(self, batch: Batch) -> torch.Tensor:
        """The critic's values, float32 (rows, longest response)."""
        assert self.critic is not None
        self.critic.eval()
        values_BT = torch.zeros_like(batch.mask)
        for rows, part in batch.parts(self.run.engine.rows_per_micro_batch):
            with self.autocast:
                values_BT[rows] = part.values(self.critic)
        return values_BT

    def _mini_batches(self, batch: Batch, owner_B: np.ndarray) -> list[MiniBatch]:
        """Rows of each mini-batch, in the order of the batch as in verl, and the normalisers of its losses.

        A mini-batch whose gradient is stopped everywhere is left out, since its normalisers are 0.
        """
        sizes = self.run.trainer.groups_of_updates(int(owner_B[-1]) + 1)
        update = np.repeat(np.arange(len(sizes)), sizes)[owner_B]
        minis = []
        for rows in torch.arange(len(owner_B), device=self.device).split(np.bincount(update).tolist()):
            # Of the whole mini-batch, so that the losses of its micro-batches add up to its own.
            tokens = batch.trained[rows].sum()
            sequences = int((batch.trained[rows].sum(1) > 0).sum())
            if sequences:
                minis.append((rows, {"batch_num_tokens": tokens, "global_batch_size": sequences}))
        return minis

    def _update_critic(
        self, batch: Batch, minis: Sequence[MiniBatch], old_BT: torch.Tensor, returns_BT: torch.Tensor
    ) -> dict[str, float | None]:
        assert isinstance(self.run.algorithm, PPO)
        assert self.critic is not None
        self.critic.train()
        losses, norms = [], []
        for mini, whole in minis:
            self.parts["critic_optimizer"].zero_grad(set_to_none=True)
            total = 0.0
            for rows, part in batch.parts(self.run.engine.rows_per_micro_batch, mini):
                with self.autocast:
                    values = part.values(self.critic)
                loss = value_loss(self.run.algorithm, values, old_BT[rows], returns_BT[rows], part.trained, whole)
                loss.backward()
                total += float(loss.detach())
            losses.append(total)
            norms.append(self._step("critic", "critic_optimizer", {"loss of the critic": total}))
        return {"critic_loss": float(np.mean(losses)), "critic_gradient_norm": float(np.mean(norms))}

    def _update_actor(
        self,
        batch: Batch,
        minis: Sequence[MiniBatch],
        old_BT: torch.Tensor,
        ref_BT: torch.Tensor | None,
        advantage_BT: torch.Tensor,
        weights_BT: torch.Tensor | None,
    ) -> dict[str, float | None]:
        self.policy.train()
        kl, clip_fraction, norms = 0.0, 0.0, []
        for mini, whole in minis:
            self.parts["optimizer"].zero_grad(set_to_none=True)
            total = 0.0
            for rows, part in batch.parts(self.run.engine.rows_per_micro_batch, mini):
                with self.autocast:
                    log_probs, _ = part.log_probs(self.policy, temperature=self.run.trainer.temperature)
                ref = None if ref_BT is None else ref_BT[rows]
                weights = None if weights_BT is None else weights_BT[rows]
                result = self.loss(log_probs, old_BT[rows], ref, advantage_BT[rows], part.trained, whole, weights)
                result.loss.backward()
                total += float(result.loss.detach())
                # Means over the trained tokens of all updates.
                share = float(part.trained.sum() / batch.trained.sum())
                kl += (result.kl or 0.0) * share
                clip_fraction += result.clip_fraction * share
            norms.append(self._step("model", "optimizer", {"loss": total, "kl": kl}))
        return {
            "kl": None if ref_BT is None else kl,
            "clip_fraction": clip_fraction,
            "gradient_norm": float(np.mean(norms)),
        }

    def _step(self, part: str, optimizer: str, measured: dict[str, float]) -> float:
        """One optimiser step; returns the gradient's norm before it was clipped."""
        limit = self.run.trainer.gradient_clip
        norm = float(torch.nn.utils.clip_grad_norm_(self.parts[part].parameters(), limit))
        # Before the step, so that weights stay finite.
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
