"""Requests of the vLLM engine to its servers, and the answers that it takes. A real vLLM runs in `test_engines.py`."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from redraft.config.capability import Capability
from redraft.engines.vllm.engine import WORKER, VLLMEngine, bias_of, seed_of
from redraft.errors import UserError
from redraft.methods.speculative import Speculative
from redraft.rollout.engine import Gumbel, Inversion, Residual
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish
from tests.groups import EOS, GROUP, PROMPTS, Setting, memory_of, roll_out

LONGEST = 20
PROMPT, DRAFT = [3, 4], np.array([1, 2, 5, EOS], dtype=np.int32)
HALF = Inversion(np.array([0.5]))


@dataclass
class Answer:
    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ScriptedClient:
    """Notes requests and answers as a verl server with our worker would, which also takes parameters out of their
    dictionary.

    The log-probability of a prompt's token is minus its position, and its successors have the same; `answer` replaces
    answers. The first `cached` tokens are in the prefix cache.
    """

    def __init__(self, answer=None, cached=0):
        self.requests, self.answer, self.cached = [], answer, cached

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        count, scored = sampling_params.pop("max_tokens"), sampling_params.pop("prompt_logprobs", None)
        await asyncio.sleep(0)
        if self.answer:
            return self.answer
        if scored is not None:
            first = sampling_params["extra_args"]["scored_from"]
            known = 0 if sampling_params["skip_reading_prefix_cache"] else self.cached
            values = [-float(i + 1) if i >= known else np.nan for i in range(first, len(prompt_ids) - 1)]
            rows = [[value] * max(scored, 1) for value in values] + [[0.0]]
            ids = [[token + j for j in range(max(scored, 1))] for token in prompt_ids[first + 1 :]] + [[0]]
            extra = {"prompt_logprobs": rows, "prompt_ids": ids, "num_cached_tokens": 0, "global_steps": 4}
            return Answer([9], extra_fields=extra)
        return Answer([1] * count, [-0.5] * count, extra_fields={"num_cached_tokens": 16})


def make_engine(answer=None, stops=(EOS,), cached=0, temperature=1.0):
    return VLLMEngine(ScriptedClient(answer, cached), stops, LONGEST, temperature=temperature)


def ask(engine, score=None, prefix=DRAFT[:2], room=3, numbers=(0.25, 0.5, 1.0)):
    """Results of scoring, if requested, and of decoding in one session."""

    async def session():
        async with engine.session(PROMPT) as opened:
            scored = (await opened.score(score)).log_probs if score is not None else None
            return scored, await opened.decode(prefix, room, Inversion(np.array(numbers))) if room else None

    return asyncio.run(session())


def test_requests_of_a_session_share_an_id_and_sessions_do_not():
    engine = make_engine()
    for _ in range(2):
        ask(engine, score=DRAFT)
    ids = [request_id for request_id, *_ in engine.client.requests]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_a_draft_is_scored_by_the_policy_itself_and_nothing_is_decoded():
    engine = make_engine()
    scored, _ = ask(engine, score=DRAFT, room=0)
    ((_, tokens, settings),) = engine.client.requests
    assert tokens == [3, 4, 1, 2, 5, EOS]
    assert settings == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "logprobs": False,
        "flat_logprobs": True,
        "detokenize": False,
        "extra_args": {"scored_from": 1},
        "skip_reading_prefix_cache": False,
    }
    assert scored.tolist() == [-2, -3, -4, -5], "row j scores token j + 1"
    assert scored.dtype == np.float32


def test_a_continuation_is_sampled_by_the_policy_itself_until_our_stops_only():
    engine = make_engine(stops=(7, EOS))
    _, continuation = ask(engine)
    ((_, tokens, settings),) = engine.client.requests
    assert tokens == [3, 4, 1, 2]
    assert settings == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": 3,
        "logprobs": True,
        "seed": 2**51,
        "ignore_eos": True,
        "stop_token_ids": [EOS, 7],
        "detokenize": False,
    }
    assert continuation.tokens.dtype == np.int32
    assert continuation.log_probs.dtype == np.float32
    assert (continuation.tokens.tolist(), continuation.log_probs.tolist()) == ([1, 1, 1], [-0.5] * 3)
    assert (continuation.finish, continuation.cached) == (Finish.LENGTH, 16)


def test_every_request_of_a_session_is_at_the_engines_temperature():
    engine = make_engine(cached=4, temperature=0.6)

    async def session():
        async with engine.session(PROMPT) as opened:
            await opened.score(DRAFT, top=2)
            await opened.decode(DRAFT[:2], 3, Inversion(np.array([0.25, 0.5])), FIRST)
            await opened.decode(DRAFT[:2], 3, HALF, top=2)

    asyncio.run(session())
    assert [settings["temperature"] for _, _, settings in engine.client.requests] == [0.6] * 6


@pytest.mark.parametrize(("last", "finish"), [(EOS, Finish.EOS), (7, Finish.EOS)])
def test_every_stop_token_ends_a_response(last, finish):
    engine = make_engine(Answer([1, last], [-1.0, -2.0]), stops=(7, EOS))
    _, continuation = ask(engine)
    assert (continuation.finish, continuation.tokens.tolist(), continuation.cached) == (finish, [1, last], 0)


def test_seeds_are_the_streams_first_uniform_with_all_its_bits():
    assert (seed_of(1.0), seed_of(2**-53), seed_of(0.5)) == (2**53, 1, 2**52)
    drawn = [uniforms(0, "sampling", i, count=3) for i in range(1000)]
    seeds = [seed_of(u[0]) for u in drawn]
    assert [seed / 2**53 for seed in seeds] == [u[0] for u in drawn]
    # A CPU's generator takes the low 32 bits of a seed: these must differ too.
    assert len({seed % 2**32 for seed in seeds}) == len(seeds)


def test_samples_and_steps_have_seeds_of_their_own_and_a_step_done_again_has_the_same():
    def seeds(step):
        engine = VLLMEngine(ScriptedClient(), {EOS}, LONGEST)
        roll_out(Speculative(), 0, engine, Setting(step, 1, memory_of([1, 2, 3], log_probs=[50.0] * 3)))
        return [settings["seed"] for _, _, settings in engine.client.requests if "seed" in settings]

    assert seeds(3) == seeds(3)
    assert len(set(seeds(3) + seeds(4))) == 2 * GROUP


def test_a_strategy_scores_and_goes_on_in_one_session():
    engine = VLLMEngine(ScriptedClient(), {EOS}, LONGEST)
    setting = Setting(3, 1, memory_of([1, 2, 3], log_probs=[-99.0, 50.0, -99.0]))
    group = roll_out(Speculative(), 0, engine, setting)
    by_session = {}
    for request_id, tokens, _ in engine.client.requests:
        by_session.setdefault(request_id, []).append(tokens)
    assert list(by_session.values()) == [[[*PROMPTS[0], 1, 2, 3], [*PROMPTS[0], 1]]] * GROUP
    assert {(r.prefix_length, r.verified, r.length) for r in group} == {(1, 3, 8)}
    assert setting.meter.cached_tokens == 16 * GROUP
    assert engine.usage.scored_tokens == 3 * GROUP


@pytest.mark.parametrize(
    "answer",
    [
        Answer([], stop_reason="aborted"),
        Answer([1], [-1.0], stop_reason="aborted"),
        Answer([], []),
    ],
    ids=["aborted", "aborted midway", "nothing"],
)
def test_an_aborted_request_is_an_error(answer):
    with pytest.raises(RuntimeError, match="aborted"):
        ask(make_engine(answer))
    with pytest.raises(RuntimeError, match="aborted"):
        ask(make_engine(answer), score=DRAFT)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer([1, 2], [-1.0, -1.0]), "after 2 of 3 tokens"),
        (Answer([1, 2, 3]), "without the log-probabilities"),
        (Answer([1, 2, 3], [-1.0]), "without the log-probabilities"),
    ],
)
def test_a_continuation_that_is_not_whole_is_an_error(answer, message):
    with pytest.raises(RuntimeError, match=message):
        ask(make_engine(answer))


def test_what_only_the_prefix_cache_knows_of_a_draft_is_scored_without_it():
    for cached, hidden in ((0, 0), (1, 0), (2, 1), (4, 3)):
        engine = make_engine(cached=cached)
        scored, _ = ask(engine, score=DRAFT, room=0)
        assert scored.tolist() == [-2, -3, -4, -5]
        asked = [(tokens, s["skip_reading_prefix_cache"], s["extra_args"]) for _, tokens, s in engine.client.requests]
        whole, again = ([*PROMPT, *DRAFT[:n].tolist()] for n in (len(DRAFT), hidden))
        expected = [(whole, False, {"scored_from": 1}), (again, True, {"scored_from": 1})]
        assert asked == expected[: 2 if hidden else 1]
        assert engine.usage.scored_tokens == len(DRAFT)


def test_the_top_of_what_only_the_prefix_cache_knows_is_scored_without_it():
    _, requests, scores = opened(lambda s: s.score(DRAFT, top=2), cached=4)
    assert len(requests) == 2
    assert scores.log_probs.tolist() == [-2, -3, -4, -5]
    assert scores.top.tokens.tolist() == [[1, 2], [2, 3], [5, 6], [EOS, EOS + 1]]


def test_a_prompt_of_one_token_is_not_looked_up():
    """Nothing of it can be cached, and a stock worker's answer, garbage where it reads the cache, has as many rows."""
    engine = make_engine(cached=3)

    async def session():
        async with engine.session([3]) as opened:
            return await opened.score(DRAFT)

    assert asyncio.run(session()).log_probs.tolist() == [-1, -2, -3, -4]
    assert [s["skip_reading_prefix_cache"] for _, _, s in engine.client.requests] == [True]


