"""The in-process engine against plain forward passes of transformers, for all that it does to save work."""

import asyncio
from dataclasses import dataclass, replace

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
    Qwen3Config,
    Qwen3ForCausalLM,
)

from redraft.engines.torch_engine import TorchEngine
from redraft.errors import UserError
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import stream, uniforms
from redraft.rollout.types import Finish

VOCABULARY, EOS, LIMIT = 23, 1, 14
NOTHING = np.zeros(0, dtype=np.int32)
CLASSES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def make_model(architecture, heads, key_value_heads):
    config_class, model_class = CLASSES[architecture]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=key_value_heads, head_dim=8, intermediate_size=48, max_position_embeddings=64,
        initializer_range=0.25, bos_token_id=None, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
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
    """One session: maybe score a draft, then decode behind the first `keep` tokens of it."""

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
        law = (model(input_ids=tokens).logits[0].float() / temperature).log_softmax(-1)
    chosen = law[:-1].gather(1, tokens[0, 1:, None])[:, 0]
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


def test_a_large_vocabularys_logits_are_normalised_row_by_row_to_the_same(qwen3, monkeypatch):
    monkeypatch.setattr("redraft.engines.scoring.LOGITS_AT_ONCE", 0)
    jobs = make_jobs()
    check_against_plain_forward(qwen3, jobs, run(make_engine(qwen3), jobs))


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


def test_a_scored_draft_is_not_computed_again(qwen3, monkeypatch):
    jobs, engine, filled = make_jobs(), make_engine(qwen3), []
    prefill = engine._prefill
    monkeypatch.setattr(engine, "_prefill", lambda batch: [filled.extend(r.length for r in batch), prefill(batch)])
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
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
FULL = {"layer_types": ["full_attention"] * 2}
UNSUPPORTED = [
    (Qwen3Config, Qwen3ForCausalLM, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
     "qwen3", "layer_types"),
    (Qwen3Config, Qwen3ForCausalLM, {"use_sliding_window": True, "sliding_window": 4, **FULL}, "qwen3",
     "sliding_window"),
    (MistralConfig, MistralForCausalLM, {"sliding_window": 4}, "mistral", "sliding_window"),
    (Gemma2Config, Gemma2ForCausalLM, {}, "gemma2", "layer_types"),
    (Gemma2Config, Gemma2ForCausalLM, FULL, "gemma2", "attn_logit_softcapping"),
    (GptOssConfig, GptOssForCausalLM, {"num_local_experts": 2, "num_experts_per_tok": 1, **FULL}, "gpt_oss", "sinks"),
    (LlamaConfig, LlamaForCausalLM, {"max_position_embeddings": 31}, "llama", "max_position_embeddings"),
]  # fmt: skip


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
    ],
)
def test_a_model_with_full_attention_is_run(config, model, settings):
    model = model(config(**TINY | settings))
    check_against_plain_forward(model, make_jobs(4), run(make_engine(model), make_jobs(4)))


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
    with pytest.raises(RuntimeError, match="no session asks for anything"):
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; the same is tested above on the CPU")
def test_a_gpu_gives_the_log_probs_of_a_plain_forward():
    model, jobs = make_model("qwen3", 4, 2).cuda(), make_jobs()
    results = run(make_engine(model, max_rows=5), jobs)
    check_against_plain_forward(model, jobs, results)
    on_cpu = run(make_engine(make_model("qwen3", 4, 2)), jobs)
    same = [a.tokens.tolist() == b.tokens.tolist() for (_, a), (_, b) in zip(results, on_cpu, strict=True)]
    assert np.mean(same) > 0.8, "a uniform rarely falls between the two numerics"
