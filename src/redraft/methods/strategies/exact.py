"""Exact reuse: responses that go on from drafts and have the current policy's law all the same, or have it by weight.

A response made like this has the law of the policy that verified it, whoever sampled its tokens. So log-probabilities
and top laws stored with it are that policy's, also for the tokens that were kept.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from redraft.config.capability import Capability
from redraft.methods.acceptance.coupling import first_difference
from redraft.methods.acceptance.laws import Laws
from redraft.methods.acceptance.rule import Rule
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.strategies.response import Cut, Draw, Kept
from redraft.methods.strategies.tools import Tools
from redraft.methods.strategies.verification import verify
from redraft.rollout.engine import Gumbel, Scores, Session
from redraft.rollout.types import Rollout, Task, TopLaw


def by_stored_laws(rule: Rule) -> Cut:
    """Keep what a rule says by the top of the law that the draft was drawn from, which is stored with it."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        return (await _judged_by_stored(rule, draft, session, tools))[0]

    return cut


def weighted(rule: WeightedRule) -> Cut:
    """Keep what a rule says by the stored law, and give the response the weights that make up for the rule's bias."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        kept, laws = await _judged_by_stored(rule, draft, session, tools)
        before = np.zeros(draft.length) if draft.log_weights is None else draft.log_weights
        return replace(kept, weights=rule.weights(laws, kept.prefix, before))

    return cut


async def _judged_by_stored(rule: Rule, draft: Rollout, session: Session, tools: Tools) -> tuple[Kept, Laws]:
    """What is kept by the laws at a draft's places: what is stored with it, and what the current policy says.

    Of an engine that reports the top of the policy's law and no other tokens, S is what both tops have. It depends on
    what stands before a position alone, as either does, so that the law is the policy's all the same.
    """
    if draft.top is None:
        raise ValueError(f"the draft of prompt {draft.prompt}, sample {draft.sample}, has no stored law")
    stored = draft.top

    def laws_of(scores: Scores, places: slice) -> Laws:
        tokens, support = draft.tokens[places], stored.tokens[places]
        own, others = scores.log_probs, scores.others
        if others is None:
            assert scores.top is not None
            own, others = scores.top.of(tokens[:, None])[:, 0], scores.top.of(support)
        return Laws(tokens, own, draft.log_probs[places], support, others, stored.log_probs[places])

    at = stored.tokens if Capability.OTHER_SCORES in tools.engine.capabilities else None
    return await _judged(rule, laws_of, draft, session, tools, at=at, top=tools.memory.retention.top)


def as_certain(rule: Rule) -> Cut:
    """Keep what a rule says if the draft's law is taken to be its own tokens."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        def laws_of(scores: Scores, places: slice) -> Laws:
            return Laws.one_hot(draft.tokens[places], scores.log_probs)

        return (await _judged(rule, laws_of, draft, session, tools))[0]

    return cut


async def _judged(
    rule: Rule, laws_of: Callable[[Scores, slice], Laws], draft: Rollout, session: Session, tools: Tools, **asked: Any
) -> tuple[Kept, Laws]:
    """What a rule keeps, and the laws at the places that were scored to find out."""
    found: list[Laws] = []
    with tools.meter.assembling():
        u = tools.streams.uniforms("acceptance", draft.prompt, draft.sample, draft.length)

    def judge(scores: Scores, places: slice) -> int:
        found.append(laws_of(scores, places))
        return rule.kept(rule.chances(found[-1]), u[places])

    count, scores = await verify(draft.tokens, session, tools, judge, whole=not rule.stops_early, **asked)
    with tools.meter.assembling():
        laws = Laws.joined(found)
        first = rule.behind(laws, count)
    log_probs = scores.log_probs
    return Kept(count, log_probs[:count], len(log_probs), first, _leading(scores.top, count)), laws


def _leading(top: TopLaw | None, count: int) -> TopLaw | None:
    return None if top is None else TopLaw(top.tokens[:count], top.log_probs[:count])


def coupled(fresh_every: int) -> tuple[Cut, Draw]:
    """Keep what the policy draws again by the draft's own noise, and draw by it.

    The noise of a sample is the same in all its visits until it is drawn anew. Noise that changes where a token was
    rejected, and stays where it was kept, would not be independent of the token, and the law not the policy's.
    """

    def draw(prompt: int, sample: int, room: int, task: Task, tools: Tools) -> Gumbel:
        generation = (task.visit + sample) // fresh_every if fresh_every else 0
        return Gumbel(tools.streams.key("noise", prompt, sample, generation))

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        def judge(scores: Scores, places: slice) -> int:
            assert scores.drawn is not None
            return first_difference(draft.tokens[places], scores.drawn)

        noise = draw(draft.prompt, draft.sample, draft.length, task, tools)
        kept, scores = await verify(draft.tokens, session, tools, judge, draws=noise)
        return Kept(kept, scores.log_probs[:kept], len(scores.log_probs))

    return cut, draw


def is_renewed(task: Task, sample: int, fresh_every: int) -> bool:
    """True if a sample is drawn anew in this visit; samples of a group take turns.

    The visit's number decides, and nothing that happened to the sample: if old tokens alone were drawn anew, those that
    verification had kept would have another law than those it had not, and the rule would no longer be exact.
    """
    return fresh_every > 0 and (task.visit + sample) % fresh_every == 0
