"""DAPO's dynamic sampling: groups whose rollouts are all right or all wrong teach nothing and are refilled.

Each generation step rolls out a whole batch of prompts; informative groups wait until there are as many as a batch
holds, and what is over is dropped, as in verl's DAPO recipe. The policy does not change while groups wait.
"""

from collections.abc import Sequence

import numpy as np

from redraft.config.algorithm import DAPO, Algorithm
from redraft.rollout.types import Rollout
from redraft.train.checkpoint import State


def informative(rewards: np.ndarray, group_size: int) -> np.ndarray:
    """Whether the rewards of each group differ, bool (groups,); `rewards` are float32 (groups * group_size,)."""
    groups = rewards.reshape(-1, group_size)
    return groups.max(axis=1) > groups.min(axis=1)


def gather(
    algorithm: Algorithm, state: State, rollouts: Sequence[Rollout], rewards: np.ndarray, group_size: int, prompts: int
) -> tuple[list[Rollout], np.ndarray] | None:
    """The rollouts and rewards to update from, or None if there are not enough yet; `state` keeps what waits.

    Args:
        algorithm: all but DAPO update from every batch as it is.
        state: whose pending groups are used and replaced.
        rollouts: of the step, whole groups one after the other.
        rewards: float32 (rollouts,), before any shaping.
        group_size: rollouts a group.
        prompts: groups that an update takes.
    """
    if not isinstance(algorithm, DAPO):
        return list(rollouts), rewards
    kept = np.repeat(informative(rewards, group_size), group_size)
    waiting = state.pending + [rollout for rollout, keep in zip(rollouts, kept, strict=True) if keep]
    their_rewards = np.concatenate([state.pending_rewards, rewards[kept]])
    wanted = prompts * group_size
    if len(waiting) < wanted:
        state.pending, state.pending_rewards = waiting, their_rewards
        return None
    state.pending, state.pending_rewards = [], np.zeros(0, dtype=np.float32)
    return waiting[:wanted], their_rewards[:wanted]
