"""Drafts scored in chunks: the same responses as from whole drafts, and nothing computed after the cut's chunk."""

import asyncio
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.engines.requests import chunk_end
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.vllm.engine import BLOCK, VLLMEngine
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.random_cut import RandomCut
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions
from redraft.methods.acceptance.weighted import WeightedRule
from redraft.methods.block import BlockReuse
from redraft.methods.gumbel import CoupledReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.methods.staged import Staged
from redraft.methods.weighted import WeightedReuse
from redraft.rollout.engine import Gumbel, Inversion
from redraft.rollout.streams import stream, uniforms
from tests.groups import (
    EOS,
    PROMPTS,
    VOCABULARY,
    ScriptedEngine,
    Setting,
    group_of,
    new_memory,
    release,
    roll_out,
)
from tests.test_vllm_engine import ScriptedClient

LONG = 24
STOPPING = [
    Speculative(lenience="e^0.5"),
    Speculative(lenience="inf"),
    Staged(lenience=1.0),
    ResidualReuse(top=3),
    WeightedReuse(top=4),
    OneHotReuse(),
    CoupledReuse(),
    release("refreshed_log_probs", "fixed_uniforms"),
]
WHOLE = [BlockReuse(top=3), release("trainer_verification")]


@cache
def distribution(drift, context):
    return ScriptedEngine(drift).distribution(context)


def an_engine(drift, chunk=None):
    return ScriptedEngine(distribution=lambda context: distribution(drift, tuple(map(int, context))), chunk=chunk)


def two_visits(method, chunk, drift, step):
    """Engine and responses of a second visit of prompt 0, whose policy has drifted."""
    memory = new_memory(**{**method.retention.model_dump(), "visits": 1})
    old = roll_out(method, 0, an_engine(0.0), Setting(0, 0, memory, limit=LONG))
    memory.put(group_of(old, 0))
    engine, scores = an_engine(drift, chunk), {}
    if getattr(method, "trainer_verification", False):
        scores = {(0, r.sample): engine.log_probs(PROMPTS[0], r.tokens) for r in old}
    return engine, roll_out(method, 0, engine, Setting(step, 1, memory, limit=LONG, scores=scores))


def content(rollout):
    """All of a rollout but for how much of its draft was scored."""
    arrays = ("tokens", "log_probs", "sampled_at", "log_weights")
    distribution = rollout.top and (rollout.top.tokens.tobytes(), rollout.top.log_probs.tobytes())
    bits = [None if (a := getattr(rollout, name)) is None else a.tobytes() for name in arrays]
    return bits, distribution, rollout.finish, rollout.prefix_length, rollout.draft_length


@pytest.mark.parametrize("method", STOPPING + WHOLE, ids=lambda m: f"{m.kind}-{getattr(m, 'lenience', 0)}")
@settings(max_examples=25, phases=[Phase.generate])  # examples are small, and to make them smaller takes minutes
@given(chunk=st.integers(1, LONG), drift=st.sampled_from([0.0, 0.1, 0.5, 1.5]), step=st.integers(1, 50))
def test_responses_are_the_same_in_chunks_and_less_is_scored(method, chunk, drift, step):
    (whole, expected), (engine, found) = (two_visits(method, c, drift, step) for c in (None, chunk))
    assert [content(r) for r in found] == [content(r) for r in expected]
    assert sorted(map(str, engine.decoded)) == sorted(map(str, whole.decoded))
    assert [r.verified for r in expected] == [r.draft_length for r in expected]
    if method in WHOLE:
        assert [r.verified for r in found] == [r.draft_length for r in found]
        return
    assert sum(map(len, engine.scored)) == sum(r.verified for r in found)
    for rollout in found:
        assert rollout.verified == scored_of(rollout.draft_length, rollout.prefix_length, chunk)


def scored_of(length, cut, chunk):
    """Tokens scored of a draft with this cut: its chunks up to the one that holds it."""
    end = 0
    while end < length and end <= cut:
        end = chunk_end(length, end, chunk)
    return end


def test_much_of_the_drafts_is_never_scored():
    """Else the test above would say little."""
    counts = [
        (sum(r.verified for r in found), sum(r.draft_length for r in found))
        for step in range(1, 9)
        for _, found in [two_visits(Speculative(lenience=1.0), 2, 0.5, step)]
    ]
    scored, drafts = map(sum, zip(*counts, strict=True))
    assert 0.1 < scored / drafts < 0.8


@given(length=st.integers(1, 300), chunk=st.integers(1, 310))
def test_chunks_cover_a_draft_and_none_is_less_than_half_of_one(length, chunk):
    ends = [0]
    while ends[-1] < length:
        ends.append(chunk_end(length, ends[-1], chunk))
    sizes = np.diff(ends)
    assert ends[-1] == length
    assert (sizes[:-1] == chunk).all()
    assert len(sizes) == 1 or chunk / 2 <= sizes[-1] < 1.5 * chunk
    assert chunk_end(length, None, chunk) == chunk_end(length, 0, None) == length
    with pytest.raises(ValueError, match="nothing to score"):
        chunk_end(length, length, chunk)


