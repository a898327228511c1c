"""Advantages and losses: verl's, called with this project's tensors (verl.trainer.ppo.core_algos, verl 0.9.1)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from redraft.config.algorithm import Algorithm


def advantages(algorithm: Algorithm, rewards: torch.Tensor, mask: torch.Tensor, groups: np.ndarray) -> torch.Tensor:
    """Advantage of every response token, float32 (rows, tokens).

    Args:
        algorithm: whose estimator is taken.
        rewards: float32 (rows,), of whole responses.
        mask: (rows, tokens), 1 on response tokens.
        groups: (rows,), equal for rollouts of one prompt.
    """
    token_level = torch.zeros_like(mask, dtype=torch.float32)
    token_level[torch.arange(len(mask)), mask.long().sum(1) - 1] = rewards
    estimate = core_algos.get_adv_estimator_fn(algorithm.kind)
    return estimate(token_level_rewards=token_level, response_mask=mask.float(), index=groups)[0]


@dataclass(frozen=True)
class ActorLoss:
    """The loss of one micro-batch, to be differentiated, and what verl measures beside it."""

    loss: torch.Tensor
    clip_fraction: float
    kl: float


class PolicyLoss:
    """Clipped policy loss plus KL loss of a configured algorithm."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.config = ActorConfig(
            strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=algorithm.clip_low,
            clip_ratio_low=algorithm.clip_low, clip_ratio_high=algorithm.clip_high,
            clip_ratio_c=algorithm.clip_ratio_c, loss_agg_mode=algorithm.loss_agg_mode,
        )  # fmt: skip
        self._policy_loss = core_algos.get_policy_loss_fn("vanilla")

    def __call__(
        self, log_probs: torch.Tensor, old: torch.Tensor, ref: torch.Tensor, advantage: torch.Tensor,
        mask: torch.Tensor, whole_batch: dict[str, Any],
    ) -> ActorLoss:  # fmt: skip
        """Loss of a micro-batch; all tensors (rows, tokens).

        Args:
            whole_batch: `batch_num_tokens` and `global_batch_size` of the mini-batch it is part of.
        """
        self.config.global_batch_info.update(whole_batch)
        loss, metrics = self._policy_loss(
            old_log_prob=old, log_prob=log_probs, advantages=advantage, response_mask=mask,
            loss_agg_mode=self.algorithm.loss_agg_mode, config=self.config,
        )  # fmt: skip
        divergence = core_algos.kl_penalty(log_probs, ref, self.algorithm.kl_loss_type)
        if self.algorithm.kl_loss_coef:
            weighted = core_algos.agg_loss(divergence, mask, self.algorithm.loss_agg_mode, **whole_batch)
            loss = loss + self.algorithm.kl_loss_coef * weighted
        kl = float((divergence.detach() * mask).sum() / mask.sum().clamp(min=1))
        return ActorLoss(loss, metrics["actor/pg_clipfrac"], kl)
