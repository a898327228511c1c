"""Groups of rollouts for tests: methods, drafts, a scripted engine, and two epochs of a policy that changes."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from redraft.config.capability import Capability
from redraft.config.retention import Retention
from redraft.engines.requests import chunk_end
from redraft.methods.release import DEVIATIONS, ReleaseVariant
from redraft.methods.reuse import ReuseMethod
from redraft.methods.speculative import Speculative
from redraft.rollout.context import Meter, RolloutContext, Streams
from redraft.rollout.engine import Continuation, Inversion, Scores
from redraft.rollout.memory import Memory
from redraft.rollout.streams import gumbel, stream
from redraft.rollout.types import Finish, Group, Rollout, Sample, Task, TopLogProbs

EOS, VOCABULARY, LIMIT, GROUP = 0, 6, 8, 4
PROMPTS = {0: [3, 4], 1: [5], 2: [2, 2, 2]}
SPECULATIVE = Speculative.examples()
REUSING = SPECULATIVE[1:]
RELEASES = ReleaseVariant.examples()
METHODS = [method for kind in ReuseMethod.registered() for method in kind.examples()]
"""Settings of all registered methods."""


def release(*deviations, lenience="e^0.5"):
    """The published code with these of its deviations."""
    return ReleaseVariant(lenience=lenience, **{name: name in deviations for name in DEVIATIONS})


def name_of(method):
    """A name that differs wherever settings do."""
    fields = method.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    return "-".join([method.kind, *(f"{name}={value}" for name, value in fields.items())])


def is_able(engine, method):
    """True if an engine's sessions can do what a method needs."""
    return method.needs - {Capability.TRAINER_SCORES, Capability.STORED_LOG_PROBS} <= engine.capabilities


class Recording:
    """An engine that notes drafts to score, and (prefix, limit, random numbers) to decode after."""

    def __init__(self, engine):
        self.engine, self.stops, self.capabilities = engine, engine.stops, engine.capabilities
        self.scored, self.decoded = [], []

    @asynccontextmanager
    async def session(self, prompt):
        async with self.engine.session(prompt) as session:
            yield RecordingSession(self, session)


class RecordingSession:
    def __init__(self, engine, session):
        self.engine, self.session = engine, session

    async def score(self, draft, at=None, top=0, noise=None, scored=None):
        scores = await self.session.score(draft, at, top, noise, scored)
        self.engine.scored.append(draft[scored or 0 :][: len(scores.log_probs)])
        return scores

    async def decode(self, prefix, max_new_tokens, noise, first=None, top=0):
        assert max_new_tokens >= 1
        assert not self.engine.stops & set(prefix.tolist()), "nothing may be decoded after the end of a response"
        numbers = noise
        if isinstance(noise, Inversion):
            assert noise.uniforms.shape == (max_new_tokens,)
            numbers = tuple(noise.uniforms)
        self.engine.decoded.append((prefix.tolist(), max_new_tokens, numbers))
        return await self.session.decode(prefix, max_new_tokens, noise, first, top)


class ScriptedEngine(Recording):
    """An engine whose policy is a fixed random distribution of each context; `drift` moves it, `distribution` replaces
    it."""

    stops = frozenset({EOS})
    capabilities = frozenset(Capability) - {Capability.TRAINER_SCORES, Capability.STORED_LOG_PROBS}

    def __init__(self, drift=0.0, distribution=None, stops=stops, chunk=None):
        self.drift, self.scored, self.decoded, self.stops, self.chunk = drift, [], [], frozenset(stops), chunk
        if distribution:
            self.distribution = distribution

    def distribution(self, context):
        context = [int(token) for token in context]
        logits = stream(0, "law", *context).normal(size=VOCABULARY)
        logits = logits + self.drift * stream(1, "law", *context).normal(size=VOCABULARY)
        return np.exp(logits) / np.exp(logits).sum()

    def log_probs(self, prompt, response):
        with np.errstate(divide="ignore"):
            distributions = (self.distribution([*prompt, *response[:i]])[token] for i, token in enumerate(response))
            return np.log(np.array([*distributions])).astype(np.float32)

    @asynccontextmanager
    async def session(self, prompt):
        yield RecordingSession(self, ScriptedSession(self, list(prompt)))


