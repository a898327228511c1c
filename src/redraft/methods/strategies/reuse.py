"""Strategies that go on from drafts: SPEC-RL (arXiv 2509.23232, Algorithm 1) and its variants."""

import asyncio

import numpy as np

from redraft.methods.acceptance.random_cut import random_rejection
from redraft.methods.acceptance.ratio import first_rejection
from redraft.methods.strategies.exact import is_renewed
from redraft.methods.strategies.groups import graded, indices
from redraft.methods.strategies.response import Cut, Draw, Kept, complete, inverted, no_draft
from redraft.methods.strategies.tools import Strategy, Tools
from redraft.methods.strategies.verification import verify
from redraft.rollout.engine import Scores, Session
from redraft.rollout.types import Group, Rollout, Task


def reuse_drafts(cut: Cut, visits_ago: int = 1, fresh_every: int = 0, draw: Draw = inverted) -> Strategy:
    """Take each sample's rollout of so many visits ago, or the oldest, as a draft; keep what `cut` says and go on.

    Args:
        cut: says what is kept.
        visits_ago: from 1.
        fresh_every: visits after which a sample is drawn without a draft; 0 for never.
        draw: makes the random numbers of what is sampled.
    """

    async def run(task: Task, tools: Tools) -> Group:
        found = tools.memory.drafts(task.prompt, visits_ago, before=task.visit)
        drafts = {sample: draft for sample, draft in found.items() if not is_renewed(task, sample, fresh_every)}
        samples = (
            complete(drafts.get(sample) or no_draft(task.prompt, sample), task, tools, cut, draw)
            for sample in indices(task)
        )
        return await graded(task, await asyncio.gather(*samples), tools)

    return run


def verified(lenience: float, fixed_uniforms: bool = False, refreshed_log_probs: bool = False) -> Cut:
    """Cut at the first token that equation (3) rejects.

    Args:
        lenience: of equation (3); a task's own takes its place.
        fixed_uniforms: decide by the same numbers at every step.
        refreshed_log_probs: store the current policy's log-probability of a kept token; else that of the policy which
            sampled it stays.
    """

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        ell = lenience if task.lenience is None else task.lenience
        draw = tools.streams.fixed_uniforms if fixed_uniforms else tools.streams.uniforms
        with tools.meter.assembling():
            u = draw("acceptance", draft.prompt, draft.sample, draft.length)

        def judge(scores: Scores, places: slice) -> int:
            new, old = scores.log_probs, draft.log_probs[places]
            return int(first_rejection(new[None], old[None], u[None, places], [len(new)], ell)[0])

        known = tools.scores.get((draft.prompt, draft.sample))
        if known is None:
            prefix, scores = await verify(draft.tokens, session, tools, judge)
        else:
            scores = Scores(known)
            with tools.meter.assembling():
                prefix = judge(scores, slice(0, draft.length))
        new = scores.log_probs
        return Kept(prefix, (new if refreshed_log_probs else draft.log_probs)[:prefix], verified=len(new))

    return cut


async def at_random(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
    """Cut at a random token; nothing is scored."""
    u = tools.streams.uniforms("acceptance", draft.prompt, draft.sample, 1)
    prefix = int(random_rejection(u, np.array([draft.length]))[0])
    return Kept(prefix, draft.log_probs[:prefix])
