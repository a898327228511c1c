"""What a step leaves behind: its record's counts, and the rollouts themselves. The same for every trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from redraft.files import atomic
from redraft.rollout.types import Finish, Rollout
from redraft.train.gather import informative


def describe(
    rollouts: Sequence[Rollout], rewards: np.ndarray, step: int, steps_per_epoch: int, group_size: int
) -> dict[str, Any]:
    """Counts and means over a batch of whole groups; those about drafts are None where no rollout had one.

    Args:
        rollouts: of the step, groups one after the other.
        rewards: float32 (rollouts,), before any shaping.
        step: at which they were completed.
        steps_per_epoch: turns ages in steps into epochs.
        group_size: rollouts a group.
    """
    drafted = [r for r in rollouts if r.draft_length]
    ages = step - np.concatenate([r.sampled_at for r in rollouts])
    return {
        "rollouts": len(rollouts),
        "tokens_decoded": sum(r.decoded for r in rollouts),
        "tokens_verified": sum(r.verified for r in rollouts),
        "tokens_reused": sum(r.prefix_length for r in rollouts),
        "response_length": float(np.mean([r.length for r in rollouts])),
        "truncated": float(np.mean([r.finish is Finish.LENGTH for r in rollouts])),
        "prefix_length": float(np.mean([r.prefix_length for r in drafted])) if drafted else None,
        "full_reuse_ratio": float(np.mean([r.fully_reused for r in drafted])) if drafted else None,
        "token_age_epochs": float(ages.mean()) / steps_per_epoch,
        "informative": float(informative(rewards, group_size).mean()),
        "reward": float(rewards.mean()),
    }


def save_rollouts_of_step(file: Path, epoch: int, rollouts: Sequence[Rollout], rewards: np.ndarray) -> None:
    """Write a step's rollouts as Parquet, one line each, for diversity and case studies."""
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
    with atomic(file) as temporary:
        frame.to_parquet(temporary, index=False)
