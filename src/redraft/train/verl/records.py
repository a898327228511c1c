"""From what verl measures in a step to the records that the local trainer writes.

One of verl's steps is one update. It has one generation step or, under DAPO, several; each gets a record, and the last
of them the update's measurements and stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transfer_queue as tq

from redraft.config.experiment import Run
from redraft.rollout.types import Rollout
from redraft.train.checkpoint import append_record
from redraft.train.records import describe, save_rollouts_of_step
from redraft.train.run_folder import RunFolder
from redraft.train.stages import STAGES
from redraft.train.verl.shard import GENERATION_STAGES, Group

TIMERS = {
    "old_log_prob": "old_log_probs", "ref": "ref", "values": "values", "adv": "adv", "update_critic": "update_critic",
    "update_actor": "update_actor",
}  # fmt: skip
"""verl's timers to SPEC-RL's stages."""
METRICS = {
    "entropy": "actor/entropy", "kl": "actor/kl_loss", "clip_fraction": "actor/pg_clipfrac",
    "gradient_norm": "actor/grad_norm",
}  # fmt: skip
CRITIC_METRICS = {"critic_loss": "critic/vf_loss", "critic_gradient_norm": "critic/grad_norm"}
"""A record's keys to verl's metrics."""


@dataclass(frozen=True)
class Update:
    """What verl measured in one of its steps.

    Attributes:
        metrics: by verl's names.
        log_prob_gap: mean and largest, see `log_prob_gap`.
        fresh_rewards: of new samples of the updated policy.
    """

    metrics: Mapping[str, Any]
    log_prob_gap: tuple[float, float]
    fresh_rewards: Sequence[float]


class StepRecords:
    """Writes a run's records and rollouts."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder
        self.steps_per_epoch = run.trainer.steps_per_epoch(run.data.size)

    def write(
        self, groups: Sequence[Group], first: int, timers: Mapping[str, float], update: Update | None,
        training_step: int,
    ) -> float:  # fmt: skip
        """Write the generation steps from `first` on that these groups make up; returns their seconds.

        Args:
            groups: finished ones, in any order.
            first: the earliest generation step among them.
            timers: seconds by verl's names.
            update: the one that followed, if any.
            training_step: updates so far.
        """
        steps = sorted({group.step for group in groups})
        if steps != list(range(first, first + len(steps))):
            raise RuntimeError(f"generation steps {steps} were rolled out, not those from {first} on")
        total = 0.0
        for step in steps:
            chosen = sorted((g for g in groups if g.step == step), key=lambda g: g.rollouts[0].prompt)
            made = update if step == steps[-1] else None
            seconds = self._seconds(chosen, groups, timers, last=step == steps[-1])
            record = self._record(step, chosen, made, training_step - (update is not None and made is None))
            append_record(self.folder.records, record | {"seconds": seconds})
            total += seconds["total"]
        return total

    def _record(self, step: int, groups: Sequence[Group], update: Update | None, training_step: int) -> dict[str, Any]:
        """The record but for its seconds; also writes the step's rollouts."""
        rollouts: list[Rollout] = [rollout for group in groups for rollout in group.rollouts]
        rewards = np.concatenate([group.rewards for group in groups])
        epoch = step // self.steps_per_epoch
        save_rollouts_of_step(self.folder.rollouts(step), epoch, rollouts, rewards)
        names = METRICS | (CRITIC_METRICS if self.run.algorithm.kind == "ppo" else {})
        return {
            "step": step, "epoch": epoch, "training_step": training_step, "updated": update is not None,
            **describe(rollouts, rewards, step, self.steps_per_epoch, self.run.trainer.group_size),
            "tokens_cached": sum(group.cached for group in groups),
            "fresh_reward": float(np.mean(update.fresh_rewards)) if update and update.fresh_rewards else None,
            **{key: _number(update, name) for key, name in names.items()},
            "log_prob_gap": update.log_prob_gap[0] if update else None,
            "log_prob_gap_max": update.log_prob_gap[1] if update else None,
        }  # fmt: skip

    def _seconds(
        self, groups: Sequence[Group], all_groups: Sequence[Group], timers: Mapping[str, float], last: bool
    ) -> dict[str, float]:
        """Seconds by stage. Stages that overlap share the wall seconds of generation as they share the waiting."""
        waited = {stage: sum(g.seconds[stage] for g in groups) for stage in GENERATION_STAGES}
        in_all, generation = sum(sum(g.seconds.values()) for g in all_groups), timers["gen"]
        seconds = dict.fromkeys(STAGES, 0.0)
        seconds |= {stage: generation * value / in_all if in_all else 0.0 for stage, value in waited.items()}
        if last:
            seconds |= {stage: timers.get(timer, 0.0) for timer, stage in TIMERS.items()}
            claimed = generation + sum(seconds[stage] for stage in TIMERS.values())
            seconds["others"] = max(timers["step"] - timers.get("save_checkpoint", 0.0) - claimed, 0.0)
        return {**seconds, "total": sum(seconds.values())}


def _number(update: Update | None, name: str) -> float | None:
    """A metric of verl's, if there is one."""
    value = update.metrics.get(name) if update else None
    return None if value is None else float(value)


def log_prob_gap(batch: Any) -> tuple[float, float]:
    """Mean and largest difference between the engine's and the trainer's log-probability of a token sampled now.

    The mean is rounding while both hold the same weights, and grows when the engine keeps old ones. Reused tokens are
    left out: theirs are of older policies.
    """
    chosen = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    fields = ["old_log_probs", "rollout_log_probs", "extra_fields"]
    data = tq.kv_batch_get(keys=chosen, partition_id=batch.partition_id, select_fields=fields)
    prefixes = [getattr(extra, "data", extra)["prefix_length"] for extra in data["extra_fields"]]
    rows = zip(data["old_log_probs"].unbind(), data["rollout_log_probs"].unbind(), prefixes, strict=True)
    gaps = torch.cat([(trainer - engine)[prefix:].abs() for trainer, engine, prefix in rows])
    return (float(gaps.mean()), float(gaps.max())) if len(gaps) else (0.0, 0.0)
