"""Making a group: indices of its samples, their grading, and the strategy without reuse."""

import asyncio
from collections.abc import Sequence

from redraft.methods.strategies.response import complete, no_draft
from redraft.methods.strategies.tools import Tools
from redraft.rollout.types import Group, Rollout, Sample, Task


def indices(task: Task) -> range:
    """Indices of the samples to make, behind those that the task carries."""
    return range(len(task.carried), len(task.carried) + task.samples)


async def graded(task: Task, rollouts: Sequence[Rollout], tools: Tools) -> Group:
    """The task's group: what it carries, and these rollouts with their rewards."""
    rewards = await tools.reward(task.prompt, rollouts)
    made = (Sample(rollout, float(reward)) for rollout, reward in zip(rollouts, rewards, strict=True))
    return Group(task.prompt, task.visit, (*task.carried, *made))


async def vanilla(task: Task, tools: Tools) -> Group:
    """Sample every rollout from its first token on."""
    samples = (complete(no_draft(task.prompt, sample), task, tools) for sample in indices(task))
    return await graded(task, await asyncio.gather(*samples), tools)
