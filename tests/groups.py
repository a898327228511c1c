"""Groups of rollouts for tests: methods, drafts, a scripted engine, and two epochs of a policy that changes."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from redraft.config.reuse import DelayedReuse, RandomReuse, ReleaseVariant, Speculative, Vanilla
from redraft.rollout.drafts import DraftStore
from redraft.rollout.engine import Continuation
from redraft.rollout.strategies import Context, strategy
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Rollout

EOS, VOCABULARY, LIMIT, GROUP = 0, 6, 8, 4
PROMPTS = {0: [3, 4], 1: [5], 2: [2, 2, 2]}
SPECULATIVE = [Speculative(lenience=lenience) for lenience in (0, 1, "e^0.5", "inf")]
REUSING = SPECULATIVE[1:]
DEVIATIONS = ("fixed_uniforms", "refreshed_log_probs", "trainer_verification")


def release(*deviations, lenience="e^0.5"):
    """The published code with these of its deviations."""
    return ReleaseVariant(lenience=lenience, **{name: name in deviations for name in DEVIATIONS})


RELEASES = [release(), *map(release, DEVIATIONS), release(*DEVIATIONS)]
METHODS = [Vanilla(), *SPECULATIVE, RandomReuse(), DelayedReuse(), DelayedReuse(lenience="inf"), *RELEASES]


def name_of(method):
    deviations = [name for name in DEVIATIONS if getattr(method, name, False)]
    return "-".join([method.kind, f"{getattr(method, 'lenience', 0):.3g}", *deviations])


class Recording:
    """An engine that notes what it is asked for: drafts to score, and (prefix, limit, uniforms) to decode behind."""

    def __init__(self, engine):
        self.engine, self.stops = engine, engine.stops
        self.scored, self.decoded = [], []

    @asynccontextmanager
    async def session(self, prompt):
        async with self.engine.session(prompt) as session:
            yield RecordingSession(self, session)


class RecordingSession:
    def __init__(self, engine, session):
        self.engine, self.session = engine, session

    async def score(self, draft):
        self.engine.scored.append(draft)
        return await self.session.score(draft)

    async def decode(self, prefix, max_new_tokens, uniforms):
        assert max_new_tokens >= 1
        assert uniforms.shape == (max_new_tokens,)
        assert not self.engine.stops & set(prefix.tolist()), "nothing may be decoded behind the end of a response"
        self.engine.decoded.append((prefix.tolist(), max_new_tokens, tuple(uniforms)))
        return await self.session.decode(prefix, max_new_tokens, uniforms)


class ScriptedEngine(Recording):
    """An engine whose policy is a fixed random law of each context; `drift` moves it, `law` replaces it."""

    stops = frozenset({EOS})

    def __init__(self, drift=0.0, law=None, stops=stops):
        self.drift, self.scored, self.decoded, self.stops = drift, [], [], frozenset(stops)
        if law:
            self.law = law

    def law(self, context):
        context = [int(token) for token in context]
        logits = stream(0, "law", *context).normal(size=VOCABULARY)
        logits = logits + self.drift * stream(1, "law", *context).normal(size=VOCABULARY)
        return np.exp(logits) / np.exp(logits).sum()

    def log_probs(self, prompt, response):
        with np.errstate(divide="ignore"):
            laws = (self.law([*prompt, *response[:i]])[token] for i, token in enumerate(response))
            return np.log(np.array([*laws])).astype(np.float32)

    @asynccontextmanager
    async def session(self, prompt):
        yield RecordingSession(self, ScriptedSession(self, list(prompt)))


class ScriptedSession:
    """Says that it computed neither prompt nor prefix again."""

    def __init__(self, engine, prompt):
        self.engine, self.prompt = engine, prompt

    async def score(self, draft):
        await asyncio.sleep(0)
        return self.engine.log_probs(self.prompt, draft)

    async def decode(self, prefix, max_new_tokens, uniforms):
        await asyncio.sleep(0)
        tokens = []
        while len(tokens) < max_new_tokens and not self.engine.stops & set(tokens):
            law = self.engine.law([*self.prompt, *prefix, *tokens])
            tokens.append(int(np.searchsorted(np.cumsum(law) / law.sum(), uniforms[len(tokens)])))
        log_probs = self.engine.log_probs([*self.prompt, *prefix], tokens)
        finish = Finish.EOS if tokens[-1] in self.engine.stops else Finish.LENGTH
        cached = len(self.prompt) + len(prefix)
        return Continuation(np.array(tokens, dtype=np.int32), log_probs, finish, cached)


class ScriptedWorld:
    """Scripted engines with the policies of two epochs. Worlds of other engines have the same methods."""

    def engine(self, epoch, stops=ScriptedEngine.stops):
        """An engine with the policy of epoch 0 or 1, which notes what it is asked for."""
        return ScriptedEngine(0.7 * epoch, stops=stops)

    def run(self, *coroutines):
        """Results of coroutines that use the engine made last."""

        async def everything():
            return await asyncio.gather(*coroutines)

        return asyncio.run(everything())

    def log_probs(self, epoch, prompt, response):
        """Log-probabilities of a response under the policy of an epoch."""
        return ScriptedEngine(0.7 * epoch).log_probs(prompt, response)


def make_context(step=0, epoch=0, drafts=None, limit=LIMIT):
    return Context(7, step, epoch, GROUP, limit, drafts if drafts is not None else DraftStore())


def roll_out(method, prompt, engine, context, world=ScriptedWorld()):  # noqa: B008
    return world.run(strategy(method)(prompt, PROMPTS[prompt], engine, context))[0]


def two_epochs(method, world=ScriptedWorld()):  # noqa: B008
    """Groups of all prompts in two epochs of a changing policy; the second finds drafts of the first.

    The second is epoch 1, or 2 where a draft is of two epochs ago. Prompt p is rolled out at step p, or 10 + p.

    Returns:
        for each of the two, the engine and the rollouts.
    """
    drafts, epochs = DraftStore(), []
    for i, epoch in enumerate((0, 2 if method.kind == "delayed" else 1)):
        engine = world.engine(i)
        contexts = {p: make_context(10 * i + p, epoch, drafts) for p in PROMPTS}
        groups = world.run(*(strategy(method)(p, PROMPTS[p], engine, contexts[p]) for p in PROMPTS))
        rollouts = [rollout for group in groups for rollout in group]
        for rollout in rollouts:
            drafts.put(rollout, epoch)
        epochs.append((engine, rollouts))
    return epochs


def a_draft(tokens, log_probs=None, sampled_at=0, sample=0):
    """A rollout of prompt 0 that some earlier policy drew."""
    tokens = np.array(tokens, dtype=np.int32)
    log_probs = np.full(len(tokens), -1.0, np.float32) if log_probs is None else np.array(log_probs, np.float32)
    finish = Finish.EOS if tokens[-1] == EOS else Finish.LENGTH
    return Rollout(0, sample, tokens, log_probs, np.full(len(tokens), sampled_at, np.int32), finish)


def store_of(*tokens, **fields):
    """A store whose epoch 0 has these tokens as every sample's draft."""
    drafts = DraftStore()
    for sample in range(GROUP):
        drafts.put(a_draft(*tokens, sample=sample, **fields), 0)
    return drafts