@pytest.mark.parametrize("rule", [ResidualRule(0.8), SpecRLRule(1.3), WeightedRule(1.2)])
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 7))
def test_a_rule_that_stops_early_needs_no_more_than_the_distributions_up_to_its_cut(rule, seed, cut):
    numbers = np.random.default_rng(seed)
    p, q = np.log(numbers.dirichlet(np.ones(VOCABULARY), (2, 8)))
    tokens, places = numbers.integers(0, VOCABULARY, 8), np.arange(8)
    whole = Distributions(tokens, p[places, tokens], q[places, tokens], np.tile(np.arange(VOCABULARY), (8, 1)), p, q)
    parts = [
        Distributions(*(getattr(whole, name)[part] for name in whole.__dataclass_fields__))
        for part in (slice(cut), slice(cut, 8))
    ]
    assert rule.stops_early
    assert np.array_equal(rule.acceptance(whole), np.concatenate([rule.acceptance(part) for part in parts]))
    kept = rule.kept(1.0 - numbers.random(8) <= rule.acceptance(whole))
    if kept < cut:
        first, alone = (rule.residual(distributions, kept) for distributions in (whole, parts[0]))
        assert (first is None) is (alone is None)
        if first is not None:
            assert first.left.tolist() == alone.left.tolist()


def test_chances_of_rules_that_need_the_whole_draft_do_depend_on_it():
    """Declaring them to stop early makes these tests fail."""
    assert not BlockRule.stops_early
    assert not RandomCut.stops_early
    distributions = Distributions.one_hot(np.zeros(4, np.int32), np.full(4, -0.5))
    half = Distributions.one_hot(np.zeros(2, np.int32), np.full(2, -0.5))
    assert RandomCut().acceptance(distributions)[:2].tolist() != RandomCut().acceptance(half).tolist()
    assert BlockRule().acceptance(distributions)[:2].tolist() != BlockRule().acceptance(half).tolist()


def test_joined_distributions_are_those_of_the_whole():
    numbers = np.random.default_rng(0)
    whole = Distributions.one_hot(np.arange(5, dtype=np.int32), numbers.random(5))
    parts = [
        Distributions.one_hot(np.arange(5, dtype=np.int32)[part], whole.log_p_T[part])
        for part in (slice(2), slice(2, 5))
    ]
    joined = Distributions.joined(parts)
    for name in whole.__dataclass_fields__:
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()


# The engine in this process


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=23,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=128,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def drafts_of(count=14):
    """Prompts and drafts of many lengths, and how many tokens are kept: none, some or all."""
    found = []
    for name in range(count):
        rng = stream(0, "chunks", name)
        draft = rng.integers(2, 23, rng.integers(1, 30)).astype(np.int32)
        keep = (0, int(rng.integers(0, len(draft) + 1)), len(draft))[name % 3]
        found.append((rng.integers(2, 23, rng.integers(1, 8)).tolist(), draft, keep))
    return found


async def verified(engine, name, prompt, draft, keep, chunked):
    """Scores up to the chunk of the cut, and a continuation after it."""
    at, parts, known = (np.arange(len(draft))[:, None] + np.arange(3)) % 23, [], 0
    async with engine.session(prompt) as session:
        while known < len(draft) and known <= keep:
            scores = await session.score(draft, at, 2, Gumbel(name), known if chunked else None)
            parts.append(scores)
            known += len(scores.log_probs)
        return parts, await session.decode(draft[:keep], 6, Inversion(uniforms(0, "chunks", name, count=6)))


def run(model, jobs, chunk, **options):
    engine = TorchEngine(model, **({"stops": (), "max_length": 44, "max_rows": 16, "chunk": chunk} | options))
    sessions = (verified(engine, i, *job, chunked=chunk is not None) for i, job in enumerate(jobs))
    return engine, engine.run(*sessions)


def columns(parts):
    return [
        np.concatenate(column)
        for column in zip(
            *((s.log_probs[:, None], s.others, s.top.log_probs, s.sampled[:, None]) for s in parts), strict=True
        )
    ]


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 64])
@pytest.mark.parametrize(
    "options", [{}, {"max_rows": 3}, {"max_rows": 1}, {"max_rows": 5, "max_batched_tokens": 12}], ids=str
)
def test_the_engine_scores_chunks_as_it_does_the_whole(model, chunk, options):
    """Scores differ by 1e-5 at most, as any two batches' do; tokens, continuations and their cache by nothing."""
    jobs = drafts_of()
    (_, expected), (engine, found) = (run(model, jobs, c, **o) for c, o in ((None, {}), (chunk, options)))
    for (_, draft, keep), (whole, before), (parts, after) in zip(jobs, expected, found, strict=True):
        count = sum(len(part.log_probs) for part in parts)
        assert count == scored_of(len(draft), keep, chunk)
        for ours, theirs in zip(columns(parts), columns(whole), strict=True):
            np.testing.assert_allclose(ours, theirs[:count], atol=1e-5)
        assert after.tokens.tolist() == before.tokens.tolist()
        assert after.cached == before.cached
        np.testing.assert_allclose(after.log_probs, before.log_probs, atol=1e-5)
    assert engine.usage.scored_tokens == sum(scored_of(len(draft), keep, chunk) for _, draft, keep in jobs)


