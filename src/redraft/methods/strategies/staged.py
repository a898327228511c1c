"""AR3PO (arXiv 2509.25808): responses in stages while a prompt has none correct, then reuse of an earlier one."""

import asyncio
from dataclasses import replace

from redraft.config.reuse import Staged
from redraft.methods.strategies.groups import graded
from redraft.methods.strategies.response import Cut, complete, no_draft
from redraft.methods.strategies.tools import Strategy, Tools
from redraft.rollout.types import Group, OldLogProbs, Sample, Task, Use

REPLAYS = {
    "recomputed": (Use.TRAINED, OldLogProbs.RECOMPUTED),
    "stopped": (Use.STOPPED, OldLogProbs.RECOMPUTED),
    "stored": (Use.TRAINED, OldLogProbs.STORED),
}
"""Part of the reused response in the update, and its old log-probabilities, by `Staged.replay`."""


def staged(method: Staged, cut: Cut | None = None) -> Strategy:
    """Make `stage_size` responses at a time until one is correct or the task's number of samples is made.

    Args:
        method: sizes and options.
        cut: what is kept of each sample's last rollout, as a draft; None samples every response from its first token.
    """

    async def run(task: Task, tools: Tools) -> Group:
        drafts = tools.memory.drafts(task.prompt, before=task.visit) if cut else {}
        group = Group(task.prompt, task.visit, task.carried)
        end = len(task.carried) + task.samples
        while len(group.samples) < end and not any(sample.correct for sample in group.samples):
            first = len(group.samples)
            stage = range(first, min(first + method.stage_size, end))
            made = (complete(drafts.get(s) or no_draft(task.prompt, s), task, tools, cut) for s in stage)
            group = await graded(replace(task, carried=group.samples), await asyncio.gather(*made), tools)
        return _with_replay(group, method, tools)

    return run


def _with_replay(group: Group, method: Staged, tools: Tools) -> Group:
    """The group, with a correct response from memory in the place of a wrong one if all are wrong."""
    known = [] if method.replay == "none" else tools.memory.correct(group.prompt)
    if not known or any(sample.correct for sample in group.samples):
        return group
    samples = list(group.samples)
    which, place = tools.streams.uniforms("replay", group.prompt, 0, 2)
    wrong = {"first": 0, "last": len(samples) - 1, "random": _index(place, len(samples))}[method.replaced]
    samples[wrong] = replace(samples[wrong], use=Use.REPLACED)
    use, old_log_probs = REPLAYS[method.replay]
    # An index of its own, since the replaced sample keeps its one.
    rollout = replace(known[_index(which, len(known))], sample=len(samples))
    return replace(group, samples=(*samples, Sample(rollout, 1.0, use, old_log_probs, carried=True)))


def _index(uniform: float, count: int) -> int:
    """Index below `count` from a number on (0, 1]."""
    return min(int((1.0 - uniform) * count), count - 1)
