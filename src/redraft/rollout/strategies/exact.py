"""Exact reuse: responses that go on from drafts and have the current policy's law all the same.

A response made like this has the law of the policy that verified it, whoever sampled its tokens. So log-probabilities
and top laws stored with it are that policy's, also for the tokens that were kept.
"""

import time

from redraft.rollout.acceptance.coupling import first_difference
from redraft.rollout.acceptance.laws import Laws
from redraft.rollout.acceptance.rule import Rule
from redraft.rollout.engine import Gumbel, Scores, Session
from redraft.rollout.strategies.response import Cut, Draw, Kept
from redraft.rollout.strategies.tools import Tools
from redraft.rollout.types import Rollout, Task, TopLaw


def by_stored_laws(rule: Rule) -> Cut:
    """Keep what a rule says by the top of the law that the draft was drawn from, which is stored with it."""

    async def cut(draft: Rollout, session: Session, task: Task, tools: Tools) -> Kept:
        if draft.top is None:
            raise ValueError(f"the draft of prompt {draft.prompt}, sample {draft.sample}, has no stored law")
        scores = await session.score(draft.tokens, draft.top.tokens, tools.memory.retention.top)
        assert scores.others is not None
        laws = Laws(draft.tokens, scores.log_probs, draft.log_probs, draft.top.tokens, scores.others,
                    draft.top.log_probs)  # fmt: skip
        return _judged(rule, laws, scores, draft, tools)

    return cut


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
