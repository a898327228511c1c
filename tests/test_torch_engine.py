"""The in-process engine against plain forward passes of transformers, for all that it does to save work."""

import asyncio
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from redraft.engines.torch import head as distributions
from redraft.engines.torch import kv_cache
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.head import check_supported
from redraft.engines.torch.loop import Outside
from redraft.errors import UserError
from redraft.rollout.engine import Gumbel, Inversion, Residual
from redraft.rollout.streams import gumbel, stream, uniforms
from redraft.rollout.types import Finish

VOCABULARY, EOS, LIMIT = 23, 1, 14
NOTHING = np.zeros(0, dtype=np.int32)
CLASSES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def make_model(architecture, heads, key_value_heads):
    config_class, model_class = CLASSES[architecture]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return model_class(config)


@pytest.fixture(scope="module", params=[("qwen3", 2, 2), ("llama", 2, 2), ("qwen3", 4, 2), ("llama", 4, 1)], ids=str)
def model(request):
    return make_model(*request.param)


@pytest.fixture(scope="module")
def qwen3():
    return make_model("qwen3", 4, 2)


def make_engine(model, **settings):
    return TorchEngine(model, **({"stops": {EOS}, "max_length": 32, "max_rows": 16} | settings))


@dataclass
class Job:
    """One session: maybe score a draft, then decode after its first `keep` tokens."""

    name: int
    prompt: list[int]
    draft: np.ndarray
    scores: bool
    keep: int
    patience: int = 0
    """Turns it waits between the two, so that others overtake it."""
    decodes: bool = True

    @property
    def prefix(self):
        return self.draft[: self.keep]


@pytest.mark.parametrize(
    ("device", "before", "within"),
    [
        ("cpu", "sdpa", kv_cache.NAME),
        ("cuda", "sdpa", "sdpa"),
        ("cuda", "eager", "eager"),
        ("cuda", "flash_attention_2", "sdpa"),
    ],
)
def test_attention_takes_the_masks_of_the_cache(device, before, within):
    """A mask of the cache is of floats for each position; FlashAttention would read it as one of whole rows."""
    config = SimpleNamespace(_attn_implementation=before)
    with kv_cache.slot_attention(SimpleNamespace(config=config, device=torch.device(device))):
        assert config._attn_implementation == within
    assert config._attn_implementation == before


def make_jobs(count=12):
    """Sessions of all kinds: no draft, one kept in part, wholly or not at all, and a prefix that is never scored."""
    jobs = []
    for name in range(count):
        rng = stream(0, "jobs", name)
        draft = rng.integers(2, VOCABULARY, rng.integers(3, 9)).astype(np.int32) if name % 4 else NOTHING
        keep = (0, int(rng.integers(1, len(draft))) if len(draft) else 0, len(draft))[name % 3]
        jobs.append(
            Job(name, rng.integers(2, VOCABULARY, rng.integers(1, 7)).tolist(), draft, name % 4 in (1, 2), keep)
        )
    return jobs


async def serve(engine, job):
    async with engine.session(job.prompt) as session:
        scored = (await session.score(job.draft)).log_probs if job.scores else None
        for _ in range(job.patience):
            await asyncio.sleep(0)
        if not job.decodes:
            return scored, None
        room = LIMIT - job.keep
        return scored, await session.decode(job.prefix, room, Inversion(uniforms(0, "decode", job.name, count=room)))


def run(engine, jobs):
    return engine.run(*(serve(engine, job) for job in jobs))


def plain_log_probs(model, prompt, response, temperature=1.0):
    """Log-probabilities of a response by one forward pass over the whole."""
    tokens = torch.tensor([[*prompt, *map(int, response)]], device=model.device)
    with torch.no_grad():
        distribution = (model(input_ids=tokens).logits[0].float() / temperature).log_softmax(-1)
    chosen = distribution[:-1].gather(1, tokens[0, 1:, None])[:, 0]
    return chosen[len(prompt) - 1 :].cpu().numpy()


def check_against_plain_forward(model, jobs, results, temperature=1.0):
    for job, (scored, continuation) in zip(jobs, results, strict=True):
        if job.decodes:
            whole = np.concatenate([job.prefix, continuation.tokens])
            expected = plain_log_probs(model, job.prompt, whole, temperature)[job.keep :]
            np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)
        if job.scores:
            np.testing.assert_allclose(scored, plain_log_probs(model, job.prompt, job.draft, temperature), atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{}, {"max_rows": 3}, {"max_rows": 1}, {"max_rows": 5, "max_batched_tokens": 12}], ids=str
)
def test_scores_and_decoded_log_probs_are_those_of_a_plain_forward(model, settings):
    jobs = make_jobs()
    check_against_plain_forward(model, jobs, run(make_engine(model, **settings), jobs))


