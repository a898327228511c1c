"""Advantages and losses: verl's, called with this project's tensors (verl.trainer.ppo.core_algos, verl 0.9.1).

Shapes: B responses, T tokens of the longest response.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from redraft.config.algorithm import DAPO, GRPO, PPO, Algorithm, PolicyGradient
from redraft.methods.reuse import Importance

ESTIMATORS = {"grpo": "grpo", "dapo": "grpo", "rloo": "rloo", "reinforce": "grpo", "ppo": "gae"}
"""An algorithm's kind, and what verl calls its estimator of advantages."""


def estimator(algorithm: Algorithm) -> str:
    """verl's name of an algorithm's estimator. Other standard deviations than verl's own are registered with verl.

    The name is the same in every process, which has to call this function before verl looks for the estimator.
    """
    if not isinstance(algorithm, GRPO) or algorithm == algorithm.model_copy(update=VERLS_STD):
        return ESTIMATORS[algorithm.kind]
    name = f"grpo_{algorithm.std}_{algorithm.std_epsilon:g}"
    if name not in core_algos.ADV_ESTIMATOR_REGISTRY:
        core_algos.register_adv_est(name)(partial(_normalised, algorithm.std == "unbiased", algorithm.std_epsilon))
    return name


VERLS_STD = {"std": "unbiased", "std_epsilon": 1e-6}
"""Fields of `GRPO` that verl's estimator has built in."""


def divides_by_std(algorithm: Algorithm) -> bool:
    """False if advantages are rewards less the group's mean, and no more; verl's `norm_adv_by_std_in_grpo`."""
    return algorithm.kind != "reinforce"


