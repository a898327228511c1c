"""One group: drafts of its samples, their responses, and grading."""

import asyncio
from collections.abc import Sequence

from redraft.methods.drafts.response import DraftVerifier, Sampler, by_inversion, complete, no_draft
from redraft.methods.strategy import Strategy
from redraft.rollout.context import RolloutContext
from redraft.rollout.types import Group, Rollout, Sample, Task


def reuse_drafts(
    verifier: DraftVerifier, visits_ago: int = 1, fresh_every: int = 0, sampler: Sampler = by_inversion
) -> Strategy:
    """Strategy that takes each sample's earlier rollout as a draft, keeps what is verified, and samples the rest.

    Args:
        verifier: decides what is kept.
        visits_ago: age of the drafts, from 1; the oldest rollout where there are fewer.
        fresh_every: visits after which a sample is sampled without a draft; 0 for never.
        sampler: makes the random numbers of what is sampled.
    """

    async def run(task: Task, context: RolloutContext) -> Group:
        found = context.memory.drafts(task.prompt, visits_ago, before=task.visit)
        drafts = {sample: draft for sample, draft in found.items() if not is_renewed(task, sample, fresh_every)}
        samples = (
            complete(drafts.get(sample) or no_draft(task.prompt, sample), task, context, verifier, sampler)
            for sample in indices(task)
        )
        return await graded(task, await asyncio.gather(*samples), context)

    return run


def is_renewed(task: Task, sample: int, fresh_every: int) -> bool:
    """True if a sample is sampled from its first token in this visit; samples of a group take turns.

    The visit's number decides, and nothing that happened to the sample: if old tokens alone were resampled, those that
    verification had kept would have another distribution than the others, and an exact rule would no longer be exact.
    """
    return fresh_every > 0 and (task.visit + sample) % fresh_every == 0


def indices(task: Task) -> range:
    """Indices of the samples to make, after those that the task carries."""
    return range(len(task.carried), len(task.carried) + task.samples)


async def graded(task: Task, rollouts: Sequence[Rollout], context: RolloutContext) -> Group:
    """The task's group: what it carries, and these rollouts with their rewards."""
    rewards = await context.reward(task.prompt, rollouts)
    made = (Sample(rollout, float(reward)) for rollout, reward in zip(rollouts, rewards, strict=True))
    return Group(task.prompt, task.visit, (*task.carried, *made))