@pytest.mark.parametrize("max_rows", [2, 5, 16])
def test_sessions_that_overtake_wait_or_leave_do_not_disturb_each_other(qwen3, max_rows):
    jobs = [replace(job, patience=7 * job.name % 5, decodes=job.name % 5 != 1) for job in make_jobs(20)]
    check_against_plain_forward(qwen3, jobs, run(make_engine(qwen3, max_rows=max_rows), jobs))


def test_temperature_enters_scores_and_samples(qwen3):
    jobs = make_jobs()
    check_against_plain_forward(qwen3, jobs, run(make_engine(qwen3, temperature=0.7), jobs), temperature=0.7)


def test_a_large_vocabularys_logits_are_made_position_by_position_to_the_same(qwen3, monkeypatch):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", 0)
    jobs = make_jobs()
    check_against_plain_forward(qwen3, jobs, run(make_engine(qwen3), jobs))


def test_only_the_positions_of_drafts_have_logits(qwen3):
    jobs = [job for job in make_jobs(20) if job.scores]
    engine, positions = make_engine(qwen3), []

    async def score(job):
        async with engine.session(job.prompt) as session:
            await session.score(job.draft)

    counting = qwen3.lm_head.register_forward_pre_hook(lambda _, args: positions.append(args[0].shape[0]))
    engine.run(*map(score, jobs))
    counting.remove()
    assert sum(positions) == sum(len(job.draft) for job in jobs) == engine.usage.scored_tokens


def test_tokens_depend_on_nothing_but_prompt_prefix_and_uniforms(qwen3):
    jobs = make_jobs()

    def tokens(results):
        return [continuation.tokens.tolist() for _, continuation in results]

    alone = [tokens(run(make_engine(qwen3), [job]))[0] for job in jobs]
    assert len({tuple(t) for t in alone}) == len(jobs)
    for settings in ({}, {"max_rows": 2}, {"max_rows": 7, "max_batched_tokens": 10}):
        engine = make_engine(qwen3, **settings)
        assert tokens(run(engine, jobs)) == alone
        assert tokens(run(engine, jobs[::-1])) == alone[::-1], "an engine that was used before decodes the same"


def test_responses_end_with_end_of_sequence_or_at_the_limit(qwen3):
    jobs = make_jobs(40)
    finishes = set()
    for job, (_, continuation) in zip(jobs, run(make_engine(qwen3), jobs), strict=True):
        tokens, room = continuation.tokens.tolist(), LIMIT - job.keep
        assert len(tokens) == len(continuation.log_probs)
        assert EOS not in tokens[:-1]
        assert continuation.finish is (Finish.EOS if tokens[-1] == EOS else Finish.LENGTH)
        assert len(tokens) == room if continuation.finish is Finish.LENGTH else len(tokens) <= room
        finishes.add(continuation.finish)
    assert finishes == set(Finish)


def test_a_limit_of_one_token_is_kept(qwen3):
    async def one(engine):
        async with engine.session([3, 4]) as session:
            return await session.decode(NOTHING, 1, Inversion(np.array([0.5])))

    (continuation,) = (engine := make_engine(qwen3)).run(one(engine))
    assert len(continuation.tokens) == 1


def test_usage_counts_what_was_scored(qwen3):
    jobs, engine = make_jobs(), make_engine(qwen3)
    run(engine, jobs)
    assert engine.usage.scored_tokens == sum(len(job.draft) for job in jobs if job.scores)
    assert engine.usage.verification_seconds > 0