@pytest.mark.parametrize("rows", [None, 0, 4, 6])
def test_a_server_whose_worker_is_not_ours_is_refused(rows):
    """vLLM's own answers with a row for each token of the prompt too: 6 with the last one, which is a dummy."""
    extra = {} if rows is None else {"prompt_logprobs": [[-1.0]] * rows, "prompt_ids": [[1]] * rows}
    with pytest.raises(UserError, match="log-probabilities of the draft alone") as error:
        ask(make_engine(Answer([1], extra_fields=extra)), score=DRAFT)
    assert (error.value.key, error.value.allowed) == ("worker_cls", WORKER)
    with pytest.raises(UserError, match="log-probabilities of the draft alone"):
        ask(make_engine(Answer([1], extra_fields={"prompt_logprobs": [[-1.0]] * 5})), score=DRAFT)


def test_log_probabilities_that_are_nan_are_never_answered():
    nan = float("nan")
    with pytest.raises(UserError, match="NaN"):
        ask(make_engine(Answer([EOS], [nan])))
    extra = {"prompt_logprobs": [[nan]] * 5, "prompt_ids": [[1]] * 5}
    with pytest.raises(UserError, match="NaN"):
        ask(make_engine(Answer([1], extra_fields=extra)), score=DRAFT)


def test_what_the_servers_would_cut_short_is_refused():
    draft = np.ones(LONGEST - 3, dtype=np.int32)
    ask(make_engine(), score=draft, room=0)
    ask(make_engine(), prefix=draft, room=1)
    for case in ({"score": np.ones(LONGEST - 2, dtype=np.int32)}, {"prefix": draft, "room": 2}):
        engine = make_engine()
        with pytest.raises(UserError, match="too long") as error:
            ask(engine, **case)
        assert (error.value.key, error.value.value) == ("max_model_len", LONGEST)
        assert str(LONGEST + 1) in error.value.allowed
        assert not engine.client.requests