class ScriptedSession:
    """Says that it computed neither prompt nor prefix again."""

    def __init__(self, engine, prompt):
        self.engine, self.prompt = engine, prompt

    def distributions(self, response):
        """Distributions, float64 (length, vocabulary), of each token of a response."""
        return np.array([self.engine.distribution([*self.prompt, *response[:i]]) for i in range(len(response))])

    async def score(self, draft, at=None, top=0, noise=None, scored=None):
        await asyncio.sleep(0)
        places = slice(scored or 0, chunk_end(len(draft), scored, self.engine.chunk))
        draft, known = draft[: places.stop], places.start
        distributions = self.distributions(draft)[known:]
        with np.errstate(divide="ignore"):
            others = at if at is None else np.log(np.take_along_axis(distributions, at[places], 1)).astype(np.float32)
        sampled = (
            [self.sample(distribution, noise, known, place) for place, distribution in enumerate(distributions)]
            if noise
            else None
        )
        return Scores(
            self.engine.log_probs(self.prompt, draft)[known:],
            others,
            self.top(draft.tolist(), known, top) if top else None,
            None if sampled is None else np.array(sampled, np.int32),
        )

    async def decode(self, prefix, max_new_tokens, noise, first=None, top=0):
        await asyncio.sleep(0)
        tokens, prefix = [], [int(token) for token in prefix]
        while len(tokens) < max_new_tokens and not self.engine.stops & set(tokens):
            distribution = np.array(self.engine.distribution([*self.prompt, *prefix, *tokens]))
            if first and not tokens:
                distribution = self.residual(distribution, first)
            tokens.append(self.sample(distribution, noise, len(prefix), len(tokens)))
        log_probs = self.engine.log_probs([*self.prompt, *prefix], tokens)
        finish = Finish.EOS if tokens[-1] in self.engine.stops else Finish.LENGTH
        cached = len(self.prompt) + len(prefix)
        distribution = self.top(prefix + tokens, len(prefix), top) if top else None
        return Continuation(np.array(tokens, dtype=np.int32), log_probs, finish, cached, distribution)

    @staticmethod
    def residual(distribution, first):
        rest = distribution.copy()
        rest[first.tokens] *= first.left
        return rest if rest.any() else distribution

    @staticmethod
    def sample(weights, noise, prefix, count):
        if isinstance(noise, Inversion):
            return int(np.searchsorted(np.cumsum(weights) / weights.sum(), noise.uniforms[count]))
        with np.errstate(divide="ignore"):
            return int((np.log(weights) + gumbel(noise.key, prefix + count, np.arange(len(weights)))).argmax())

    def top(self, response, prefix, count):
        distributions = self.distributions(response)[prefix:]
        tokens = np.argsort(-distributions, axis=1, kind="stable")[:, :count].astype(np.int32)
        with np.errstate(divide="ignore"):
            return TopLogProbs(tokens, np.log(np.take_along_axis(distributions, tokens, 1)).astype(np.float32))


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


def new_memory(visits=2, **retention):
    """An empty memory that keeps so many visits."""
    return Memory(Retention(visits=visits, **retention))


async def no_reward(prompt, rollouts):
    """Rewards of an uneventful group."""
    return np.zeros(len(rollouts), np.float32)


@dataclass
class Setting:
    """What a group is rolled out in, but for the engine."""

    step: int = 0
    visit: int = 0
    memory: Memory = field(default_factory=new_memory)
    limit: int = LIMIT
    meter: Meter = field(default_factory=Meter)
    scores: dict = field(default_factory=dict)
    reward: object = no_reward
    group: int = GROUP
    prompts: dict = field(default_factory=lambda: PROMPTS)

    def context(self, engine):
        streams = Streams(7, self.step)
        return RolloutContext(
            engine, self.reward, self.memory, self.meter, streams, self.prompts, self.limit, self.scores
        )

    def task(self, prompt, **fields):
        return Task(prompt, self.visit, self.group, **fields)


def roll_out(method, prompt, engine, setting, world=ScriptedWorld(), **fields):  # noqa: B008
    """Rollouts of one prompt."""
    return world.run(method.strategy()(setting.task(prompt, **fields), setting.context(engine)))[0].rollouts


def two_epochs(method, world=ScriptedWorld()):  # noqa: B008
    """Groups of all prompts in two epochs of a changing policy; the second finds drafts of the first.

    Prompt p is rolled out at step p, or 10 + p.

    Returns:
        for each of the two, the engine and the rollouts.
    """
    memory, epochs = Memory(method.retention), []
    for epoch in range(2):
        engine = world.engine(epoch)
        settings = {p: Setting(10 * epoch + p, epoch, memory) for p in PROMPTS}
        groups = world.run(*(method.strategy()(settings[p].task(p), settings[p].context(engine)) for p in PROMPTS))
        for group in groups:
            memory.put(group)
        epochs.append((engine, [rollout for group in groups for rollout in group.rollouts]))
    return epochs


def a_draft(tokens, log_probs=None, sampled_at=0, sample=0, top=0):
    """A rollout of prompt 0 that some earlier policy sampled; with `top`, that policy had a uniform distribution."""
    tokens = np.array(tokens, dtype=np.int32)
    log_probs = np.full(len(tokens), -1.0, np.float32) if log_probs is None else np.array(log_probs, np.float32)
    finish = Finish.EOS if tokens[-1] == EOS else Finish.LENGTH
    stored = np.tile(np.arange(top, dtype=np.int32), (len(tokens), 1))
    distribution = TopLogProbs(stored, np.full(stored.shape, -np.log(VOCABULARY), np.float32)) if top else None
    return Rollout(0, sample, tokens, log_probs, np.full(len(tokens), sampled_at, np.int32), finish, top=distribution)


def group_of(rollouts, visit=0, rewards=()):
    """A group of rollouts of one prompt, without rewards unless they are given."""
    pairs = zip(rollouts, rewards or [0.0] * len(rollouts), strict=True)
    return Group(rollouts[0].prompt, visit, tuple(Sample(rollout, reward) for rollout, reward in pairs))


def memory_of(*tokens, **fields):
    """A memory whose visit 0 of prompt 0 has these tokens as every sample's draft."""
    memory = new_memory(top=fields.get("top", 0))
    memory.put(group_of([a_draft(*tokens, sample=sample, **fields) for sample in range(GROUP)]))
    return memory