def test_only_scoring_takes_time_of_verification(qwen3, monkeypatch):
    """A pass over the model takes a second by this clock, whatever it is for."""
    readings, engine = [0.0], make_engine(qwen3)
    forward = engine._forward
    monkeypatch.setattr("redraft.engines.torch.engine.now", lambda device: readings[0])

    def timed(*arguments, **named):
        readings[0] += 1.0
        return forward(*arguments, **named)

    async def one(score):
        async with engine.session([3, 4]) as session:
            if score:
                await session.score(np.array([5, 6], np.int32))
            await session.decode(NOTHING, 3, Inversion(np.full(3, 0.5)))

    monkeypatch.setattr(engine, "_forward", timed)
    engine.run(one(score=False))
    assert (engine.usage.verification_seconds, readings[0]) == (0.0, 4.0), "one to fill the cache, and one a token"
    engine.run(one(score=True))
    assert engine.usage.verification_seconds == 1.0


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_as_it_was_in_its_mode_and_its_attention(training):
    model = make_model("qwen3", 4, 2).train(training)
    before = model.config._attn_implementation
    run(make_engine(model), make_jobs(2))
    assert (model.training, model.config._attn_implementation) == (training, before)


def test_a_scored_draft_is_not_computed_again(qwen3, monkeypatch):
    jobs, engine, filled = make_jobs(), make_engine(qwen3), []
    prefill = engine._prefill
    monkeypatch.setattr(
        engine, "_prefill", lambda batch: [filled.extend(len(r.sequence) for r in batch), prefill(batch)][1]
    )
    run(engine, jobs)
    assert sum(filled) == sum(len(job.prompt) + (len(job.draft) if job.scores else job.keep) for job in jobs)


def test_tokens_in_the_cache_are_those_that_were_scored_but_the_last(qwen3):
    jobs = make_jobs()
    for job, (_, continuation) in zip(jobs, run(make_engine(qwen3), jobs), strict=True):
        assert continuation.cached == (len(job.prompt) + job.keep - 1 if job.scores else 0)


def test_any_of_several_stops_ends_a_response_and_without_stops_none_does(qwen3):
    jobs, stops = make_jobs(40), {EOS, 5, 6}
    ended = [continuation for _, continuation in run(make_engine(qwen3, stops=stops), jobs)]
    assert {int(c.tokens[-1]) for c in ended if c.finish is Finish.EOS} == stops
    assert all(not stops & set(c.tokens[:-1].tolist()) for c in ended)
    for job, (_, continuation) in zip(jobs, run(make_engine(qwen3, stops=()), jobs), strict=True):
        assert (len(continuation.tokens), continuation.finish) == (LIMIT - job.keep, Finish.LENGTH)


TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
FULL = {"layer_types": ["full_attention"] * 2}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}


def longrope(original):
    """Rotary embeddings that turn eight times as slowly once a sequence of a pass is longer than `original`."""
    factors = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [8.0, 12.0, 16.0, 24.0]}
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **factors}


def phi3(original):
    """Settings of a Phi-3, which has the original length twice."""
    return {"rope_parameters": longrope(original), "original_max_position_embeddings": original}


UNSUPPORTED = [
    (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "qwen3",
        "layer_types",
    ),
    (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 4, **FULL},
        "qwen3",
        "sliding_window",
    ),
    (MistralConfig, MistralForCausalLM, {"sliding_window": 4}, "mistral", "sliding_window"),
    (Gemma2Config, Gemma2ForCausalLM, {}, "gemma2", "layer_types"),
    (Gemma2Config, Gemma2ForCausalLM, FULL, "gemma2", "attn_logit_softcapping"),
    (GptOssConfig, GptOssForCausalLM, {"num_local_experts": 2, "num_experts_per_tok": 1, **FULL}, "gpt_oss", "sinks"),
    (LlamaConfig, LlamaForCausalLM, {"max_position_embeddings": 31}, "llama", "max_position_embeddings"),
    (LlamaConfig, LlamaForCausalLM, {"rope_parameters": longrope(31)}, "llama", "rope_parameters.rope_type"),
    (Phi3Config, Phi3ForCausalLM, phi3(31), "phi3", "rope_parameters.rope_type"),
    (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 31},
        "llama",
        "rope_parameters.rope_type",
    ),
]


@pytest.mark.parametrize(("config", "model", "settings", "kind", "key"), UNSUPPORTED, ids=str)
def test_a_model_that_would_run_wrongly_is_refused(config, model, settings, kind, key):
    with pytest.raises(UserError, match=kind) as error:
        make_engine(model(config(**TINY | settings)))
    assert error.value.key == key


