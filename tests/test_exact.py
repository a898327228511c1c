"""The seam is enough for an exact method: reuse with residuals, written here over the session's interface alone.

It follows speculative sampling (Leviathan et al., 2023; Chen et al., 2023) with an earlier policy as the drafter.
SPEC-RL's published rule verifies alike at a lenience of 1, but goes on from the policy's law, not from the residual.
"""

import asyncio
import itertools
from functools import cache

import numpy as np
import pytest
from scipy import stats

from redraft.rollout.engine import Inversion, Residual
from redraft.rollout.streams import stream, uniforms
from tests.groups import ScriptedEngine

STOP, TOKENS, LONGEST, DRAWS = 0, 3, 3, 4000
PROMPT, NOTHING = [1], np.zeros(0, dtype=np.int32)
RESPONSES = [
    response
    for length in range(1, LONGEST + 1)
    for response in itertools.product(range(TOKENS), repeat=length)
    if STOP not in response[:-1] and (response[-1] == STOP or length == LONGEST)
]


def random_law(policy):
    """A policy: a law of each context, from a stream of its own."""

    @cache
    def drawn(*context):
        return stream(policy, "law", *context).dirichlet(np.full(TOKENS, 1.5))

    return lambda context: drawn(*map(int, context))


EARLIER, CURRENT = (ScriptedEngine(law=random_law(policy)) for policy in range(2))


async def sampled(engine, number):
    """A response of the earlier policy with the whole law of each token."""
    async with engine.session(PROMPT) as session:
        return await session.decode(
            NOTHING, LONGEST, Inversion(uniforms(0, "draft", number, count=LONGEST)), top=TOKENS
        )


async def reused(engine, draft, number, exact):
    """A response of the current policy that begins with the accepted tokens of a draft.

    Args:
        engine: holds the current policy p.
        draft: response of another policy, with the top of its law q.
        number: names the random streams.
        exact: whether the first token behind a rejection comes from the residual p - min(p, q); else from p.
    """
    async with engine.session(PROMPT) as session:
        scores = await session.score(draft.tokens, draft.top.tokens)
        ratios = np.exp(scores.log_probs.astype(float) - draft.log_probs)
        rejected = uniforms(0, "acceptance", number, count=len(ratios)) > ratios
        cut = int(rejected.argmax()) if rejected.any() else len(ratios)
        if cut == LONGEST or (cut and draft.tokens[cut - 1] == STOP):
            return tuple(draft.tokens[:cut].tolist())
        first = None
        if exact and cut < len(ratios):
            accepted = np.exp(np.minimum(scores.others[cut], draft.top.log_probs[cut]).astype(float))
            first = Residual(draft.top.tokens[cut], accepted)
        draws = Inversion(uniforms(0, "sampling", number, count=LONGEST - cut))
        behind = await session.decode(draft.tokens[:cut], LONGEST - cut, draws, first)
        return (*draft.tokens[:cut].tolist(), *behind.tokens.tolist())


def law_of(engine):
    """Probability of each response under a policy, by enumeration."""
    return np.array([np.exp(engine.log_probs(PROMPT, response).astype(float).sum()) for response in RESPONSES])


def counts_of(exact):
    """Frequency of each response among reused ones."""

    async def one(number):
        return await reused(CURRENT, await sampled(EARLIER, number), number, exact)

    async def everything():
        return await asyncio.gather(*map(one, range(DRAWS)))

    found = asyncio.run(everything())
    assert set(found) <= set(RESPONSES)
    return np.array([found.count(response) for response in RESPONSES])


def test_the_two_policies_differ():
    assert law_of(CURRENT).sum() == pytest.approx(1)
    assert np.abs(law_of(CURRENT) - law_of(EARLIER)).sum() / 2 > 0.2


def test_drafts_cut_with_a_residual_have_the_current_policys_law():
    expected = DRAWS * law_of(CURRENT)
    assert expected.min() > 5
    assert stats.chisquare(counts_of(exact=True), expected, sum_check=False).pvalue > 1e-3


def test_the_published_rules_law_is_another():
    assert stats.chisquare(counts_of(exact=False), DRAWS * law_of(CURRENT), sum_check=False).pvalue < 1e-12