def _normalised(
    unbiased: bool,
    epsilon: float,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantages by another standard deviation than verl's; arguments and results as of verl's estimators."""
    centred, _returns = core_algos.get_adv_estimator_fn("grpo")(
        token_level_rewards=token_level_rewards,
        response_mask=response_mask,
        index=index,
        norm_adv_by_std_in_grpo=False,
    )
    # As in verl, the reward of a group of one is divided by 1; its standard deviation would be NaN.
    rewards, scales = token_level_rewards.sum(-1), torch.ones_like(token_level_rewards[:, 0])
    for group in set(index.tolist()):
        rows = torch.from_numpy(np.flatnonzero(index == group)).to(rewards.device)
        if len(rows) > 1:
            scales[rows] = rewards[rows].std(correction=int(unbiased)) + epsilon
    advantage = centred / scales[:, None]
    return advantage, advantage


def advantages(
    algorithm: Algorithm,
    rewards_B: torch.Tensor,
    mask_BT: torch.Tensor,
    groups_B: np.ndarray,
    values_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantage and return of every response token, both float32 (rows, tokens); groups may differ in size.

    The reward of a response without tokens counts in its group's mean and standard deviation, as in verl, whose reward
    managers write it to the last column. The response itself has no advantage.

    Args:
        rewards_B: float32 (rows,), of whole responses.
        mask_BT: (rows, tokens), 1 on response tokens.
        groups_B: (rows,), equal for rollouts of one prompt.
        values_BT: float32 (rows, tokens), the critic's before each token; PPO needs them.
    """
    token_level_BT = torch.zeros_like(mask_BT, dtype=torch.float32)
    # Estimators of groups sum over a row, so an empty response's reward may be at any position: all are masked.
    last_B = (mask_BT.long().sum(1) - 1).clamp(min=0)
    token_level_BT[torch.arange(len(rewards_B), device=rewards_B.device), last_B] = rewards_B
    if isinstance(algorithm, PPO):
        return core_algos.compute_gae_advantage_return(
            token_level_rewards=token_level_BT,
            values=values_BT,
            response_mask=mask_BT.float(),
            gamma=algorithm.gamma,
            lam=algorithm.lam,
        )
    estimate = core_algos.get_adv_estimator_fn(estimator(algorithm))
    how = {} if divides_by_std(algorithm) else {"norm_adv_by_std_in_grpo": False}
    return estimate(token_level_rewards=token_level_BT, response_mask=mask_BT.float(), index=groups_B, **how)


def shaped(algorithm: Algorithm, rewards_B: np.ndarray, lengths_B: np.ndarray, limit: int) -> np.ndarray:
    """Rewards after DAPO's soft punishment of overlong responses, where it is configured (arXiv 2503.14476, eq. 13).

    Args:
        rewards_B: float32 (rows,).
        lengths_B: tokens of each response, (rows,).
        limit: longest response, tokens.
    """
    if not isinstance(algorithm, DAPO) or algorithm.overlong is None:
        return rewards_B
    buffer = algorithm.overlong.tokens(limit)
    over_B = (lengths_B - (limit - buffer)) / buffer
    return (rewards_B - algorithm.overlong.penalty * np.clip(over_B, 0, 1)).astype(np.float32)


WEIGHTS = {"mean_weight": "rollout_is_mean", "effective_samples": "rollout_is_eff_sample_size"}
"""A record's keys of importance weights to verl's."""


def importance_weights(
    importance: Importance, log_weights_BT: torch.Tensor, mask_BT: torch.Tensor
) -> tuple[torch.Tensor, dict[str, float | None]]:
    """Truncated weights of response tokens, float32 (rows, tokens), and what verl measures of them.

    Args:
        log_weights_BT: float32 (rows, tokens), of each token alone.
        mask_BT: (rows, tokens), 1 on response tokens.
    """
    # verl takes log(old / rollout), which is the log-weight here.
    weights_BT, found = compute_rollout_correction_weights(log_weights_BT, mask_BT, importance.level, importance.bound)
    return weights_BT, {key: found[name] for key, name in WEIGHTS.items()}


@dataclass(frozen=True)
class ActorLoss:
    """The loss of one micro-batch, to be differentiated, and what verl measures beside it.

    Attributes:
        kl: against the reference, None where there is none.
    """

    loss: torch.Tensor
    clip_fraction: float
    kl: float | None


class PolicyLoss:
    """Clipped policy loss plus KL loss of a configured algorithm."""

    def __init__(self, algorithm: PolicyGradient) -> None:
        self.algorithm = algorithm
        # verl's class requires the first three, which the loss does not read.
        self.config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=algorithm.clip_low,
            clip_ratio_low=algorithm.clip_low,
            clip_ratio_high=algorithm.clip_high,
            clip_ratio_c=algorithm.clip_ratio_c,
            loss_agg_mode=algorithm.loss_agg_mode,
        )
        self._policy_loss = core_algos.get_policy_loss_fn("vanilla")

    def __call__(
        self,
        log_probs_BT: torch.Tensor,
        old_BT: torch.Tensor,
        ref_BT: torch.Tensor | None,
        advantage_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        whole_batch: dict[str, Any],
        weights_BT: torch.Tensor | None = None,
    ) -> ActorLoss:
        """Loss of a micro-batch; all tensors are (rows, tokens).

        Args:
            ref_BT: the reference policy's log-probabilities, None where the algorithm has no KL loss.
            weights_BT: importance weights of the policy loss, None where all are 1.
            whole_batch: `batch_num_tokens` and `global_batch_size` of the mini-batch it is part of.
        """
        # verl's loss takes its normalisers from here: those of the mini-batch, so that its micro-batches add up.
        self.config.global_batch_info.update(whole_batch)
        loss, metrics = self._policy_loss(
            old_log_prob=old_BT,
            log_prob=log_probs_BT,
            advantages=advantage_BT,
            response_mask=mask_BT,
            loss_agg_mode=self.algorithm.loss_agg_mode,
            config=self.config,
            rollout_is_weights=weights_BT,
        )
        if ref_BT is None:
            return ActorLoss(loss, metrics["actor/pg_clipfrac"], None)
        divergence_BT = core_algos.kl_penalty(log_probs_BT, ref_BT, self.algorithm.kl_loss_type)
        weighted = core_algos.agg_loss(divergence_BT, mask_BT, self.algorithm.loss_agg_mode, **whole_batch)
        # All rows of a micro-batch may be masked.
        kl = float((divergence_BT.detach() * mask_BT).sum() / mask_BT.sum().clamp(min=1))
        return ActorLoss(loss + self.algorithm.kl_loss_coef * weighted, metrics["actor/pg_clipfrac"], kl)


def value_loss(
    algorithm: PPO,
    values_BT: torch.Tensor,
    old_BT: torch.Tensor,
    returns_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    whole_batch: dict[str, Any],
) -> torch.Tensor:
    """The critic's clipped loss of a micro-batch; all tensors are (rows, tokens), `whole_batch` as of `PolicyLoss`."""
    return core_algos.compute_value_loss(
        vpreds=values_BT,
        returns=returns_BT,
        values=old_BT,
        response_mask=mask_BT,
        cliprange_value=algorithm.value_clip,
        loss_agg_mode=algorithm.loss_agg_mode,
        **whole_batch,
    )[0]