@pytest.mark.parametrize(
    ("config", "model", "settings"),
    [
        (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
        (Gemma2Config, Gemma2ForCausalLM, {"attn_logit_softcapping": None, **FULL}),
        (LlamaConfig, LlamaForCausalLM, {"max_position_embeddings": 32}),
        (LlamaConfig, LlamaForCausalLM, {"max_position_embeddings": 32, "rope_parameters": DYNAMIC}),
        (Phi3Config, Phi3ForCausalLM, phi3(32)),
    ],
)
def test_a_model_with_full_attention_is_run(config, model, settings):
    model = model(config(**TINY | settings))
    check_against_plain_forward(model, make_jobs(4), run(make_engine(model), make_jobs(4)))


def test_positions_that_a_pass_computes_and_drops_count_where_rotary_embeddings_change():
    """They would turn all responses of the pass."""
    model = LlamaForCausalLM(LlamaConfig(**TINY | {"rope_parameters": longrope(40)}))
    check_supported(model, 38, lookahead=2)
    with pytest.raises(UserError, match="change with the length") as refused:
        check_supported(model, 38, lookahead=3)
    assert refused.value.allowed.startswith("at most 40 positions")


def test_log_probabilities_that_are_nan_are_never_answered():
    model, jobs = make_model("qwen3", 2, 2), make_jobs()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    for chosen in ([job for job in jobs if job.scores], [job for job in jobs if not job.scores]):
        with pytest.raises(UserError, match="NaN"):
            run(make_engine(model), chosen)


def test_sessions_that_wait_for_something_outside_are_not_waited_for_for_ever(qwen3):
    async def wait(engine):
        async with engine.session([3]) as session:
            await session.score(np.array([4], dtype=np.int32))
            await asyncio.Event().wait()

    engine = make_engine(qwen3)
    with pytest.raises(RuntimeError, match="no session has a request"):
        engine.run(wait(engine))
    jobs = make_jobs()
    check_against_plain_forward(qwen3, jobs, run(engine, jobs))


def test_scored_sessions_that_hold_every_row_while_others_wait_are_named(qwen3):
    async def one(engine, barrier):
        async with engine.session([3]) as session:
            await session.score(np.array([4], dtype=np.int32))
            await barrier.wait()

    async def all_together(engine):
        barrier = asyncio.Barrier(5)
        await asyncio.gather(*(one(engine, barrier) for _ in range(5)))

    engine = make_engine(qwen3, max_rows=3)
    with pytest.raises(RuntimeError, match="2 sessions wait for rows of the cache"):
        engine.run(all_together(engine))
    enough = make_engine(qwen3, max_rows=5)
    assert enough.run(all_together(enough)) == [None]


def test_answers_that_pass_through_many_layers_are_waited_for(qwen3):
    async def layered(engine, depth):
        if depth:
            return (await asyncio.gather(layered(engine, depth - 1)))[0]
        return await serve(engine, make_jobs()[1])

    async def stages(engine):
        first = await asyncio.gather(*(layered(engine, 10) for _ in range(3)))
        return first + await asyncio.gather(*(layered(engine, 10) for _ in range(3)))

    engine = make_engine(qwen3)
    (results,) = engine.run(stages(engine))
    check_against_plain_forward(qwen3, [make_jobs()[1]] * 6, results)


def test_changed_weights_change_the_next_runs_log_probs():
    model, jobs = make_model("qwen3", 2, 2), make_jobs()
    engine = make_engine(model)
    before = run(engine, jobs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = run(engine, jobs)
    check_against_plain_forward(model, jobs, after)
    assert all(not np.allclose(b[0], a[0], atol=1e-3) for b, a in zip(before, after, strict=True) if b[0] is not None)


def test_a_session_may_score_and_decode_again(qwen3):
    job, other = make_jobs()[5], make_jobs()[6]
    prefixes = (job.draft[:2], other.draft, other.draft, NOTHING)  # the first is not of the draft scored last

    async def again(engine):
        async with engine.session(job.prompt) as session:
            scored = [(await session.score(draft)).log_probs for draft in (job.draft, other.draft)]
            draws = Inversion(uniforms(0, "again", count=8))
            return scored, [await session.decode(prefix, 8, draws) for prefix in prefixes]

    async def neighbour(engine):
        return await serve(engine, make_jobs()[1])

    engine = make_engine(qwen3, max_rows=3)
    (scored, decoded), _ = engine.run(again(engine), neighbour(engine))
    for draft, log_probs in zip((job.draft, other.draft), scored, strict=True):
        np.testing.assert_allclose(log_probs, plain_log_probs(qwen3, job.prompt, draft), atol=1e-4)
    assert decoded[1].tokens.tolist() == decoded[2].tokens.tolist()
    for prefix, continuation in zip(prefixes, decoded, strict=True):
        expected = plain_log_probs(qwen3, job.prompt, [*prefix, *continuation.tokens])[len(prefix) :]
        np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)


async def score(engine, prompt, draft):
    async with engine.session(prompt) as session:
        return (await session.score(draft)).log_probs


async def decode(engine, prompt, prefix, limit, count):
    async with engine.session(prompt) as session:
        return await session.decode(prefix, limit, Inversion(np.full(count, 0.5)))


@pytest.mark.parametrize(
    ("coroutine", "message"),
    [
        (lambda e: score(e, [2] * 20, np.full(13, 2, dtype=np.int32)), "exceed"),
        (lambda e: decode(e, [2] * 20, NOTHING, 13, 13), "exceed"),
        (lambda e: decode(e, [2] * 10, np.full(10, 2, dtype=np.int32), 13, 13), "exceed"),
        (lambda e: decode(e, [2], NOTHING, 0, 5), "at least one token"),
        (lambda e: decode(e, [2], NOTHING, 6, 5), "uniforms"),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_engine_goes_on(qwen3, coroutine, message):
    engine, jobs = make_engine(qwen3), make_jobs()
    with pytest.raises(ValueError, match=message):
        engine.run(coroutine(engine), *(serve(engine, job) for job in jobs))
    check_against_plain_forward(qwen3, jobs, run(engine, jobs))


def test_the_longest_request_that_fits_is_served(qwen3):
    engine = make_engine(qwen3)
    (continuation,) = engine.run(decode(engine, [2] * 20, NOTHING, 12, 12))
    assert 1 <= len(continuation.tokens) <= 12
    (scored,) = engine.run(score(engine, [2] * 20, np.full(12, 2, dtype=np.int32)))
    assert scored.shape == (12,)


def test_scoring_under_top_p_is_refused(qwen3):
    engine = make_engine(qwen3, top_p=0.9)
    with pytest.raises(ValueError, match="top-p"):
        engine.run(score(engine, [2], np.array([3], dtype=np.int32)))
    assert len(engine.run(decode(engine, [2], NOTHING, 3, 3))[0].tokens)


def test_the_model_is_evaluated_and_left_in_its_mode(qwen3):
    modes = []
    engine = make_engine(qwen3)

    async def look():
        modes.append(qwen3.training)
        await asyncio.sleep(0)

    qwen3.train()
    engine.run(look())
    assert (modes, qwen3.training) == ([False], True)
    qwen3.eval()
    engine.run(look())
    assert (modes, qwen3.training) == ([False, False], False)


def test_results_come_in_the_order_of_the_coroutines(qwen3):
    async def number(i):
        await asyncio.sleep(0)
        return i

    assert make_engine(qwen3).run(*(number(i) for i in range(5))) == list(range(5))


def distribution_of(model, prompt, response):
    """Log-probabilities, (tokens, vocabulary), of the alternatives to each token of a response."""
    tokens = torch.tensor([[*prompt, *map(int, response)]])
    with torch.no_grad():
        distribution = model(input_ids=tokens).logits[0].float().log_softmax(-1)
    return distribution[len(prompt) - 1 : -1].numpy()


@pytest.mark.parametrize("at_once", [1 << 26, 0], ids=["together", "one by one"])
def test_other_tokens_are_scored_in_the_same_pass(qwen3, monkeypatch, at_once):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", at_once)
    jobs, engine = [job for job in make_jobs(20) if job.scores], make_engine(qwen3, max_rows=4)
    wanted = [stream(1, "at", job.name).integers(0, VOCABULARY, (len(job.draft), 5)) for job in jobs]

    async def one(job, at):
        async with engine.session(job.prompt) as session:
            return await session.score(job.draft, at if job.name % 3 else None)

    for job, at, scores in zip(jobs, wanted, engine.run(*map(one, jobs, wanted)), strict=True):
        np.testing.assert_allclose(scores.log_probs, plain_log_probs(qwen3, job.prompt, job.draft), atol=1e-4)
        if job.name % 3:
            expected = np.take_along_axis(distribution_of(qwen3, job.prompt, job.draft), at, 1)
            np.testing.assert_allclose(scores.others, expected, atol=1e-4)
        else:
            assert scores.others is None


@pytest.mark.parametrize("at_once", [1 << 26, 0], ids=["together", "one by one"])
def test_tops_and_draws_are_those_of_each_drafts_own_positions(qwen3, monkeypatch, at_once):
    for size in (distributions.LOGITS_AT_ONCE, distributions.NORMALISED_AT_ONCE):
        monkeypatch.setitem(size, "cpu", at_once)
    jobs, engine = [job for job in make_jobs(20) if job.scores], make_engine(qwen3)

    async def one(job):
        async with engine.session(job.prompt) as session:
            return await session.score(job.draft, None, job.name % 4, Gumbel(job.name) if job.name % 3 else None)

    for job, scores in zip(jobs, engine.run(*map(one, jobs)), strict=True):
        distribution, positions = distribution_of(qwen3, job.prompt, job.draft), np.arange(len(job.draft))
        np.testing.assert_allclose(scores.log_probs, plain_log_probs(qwen3, job.prompt, job.draft), atol=1e-4)
        if job.name % 3:
            noise = gumbel(job.name, positions[:, None], np.arange(VOCABULARY)[None])
            assert scores.sampled.tolist() == (distribution + noise).argmax(1).tolist()
        else:
            assert scores.sampled is None
        if top := job.name % 4:
            np.testing.assert_allclose(scores.top.log_probs, -np.sort(-distribution, 1)[:, :top], atol=1e-4)
            np.testing.assert_allclose(
                np.take_along_axis(distribution, scores.top.tokens, 1), scores.top.log_probs, atol=1e-4
            )
        else:
            assert scores.top is None


def special(engine, job):
    """Decode in one of several ways, after a prefix or from the start."""
    first = Residual(np.array([3, 5]), np.array([0.9, 0.0])) if job.name % 3 == 0 else None
    draws = Gumbel(job.name) if job.name % 2 else Inversion(uniforms(0, "special", job.name, count=LIMIT))

    async def one():
        async with engine.session(job.prompt) as session:
            if job.scores:
                await session.score(job.draft)
            return await session.decode(job.prefix, LIMIT - job.keep, draws, first, top=job.name % 4)

    return one()


@pytest.mark.parametrize("max_rows", [2, 5, 16])
def test_rows_that_draw_in_their_own_way_do_not_disturb_others(qwen3, max_rows):
    """All ways at once, in rows that move, against each alone, where nothing moves."""
    jobs = make_jobs(24)
    engine = make_engine(qwen3, max_rows=max_rows)
    together = engine.run(*(special(engine, job) for job in jobs))
    for job, continuation in zip(jobs, together, strict=True):
        (alone,) = (other := make_engine(qwen3)).run(special(other, job))
        assert continuation.tokens.tolist() == alone.tokens.tolist()
        response = [*job.prefix, *continuation.tokens]
        expected = plain_log_probs(qwen3, job.prompt, response)[job.keep :]
        np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)
        if job.name % 3 == 0:
            assert continuation.tokens[0] != 5, "all of it was accepted"
        if job.name % 4:
            distribution = distribution_of(qwen3, job.prompt, response)[job.keep :]
            best = -np.sort(-distribution, axis=1)[:, : job.name % 4]
            np.testing.assert_allclose(continuation.top.log_probs, best, atol=1e-4)
            found = np.take_along_axis(distribution, continuation.top.tokens, 1)
            np.testing.assert_allclose(found, best, atol=1e-4)


def test_gumbel_draws_are_the_noise_added_to_the_plain_forwards_distribution(qwen3):
    engine, jobs = make_engine(qwen3, stops=()), [job for job in make_jobs(24) if job.name % 2 and job.name % 3]
    assert len(jobs) > 5
    for job, continuation in zip(jobs, engine.run(*(special(engine, job) for job in jobs)), strict=True):
        response = [*job.prefix, *continuation.tokens]
        noise = gumbel(job.name, np.arange(len(response))[:, None], np.arange(VOCABULARY))
        drawn = (distribution_of(qwen3, job.prompt, response) + noise).argmax(1)
        assert drawn[job.keep :].tolist() == continuation.tokens.tolist()


def test_a_first_token_by_noise_out_of_a_residual_has_the_noise_of_its_position_in_the_response(qwen3):
    engine, jobs = make_engine(qwen3, stops=()), [job for job in make_jobs(40) if job.keep]
    first = Residual(np.arange(2, 12), np.full(10, 0.01))

    async def one(job):
        async with engine.session(job.prompt) as session:
            return await session.decode(job.prefix, 1, Gumbel(job.name), first)

    for job, found in zip(jobs, engine.run(*map(one, jobs)), strict=True):
        distribution = distribution_of(qwen3, job.prompt, [*job.prefix, 0])[-1].astype(np.float64)
        distribution[first.tokens] += np.log(0.01)
        assert found.tokens.tolist() == [(distribution + gumbel(job.name, job.keep, np.arange(VOCABULARY))).argmax()]


def count_prefilled(engine, monkeypatch):
    filled, prefill = [], engine._prefill
    monkeypatch.setattr(
        engine, "_prefill", lambda batch: [filled.extend(len(r.sequence) for r in batch), prefill(batch)][1]
    )
    return filled


@pytest.mark.parametrize("max_rows", [3, 5, 16])
@pytest.mark.parametrize("patience", [0, 6], ids=["at once", "after others"])
def test_a_second_decode_prefills_nothing(qwen3, monkeypatch, max_rows, patience):
    """Sessions decode three times, beside others that come and go, so that rows are swapped."""
    jobs, engine = make_jobs(3), make_engine(qwen3, max_rows=max_rows, stops=())
    filled = count_prefilled(engine, monkeypatch)

    async def thrice(job):
        async with engine.session(job.prompt) as session:
            found, prefix = [], NOTHING
            for number in range(3):
                continuation = await session.decode(
                    prefix, 5, Inversion(uniforms(0, "thrice", job.name, number, count=5))
                )
                found.append((prefix, continuation))
                prefix = np.concatenate([prefix, continuation.tokens])[: (4, 9)[number % 2]]
                for _ in range(patience):
                    await asyncio.sleep(0)
            return found

    others = make_jobs(20)[3:] if max_rows > len(jobs) else []
    results = engine.run(*map(thrice, jobs), *(serve(engine, job) for job in others))
    for job, found in zip(jobs, results, strict=False):
        assert [c.cached for _, c in found] == [0, *(len(job.prompt) + len(prefix) - 1 for prefix, _ in found[1:])]
        for prefix, continuation in found:
            expected = plain_log_probs(qwen3, job.prompt, [*prefix, *continuation.tokens])[len(prefix) :]
            np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)
    behind = sum(len(job.draft) if job.scores else job.keep for job in others)
    assert sum(filled) == sum(len(job.prompt) for job in [*jobs, *others]) + behind
    check_against_plain_forward(qwen3, others, results[len(jobs) :])


def test_idle_sessions_give_up_their_rows_when_nothing_else_can_be_done(qwen3):
    """More sessions than rows decode, wait for each other and decode again."""

    async def one(engine, job, barrier):
        async with engine.session(job.prompt) as session:
            first = await session.decode(NOTHING, 4, Inversion(uniforms(0, "idle", job.name, count=4)))
            await barrier.wait()
            return await session.decode(first.tokens, 4, Inversion(uniforms(1, "idle", job.name, count=4)))

    async def all_together(engine, jobs):
        barrier = asyncio.Barrier(len(jobs))
        return await asyncio.gather(*(one(engine, job, barrier) for job in jobs))

    jobs, found = make_jobs(7), []
    for max_rows in (3, 7):
        engine = make_engine(qwen3, max_rows=max_rows, stops=())
        (continuations,) = engine.run(all_together(engine, jobs))
        found.append([c.tokens.tolist() for c in continuations])
        assert {c.cached > 0 for c in continuations} == ({True} if max_rows == 7 else {True, False})
    assert found[0] == found[1]


def test_a_request_that_is_given_up_leaves_the_engine_to_others(qwen3):
    jobs, engine = make_jobs(), make_engine(qwen3, max_rows=4)

    async def impatient(job, turns):
        async with engine.session(job.prompt) as session:
            task = asyncio.ensure_future(session.decode(NOTHING, 20, Inversion(uniforms(0, "x", count=20))))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None, await session.decode(NOTHING, 6, Inversion(uniforms(0, "decode", job.name, count=6)))

    results = engine.run(*(impatient(job, 3 * i) for i, job in enumerate(jobs[:4])), *(serve(engine, j) for j in jobs))
    check_against_plain_forward(qwen3, jobs, results[4:])
    for job, (_, continuation) in zip(jobs, results[:4], strict=False):
        expected = plain_log_probs(qwen3, job.prompt, continuation.tokens)
        np.testing.assert_allclose(continuation.log_probs, expected, atol=1e-4)


@pytest.mark.parametrize("turns", range(8))
def test_a_request_may_be_given_up_in_the_turn_in_which_it_ends(qwen3, turns):
    job, engine = make_jobs()[1], make_engine(qwen3, stops=())

    async def impatient():
        async with engine.session([3]) as session:
            task = asyncio.ensure_future(session.decode(NOTHING, 3, Inversion(np.full(3, 0.5))))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    _, result = engine.run(impatient(), serve(engine, job))
    check_against_plain_forward(qwen3, [job], [result])


def test_a_session_asks_for_one_thing_at_a_time(qwen3):
    async def twice(engine):
        async with engine.session([3]) as session:
            draft = np.array([4], dtype=np.int32)
            return await asyncio.gather(session.score(draft), session.score(draft), return_exceptions=True)

    ((first, second),) = (engine := make_engine(qwen3)).run(twice(engine))
    assert first.log_probs.shape == (1,)
    assert isinstance(second, ValueError)


def test_rewards_are_awaited_beside_decoding(qwen3, monkeypatch):
    """A session that waits for its reward keeps its row; the others decode meanwhile."""
    engine, outside, passes = make_engine(qwen3, stops=()), Outside(), threading.Semaphore(0)
    filled, graded_beside = count_prefilled(engine, monkeypatch), threading.Event()
    decode = engine._decode
    monkeypatch.setattr(engine, "_decode", lambda: [passes.release(), decode()][1])

    def grade():
        """Grade for as long as five passes take, then for a while without any, also on a busy machine."""
        assert all(passes.acquire(timeout=60) for _ in range(5))
        graded_beside.set()
        time.sleep(0.4)
        return 1.0

    async def graded(job):
        async with engine.session(job.prompt) as session:
            first = await session.decode(NOTHING, 3, Inversion(np.full(3, 0.5)))
            reward = await outside.wait(asyncio.get_running_loop().run_in_executor(None, grade))
            return reward, await session.decode(first.tokens, 3, Inversion(np.full(3, 0.5)))

    async def long():
        while not graded_beside.is_set():
            async with engine.session([2]) as session:
                await session.decode(NOTHING, 5, Inversion(np.full(5, 0.5)))

    job = make_jobs()[2]
    ((reward, continuation), _) = engine.run(graded(job), long(), outside=outside)
    assert (reward, continuation.cached) == (1.0, len(job.prompt) + 2)
    assert outside.seconds > 0.02
    assert filled.count(len(job.prompt)) == 1, "the session that waited kept its row"


def test_an_engine_that_truncates_the_policy_has_no_capabilities(qwen3):
    assert make_engine(qwen3, temperature=0.5).capabilities == TorchEngine.capabilities
    for settings in ({"top_p": 0.9}, {"temperature": 0}):
        engine = make_engine(qwen3, **settings)
        assert not engine.capabilities

        async def noisy(engine):
            async with engine.session([2]) as session:
                await session.decode(NOTHING, 3, Gumbel(1))

        with pytest.raises(UserError, match="Gumbel"):
            engine.run(noisy(engine))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.score(np.array([2, 3]), np.array([[2]])), "shapes"),
        (lambda s: s.score(np.array([2, 3]), np.array([2, 3])), "shapes"),
        (lambda s: s.decode(NOTHING, 1, Gumbel(1), Residual(np.array([2, 3]), np.array([0.1]))), "shapes"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(qwen3, ask, message):
    async def one(engine):
        async with engine.session([2]) as session:
            await ask(session)

    with pytest.raises(ValueError, match=message):
        (engine := make_engine(qwen3)).run(one(engine))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; the same is tested above on the CPU")
def test_a_gpu_gives_the_log_probs_of_a_plain_forward():
    model, jobs = make_model("qwen3", 4, 2).cuda(), make_jobs()
    results = run(make_engine(model, max_rows=5), jobs)
    check_against_plain_forward(model, jobs, results)
    on_cpu = run(make_engine(make_model("qwen3", 4, 2)), jobs)
    same = [a.tokens.tolist() == b.tokens.tolist() for (_, a), (_, b) in zip(results, on_cpu, strict=True)]
    assert np.mean(same) > 0.8, "a uniform rarely falls between the two numerics"