def test_a_rejected_drafts_rest_passes_through_neither_trunk_nor_head(model, monkeypatch):
    engine = TorchEngine(model, stops=(), max_length=80, chunk=8)
    fed, forward = [], engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *args: [fed.append(args[0].shape[1]), forward(*args)][1])
    draft = np.full(64, 5, np.int32)
    engine.run(verified(engine, 0, [3, 4], draft, 10, True))
    assert fed == [10, 9, *[1] * 6], "prompt and a chunk, the token before the next chunk and it, and a token a pass"


def test_further_chunks_of_many_drafts_share_passes(model, monkeypatch):
    engine, fed = TorchEngine(model, stops=(), max_length=80, chunk=8, max_batched_tokens=64), []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *args: [fed.append(args[0].shape), forward(*args)][1])
    engine.run(*(verified(engine, i, [3, 4], np.full(16, 5, np.int32), 16, True) for i in range(8)))
    scoring = [tuple(shape) for shape in fed if shape[1] > 1]
    assert scoring == [(6, 10), (2, 10), (7, 9), (1, 9)], "as many as fit"


def test_a_chunk_whose_beginning_is_not_in_the_cache_is_scored_all_the_same(model):
    """Another draft was scored in between, so that the row was filled again."""
    draft, other = (stream(0, name).integers(2, 23, 20).astype(np.int32) for name in ("draft", "other"))
    engine = TorchEngine(model, stops=(), max_length=44, chunk=6)

    async def one():
        async with engine.session([3, 4]) as session:
            await session.score(other, scored=0)
            late = await session.score(draft, scored=6)
            whole = await session.score(draft)
            again = await session.score(draft, scored=6)
            return late, whole, again

    ((late, whole, again),) = engine.run(one())
    for part in (late, again):
        np.testing.assert_allclose(part.log_probs, whole.log_probs[6:12], atol=1e-5)


# vLLM's


def asked_of(draft, prompt, chunk, keep=None, cached=0):
    """Requests of a session that scores chunks up to a cut, and the scores."""
    engine, parts = VLLMEngine(ScriptedClient(cached=cached), (EOS,), 400, chunk=chunk), []

    async def one():
        known = 0
        async with engine.session(prompt) as session:
            while known < len(draft) and known <= (len(draft) if keep is None else keep):
                parts.append((await session.score(draft, scored=known)).log_probs)
                known += len(parts[-1])

    asyncio.run(one())
    return (
        engine,
        [
            (len(t), s["extra_args"]["scored_from"], s["skip_reading_prefix_cache"])
            for _, t, s in engine.client.requests
        ],
        np.concatenate(parts),
    )


def test_a_further_chunk_is_a_request_that_reads_the_cache():
    draft = np.arange(1, 101, dtype=np.int32)
    engine, requests, scores = asked_of(draft, [3] * 7, 32, keep=40)
    assert requests == [(33, 6, False), (65, 32, False)]
    assert engine.usage.scored_tokens == len(scores) == 65 - 7
    assert scores.tolist() == [-float(7 + i) for i in range(58)]


@settings(max_examples=50, phases=[Phase.generate])
@given(prompt=st.integers(1, 40), length=st.integers(1, 200), chunk=st.integers(17, 100))
def test_vllms_chunks_never_end_with_a_block_of_its_cache(prompt, length, chunk):
    """Else the distribution of the next chunk's first token would be hidden, and everything computed again."""
    _, requests, scores = asked_of(np.arange(1, length + 1, dtype=np.int32), [3] * prompt, chunk)
    assert scores.tolist() == [-float(prompt + i) for i in range(length)]
    assert requests[-1][0] == prompt + length
    for tokens, _, _ in requests[:-1]:
        assert tokens % BLOCK == 1


def test_what_the_cache_hides_of_a_further_chunk_is_scored_without_it():
    """Another draft in the cache has the first 42 tokens of prompt and draft too."""
    draft = np.arange(1, 101, dtype=np.int32)
    _, requests, scores = asked_of(draft, [3] * 7, 32, keep=40, cached=42)
    assert requests == [(33, 6, False), (33, 6, True), (65, 32, False), (42 + 1, 32, True)]
    assert scores.tolist() == [-float(7 + i) for i in range(58)]
