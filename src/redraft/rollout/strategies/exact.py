"""Exact reuse: responses that go on from drafts and have the current policy's law all the same, or have it by weight.

A response made like this has the law of the policy that verified it, whoever sampled its tokens. So log-probabilities
and top laws stored with it are that policy's, also for the tokens that were kept.
"""

import time
from dataclasses import replace

import numpy as np

from redraft.config.capability import Capability
from redraft.rollout.acceptance.coupling import first_difference
from redraft.rollout.acceptance.laws import Laws
from redraft.rollout.acceptance.rule import Rule
from redraft.rollout.acceptance.weighted import WeightedRule
from redraft.rollout.engine import Gumbel, Scores, Session
from redraft.rollout.strategies.response import Cut, Draw, Kept
from redraft.rollout.strategies.tools import Tools
from redraft.rollout.types import Rollout, Task, TopLaw


def by_stored_laws(rule: Rule) -> Cut:
    """Keep what a rule says by the top of the law that the draft was drawn from, which is stored with it."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        return _judged(rule, *await _scored(draft, session, tools), draft, tools)

    return cut


def weighted(rule: WeightedRule) -> Cut:
    """Keep what a rule says by the stored law, and give the response the weights that make up for the rule's bias."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        laws, scores = await _scored(draft, session, tools)
        kept = _judged(rule, laws, scores, draft, tools)
        before = np.zeros(draft.length) if draft.log_weights is None else draft.log_weights
        return replace(kept, weights=rule.weights(laws, kept.prefix, before))

    return cut


async def _scored(draft: Rollout, session: Session, tools: Tools) -> tuple[Laws, Scores]:
    """Laws at a draft's places, by what is stored with it and what the current policy says.

    Of an engine that reports the top of the policy's law and no other tokens, S is what both tops have. It depends on
    what stands before a position alone, as either does, so that the law is the policy's all the same.
    """
    if draft.top is None:
        raise ValueError(f"the draft of prompt {draft.prompt}, sample {draft.sample}, has no stored law")
    known = Capability.OTHER_SCORES in tools.engine.capabilities
    scores = await session.score(draft.tokens, draft.top.tokens if known else None, tools.memory.retention.top)
    assert scores.top is not None
    own, others = scores.log_probs, scores.others
    if others is None:
        own, others = scores.top.of(draft.tokens[:, None])[:, 0], scores.top.of(draft.top.tokens)
    return Laws(draft.tokens, own, draft.log_probs, draft.top.tokens, others, draft.top.log_probs), scores


def as_certain(rule: Rule) -> Cut:
    """Keep what a rule says if the draft's law is taken to be its own tokens."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        scores = await session.score(draft.tokens)
        return _judged(rule, Laws.one_hot(draft.tokens, scores.log_probs), scores, draft, tools)

    return cut


def _judged(rule: Rule, laws: Laws, scores: Scores, draft: Rollout, tools: Tools) -> Kept:
    began = time.process_time()
    u = tools.streams.uniforms("acceptance", draft.prompt, draft.sample, draft.length)
    kept = rule.kept(rule.chances(laws), u)
    first = rule.behind(laws, kept)
    tools.meter.assembly_seconds += time.process_time() - began
    return Kept(kept, scores.log_probs[:kept], draft.length, first, _leading(scores.top, kept))


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
        scores = await session.score(draft.tokens, draws=draw(draft.prompt, draft.sample, draft.length, task, tools))
        assert scores.drawn is not None
        kept = first_difference(draft.tokens, scores.drawn)
        return Kept(kept, scores.log_probs[:kept], draft.length)

    return cut, draw


def is_renewed(task: Task, sample: int, fresh_every: int) -> bool:
    """True if a sample is drawn anew in this visit; samples of a group take turns.

    The visit's number decides, and nothing that happened to the sample: if old tokens alone were drawn anew, those that
    verification had kept would have another law than those it had not, and the rule would no longer be exact.
    """
    return fresh_every > 0 and (task.visit + sample) % fresh_every == 0