@pytest.mark.parametrize(
    ("ask", "capability"),
    [
        (lambda s: s.score(DRAFT, DRAFT[:, None]), Capability.OTHER_SCORES),
        (lambda s: s.decode(DRAFT[:2], 1, Gumbel(3)), Capability.GUMBEL),
        (lambda s: s.score(DRAFT, noise=Gumbel(3)), Capability.GUMBEL),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_verls_client_lacks_is_rejected_before_any_request(ask, capability):
    engine = make_engine()

    async def one():
        async with engine.session(PROMPT) as session:
            await ask(session)

    with pytest.raises(UserError, match="cannot do exactly") as error:
        asyncio.run(one())
    assert error.value.value == str(capability)
    assert not engine.client.requests


def opened(one, answer=None, cached=0):
    """Requests of one session, and its result."""
    engine = make_engine(answer, cached=cached)

    async def session():
        async with engine.session(PROMPT) as opened:
            return await one(opened)

    found = asyncio.run(session())
    return engine, engine.client.requests, found


FIRST = Residual(np.array([1, 2, 5], dtype=np.int32), np.array([1.0, 0.25, 0.0]))


def test_a_first_token_of_a_residual_is_a_request_with_a_bias_and_the_rest_one_without():
    numbers = Inversion(np.array([0.25, 0.5, 1.0]))
    engine, requests, made = opened(lambda s: s.decode(DRAFT[:2], 3, numbers, FIRST))
    (_, before, first), (_, behind, rest) = requests
    assert (before, behind) == ([3, 4, 1, 2], [3, 4, 1, 2, 1])
    assert first["logit_bias"] == {2: pytest.approx(np.log(0.25)), 5: -1000.0}, "what is whole has none"
    assert "logit_bias" not in rest
    assert [r["max_tokens"] for r in (first, rest)] == [1, 2]
    assert [r["seed"] for r in (first, rest)] == [seed_of(0.25), seed_of(0.5)]
    assert len({request_id for request_id, *_ in requests}) == 1
    assert (made.tokens.tolist(), made.log_probs.tolist()) == ([1, 1, 1], [-0.5] * 3)
    assert (made.finish, made.cached, made.top) == (Finish.LENGTH, 16, None)
    assert engine.usage.verification_seconds == 0 < engine.usage.decoding_seconds


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_bias_is_what_vllm_divides_by_the_temperature_together_with_the_logits(temperature):
    logits, left = np.array([0.3, -1.0, 2.0, 0.1]), np.array([1.0, 0.25, 1.0, 0.0])
    bias = bias_of(Residual(np.arange(4), left), temperature)
    drawn = np.exp((logits + [bias.get(token, 0.0) for token in range(4)]) / temperature)
    expected = np.exp(logits / temperature) * left
    np.testing.assert_allclose(drawn / drawn.sum(), expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize(("answer", "room"), [(Answer([EOS], [-1.0]), 3), (Answer([1], [-1.0]), 1)])
def test_no_request_follows_a_first_token_that_ends_the_response(answer, room):
    _, requests, made = opened(lambda s: s.decode(DRAFT[:2], room, Inversion(np.full(room, 0.5)), FIRST), answer)
    assert len(requests) == 1
    assert made.tokens.tolist() == answer.token_ids


def test_each_part_of_a_response_needs_a_uniform_of_its_own():
    with pytest.raises(ValueError, match="at least one token and one uniform"):
        opened(lambda s: s.decode(DRAFT[:2], 3, HALF, FIRST))


def test_tops_come_with_scores_and_a_draft_that_is_not_in_them_has_no_mass():
    engine, requests, scores = opened(lambda s: s.score(DRAFT, top=2))
    ((_, tokens, settings),) = requests
    assert tokens == [3, 4, 1, 2, 5, EOS]
    assert settings["prompt_logprobs"] == 2
    assert scores.log_probs.tolist() == [-2, -3, -4, -5]
    assert scores.top.tokens.tolist() == [[1, 2], [2, 3], [5, 6], [EOS, EOS + 1]]
    assert scores.top.log_probs.tolist() == [[-2, -2], [-3, -3], [-4, -4], [-5, -5]]
    assert (scores.others, engine.usage.scored_tokens) == (None, 4)
    rows = {"prompt_logprobs": [[-1.0, -2.0]] * 5, "prompt_ids": [[1, 7]] * 5}
    _, _, scores = opened(lambda s: s.score(DRAFT, top=2), Answer([9], extra_fields=rows))
    assert scores.log_probs.tolist() == [-1, -np.inf, -np.inf, -np.inf]


def test_the_top_of_what_was_sampled_is_scored_once_more():
    engine, requests, made = opened(lambda s: s.decode(DRAFT[:2], 3, HALF, top=2))
    _, (_, tokens, settings) = requests
    assert tokens == [3, 4, 1, 2, 1, 1, 1]
    assert (settings["prompt_logprobs"], settings["max_tokens"]) == (2, 1)
    assert settings["extra_args"] == {"scored_from": 3}, "after the known tokens"
    assert settings["skip_reading_prefix_cache"], "all of it is there"
    assert made.top.tokens.tolist() == [[1, 2]] * 3
    assert made.top.log_probs[:, 0].tolist() == [-4, -5, -6], "of the sampled tokens alone"
    assert made.tokens.tolist() == [1, 1, 1]
    assert engine.usage.verification_seconds > 0
    assert engine.usage.scored_tokens == 0, "no draft's"


def test_an_empty_prompt_and_an_empty_continuation_are_refused():
    async def without_prompt():
        async with make_engine().session([]):
            pass

    with pytest.raises(ValueError, match="at least one token"):
        asyncio.run(without_prompt())

    async def nothing():
        async with make_engine().session(PROMPT) as session:
            await session.decode(DRAFT[:0], 0, Inversion(np.zeros(0)))

    with pytest.raises(ValueError, match="at least one token"):
        asyncio.run(nothing())


def test_concurrent_requests_are_timed_once():
    class Slow(ScriptedClient):
        async def generate(self, *args, **kwargs):
            await asyncio.sleep(0.05)
            return await super().generate(*args, **kwargs)

    engine = VLLMEngine(Slow(), {EOS}, LONGEST)

    async def score():
        async with engine.session(PROMPT) as session:
            await session.score(DRAFT)

    async def everything():
        await asyncio.gather(*(score() for _ in range(20)))

    asyncio.run(everything())
    assert 0.05 <= engine.usage.verification_seconds < 0.5
    assert engine.usage.decoding_seconds == 0
    assert engine.usage.scored_tokens == 20 * len(DRAFT)


@pytest.mark.parametrize("kind", ["client", "output"])
def test_requests_use_only_what_verls_client_has(kind):
    import inspect

    replica = pytest.importorskip("verl.workers.rollout.replica", reason="verl is not installed")
    from verl.workers.rollout.llm_server import LLMServerClient

    if kind == "output":
        assert set(Answer.__dataclass_fields__) <= set(replica.TokenOutput.model_fields)
    else:
        parameters = inspect.signature(inspect.unwrap(LLMServerClient.generate)).parameters
        assert {"request_id", "prompt_ids", "sampling_params"} <= set(parameters)
