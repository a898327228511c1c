"""Scores of our worker of vLLM against those of vLLM's own method, which it replaces, with and without the cache."""

import importlib.util
from contextlib import contextmanager, nullcontext
from itertools import count, cycle
from types import MethodType

import numpy as np
import pytest
import torch

from redraft.config import TinyModel
from redraft.engines.torch.head import LOGITS_AT_ONCE
from redraft.engines.vllm.engine import SCORING, VLLMEngine
from redraft.errors import UserError
from redraft.rollout.engine import Inversion, Residual
from redraft.rollout.streams import stream
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

pytestmark = pytest.mark.servers
LONGEST, BLOCK, VOCABULARY = 200, 32, 44
NUMBERS = count()


CHUNKS = {"enable_chunked_prefill": True, "max_num_batched_tokens": 48, "max_rows": 3}
SETTINGS = {
    "in one pass": {},
    "in chunks": CHUNKS,
    "in one pass, ahead": {},
    "in chunks, ahead": CHUNKS,
    "by a stock worker": {"worker_cls": "auto"},
}


@pytest.fixture(scope="module", params=["in one pass"])
def server(request, tmp_path_factory):
    """A vLLM of a model whose distributions differ from position to position."""
    if not importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    from redraft.engines.vllm.local import LocalVLLM

    model, folder = models.initialise(TinyModel(), make_tokenizer()), tmp_path_factory.mktemp("policy")
    for parameter in model.parameters():
        parameter.data *= 4 if parameter.ndim == 2 else 1
    model.save_pretrained(folder)
    with scheduled_ahead() if request.param.endswith("ahead") else nullcontext():
        vllm = LocalVLLM(folder, LONGEST, **SETTINGS[request.param])
        yield vllm
        vllm.close()


class NoStream:
    """A stream or an event of CUDA, on a processor: all is done when it is asked for."""

    def __init__(self, *_):
        self.wait_stream = self.record = self.synchronize = lambda *_: None


@contextmanager
def scheduled_ahead():
    """vLLM schedules a step before it knows the tokens of the step before, as it does by default on GPUs.

    Its platform for processors switches that off.
    """
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    def ahead(vllm_config):
        update(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    def with_stream(runner, *arguments, **settings):
        initialise(runner, *arguments, **settings)
        runner.async_output_copy_stream = NoStream()

    update, initialise = CpuPlatform.check_and_update_config, CPUModelRunner.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(ahead))
        patch.setattr(CPUModelRunner, "__init__", with_stream)
        patch.setattr(torch.cuda, "current_stream", NoStream)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch, "Event", NoStream)
        yield


def served(*how):
    """Other servers for a test."""
    return pytest.mark.parametrize("server", how, indirect=True, scope="module")


@pytest.fixture
def vllm(server):
    """The server with an empty cache."""
    assert server.engine.reset_prefix_cache()
    return server


@contextmanager
def stock(vllm):
    """Within the block vLLM serves by the method that the worker's runner replaces."""
    vllm.engine.collective_rpc(use_stock)
    yield
    vllm.engine.collective_rpc(use_ours)


def use_stock(worker):
    runner = worker.model_runner
    runner._get_prompt_logprobs_dict = MethodType(type(runner).__bases__[0]._get_prompt_logprobs_dict, runner)


def use_ours(worker):
    del worker.model_runner._get_prompt_logprobs_dict


def tokens_of(name, length):
    return stream(0, name).integers(2, VOCABULARY, length).astype(np.int32)


def asked(vllm, sequences, **settings):
    """Answers of vLLM to requests that are there together, by row: ids and log-probabilities."""

    async def one(tokens):
        settings_of_all = SCORING | settings
        output = await vllm.generate(f"r{next(NUMBERS)}", prompt_ids=tokens.tolist(), sampling_params=settings_of_all)
        return [output.extra_fields[name][:-1] for name in ("prompt_ids", "prompt_logprobs")]

    return vllm.run(*map(one, sequences))


def scored(vllm, pairs, top=0, temperatures=(1.0,)):
    """Scores of drafts by concurrent sessions, and their number of requests."""
    engines, requests = [VLLMEngine(vllm, (), LONGEST, temperature=each) for each in temperatures], []
    generate = vllm.generate

    async def counted(request_id, **request):
        requests.append(len(request["prompt_ids"]))
        return await generate(request_id, **request)

    async def one(engine, prompt, draft):
        engine.client = type("Client", (), {"generate": staticmethod(counted)})()
        async with engine.session(prompt.tolist()) as session:
            return await session.score(draft, top=top)

    return vllm.run(*(one(*each) for each in zip(cycle(engines), *zip(*pairs, strict=True)))), requests


def whole_distributions(vllm, prompt, draft):
    """The distribution at each of a draft's positions, (draft, vocabulary), by vLLM's own method without cache."""
    with stock(vllm):
        ((ids, rows),) = asked(vllm, [np.append(prompt, draft)], prompt_logprobs=VOCABULARY)
    distributions = np.full((len(ids), VOCABULARY), np.nan)
    np.put_along_axis(distributions, np.array(ids), np.array(rows), 1)
    return distributions[-len(draft) :]


def test_scores_are_those_of_vllms_own_method(vllm, monkeypatch):
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", 7 * VOCABULARY)
    pairs = [(tokens_of(f"prompt {n}", n), tokens_of(f"draft {n}", 150 - n)) for n in (1, 2, 31, 32, 33, 149)]
    ours = {top: scored(vllm, pairs, top)[0] for top in (0, 1, 5, VOCABULARY)}
    for i, (prompt, draft) in enumerate(pairs):
        distributions, places = whole_distributions(vllm, prompt, draft), np.arange(len(draft))
        for top, scores in ((top, found[i]) for top, found in ours.items()):
            among = np.argsort(np.argsort(-distributions))[places, draft] < top if top else np.ones(len(draft), bool)
            expected = np.where(among, distributions[places, draft], -np.inf)
            np.testing.assert_allclose(scores.log_probs, expected, atol=1e-5)
            if top:
                np.testing.assert_array_equal(scores.top.tokens, np.argsort(-distributions)[:, :top])
                np.testing.assert_allclose(scores.top.log_probs, -np.sort(-distributions)[:, :top], atol=1e-5)


def at(distributions, temperature):
    """Logarithms of distributions, (n, vocabulary), at a temperature."""
    return torch.from_numpy(distributions / temperature).log_softmax(-1).numpy()


@served("in one pass", "in one pass, ahead")
def test_scores_are_at_the_temperature_of_their_request_also_beside_others(vllm):
    """All are computed in one step."""
    temperatures = (0.6, 1.0, 1.5)
    pairs = [(tokens_of(f"prompt {n}", n), tokens_of(f"draft {n}", 60)) for n in (20, 25, 30, 35, 40, 45)]
    found, _ = scored(vllm, pairs, 3, temperatures)
    for temperature, pair, scores in zip(cycle(temperatures), pairs, found, strict=False):
        distribution = at(whole_distributions(vllm, *pair), temperature)
        np.testing.assert_allclose(scores.top.log_probs, -np.sort(-distribution)[:, :3], atol=1e-5)


@served("in one pass", "in one pass, ahead")
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_what_is_sampled_has_the_policys_log_probability_at_its_temperature_without_a_bias(temperature, vllm):
    """All tokens but the three least probable are biased away, so that one of these is sampled."""
    prompt = tokens_of("prompt", 20)
    (distribution,) = at(whole_distributions(vllm, prompt, np.array([2])), temperature)
    few = np.argsort(distribution)[:3]
    left = np.zeros(VOCABULARY)
    left[few] = 1.0
    engine = VLLMEngine(vllm, (), LONGEST, temperature=temperature)

    async def one(first, uniform):
        async with engine.session(prompt.tolist()) as session:
            return await session.decode(np.zeros(0, np.int32), 1, Inversion(np.full(2, uniform)), first)

    numbers, residual = np.linspace(0.01, 0.99, 8), Residual(np.arange(VOCABULARY, dtype=np.int32), left)
    for first in (None, residual):
        for made in vllm.run(*(one(first, uniform) for uniform in numbers)):
            assert first is None or made.tokens[0] in few
            np.testing.assert_allclose(made.log_probs[0], distribution[made.tokens[0]], atol=1e-5)


@pytest.mark.parametrize("prompt", [2, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_prompt_in_the_cache_is_not_computed_again_and_changes_no_score(prompt, vllm):
    """Drafts that share a prompt, together and after each other; the cache has whole blocks of 32 tokens."""
    shared = tokens_of("prompt", prompt)
    drafts = [tokens_of(f"draft {i}", 60) for i in range(3)]
    distributions = [whole_distributions(vllm, shared, draft) for draft in drafts]
    vllm.engine.reset_prefix_cache()
    for some, hits in ((drafts[:2], 1), (drafts[2:], 1)):
        found, requests = scored(vllm, [(shared, draft) for draft in some])
        # The prompt's last token has the row of the draft's first one.
        assert requests == [prompt + 60] * len(some) + [prompt + 1] * (hits if prompt % BLOCK == 0 else 0)
        for draft, scores in zip(some, found, strict=True):
            distribution = distributions[[d is draft for d in drafts].index(True)]
            np.testing.assert_allclose(scores.log_probs, distribution[np.arange(60), draft], atol=1e-5)
    computed = computed_of(vllm, np.append(shared, tokens_of("another", 60)))
    assert computed == prompt + 60 - prompt // BLOCK * BLOCK


def computed_of(vllm, tokens):
    """Tokens that a scoring request computes, by what it says of the cache."""

    async def one():
        settings = SCORING | {"prompt_logprobs": 0, "skip_reading_prefix_cache": False}
        output = await vllm.generate(f"r{next(NUMBERS)}", prompt_ids=tokens.tolist(), sampling_params=settings)
        return len(tokens) - output.extra_fields["num_cached_tokens"]

    return vllm.run(one())[0]


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("prompt", [2, BLOCK - 1, BLOCK, BLOCK + 1])
def test_drafts_that_begin_alike_have_the_scores_of_drafts_that_do_not(prompt, top, vllm):
    """What is cached of a draft has no rows, also where two that are the same are scored in one pass."""
    shared, draft = tokens_of("prompt", prompt), tokens_of("draft", 100)
    distribution = whole_distributions(vllm, shared, draft)
    vllm.engine.reset_prefix_cache()
    for alike in (100, 100, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 99):
        other = np.append(draft[:alike], tokens_of("tail", 100 - alike)).astype(np.int32)
        distributions = whole_distributions(vllm, shared, other) if alike < 100 else distribution
        ((one, two), requests) = scored(vllm, [(shared, draft), (shared, other)], top)
        assert len(requests) > 2 or alike < BLOCK
        assert max(requests) == prompt + 100
        for scores, of, tokens in ((one, distribution, draft), (two, distributions, other)):
            values = of[np.arange(100), tokens]
            at_top = np.isfinite(scores.log_probs)
            assert at_top.all() or top
            np.testing.assert_allclose(scores.log_probs[at_top], values[at_top], atol=1e-5)
            if top:
                np.testing.assert_allclose(scores.top.log_probs, -np.sort(-of)[:, :top], atol=1e-5)


def test_rows_that_the_cache_hides_are_not_a_number(vllm):
    prompt, draft = tokens_of("prompt", 20), tokens_of("draft", 80)
    sequence = [np.append(prompt, draft)]
    settings = {"prompt_logprobs": 0, "extra_args": {"scored_from": 19}}
    ((ids, rows),) = asked(vllm, sequence, **settings)
    ((_, again),) = asked(vllm, sequence, **settings, skip_reading_prefix_cache=False)
    assert [token for (token,) in ids] == draft.tolist()
    assert np.isnan(np.array(again)[:, 0]).nonzero()[0].tolist() == list(range(3 * BLOCK - 19)), "96 of 100 are cached"
    np.testing.assert_allclose(again[3 * BLOCK - 19 :], rows[3 * BLOCK - 19 :], atol=1e-5)


@pytest.mark.parametrize("top", [0, 1, 3])
def test_verls_servers_read_the_same_rows_also_hidden_ones(top, vllm):
    stock = pytest.importorskip("redraft.evaluate.lm_eval.stock", reason="lm-eval is not installed")
    with stock.cpu_build_named_vllm():  # verl asks for its version
        utils = pytest.importorskip("verl.workers.rollout.vllm_rollout.utils", reason="verl is not installed")
    from vllm import SamplingParams

    from redraft.engines.vllm.in_process import to_output, tokens_input

    settings = SCORING | {"logprobs": None, "prompt_logprobs": top, "skip_reading_prefix_cache": False}
    params = SamplingParams(**settings, extra_args={"scored_from": 19})
    for name, hidden in (("first", 0), ("second", 3 * BLOCK - 19)):
        vllm.engine.add_request(name, tokens_input(tokens_of("prompt", 100).tolist()), params)
        (answer,) = [out for _ in range(2) if vllm.engine.has_unfinished_requests() for out in vllm.engine.step()]
        ours, verls = to_output(answer).extra_fields, {}
        utils.extract_prompt_logprobs(answer, top, verls)
        assert len(verls["prompt_ids"]) == 81
        for field in ("prompt_ids", "prompt_logprobs"):
            np.testing.assert_array_equal(np.array(verls[field][:-1]), np.array(ours[field][:-1]))
        assert np.isnan(np.array(verls["prompt_logprobs"])).sum() == hidden * max(top, 1)


def test_the_rest_of_a_prompt_or_all_of_it_may_be_scored(vllm):
    sequence = tokens_of("prompt", 50)
    ((_, whole),) = asked(vllm, [sequence], prompt_logprobs=2)
    assert len(whole) == 49
    for first in (0, 1, 30, 48):
        ((_, rows),) = asked(vllm, [sequence], prompt_logprobs=2, extra_args={"scored_from": first})
        np.testing.assert_allclose(rows, whole[first:], atol=1e-5)


@served("in chunks", "in chunks, ahead")
def test_a_prefill_in_chunks_gives_the_same_and_leaves_no_answer(vllm):
    """On a GPU a prompt is computed in several steps, of which each has a part of the rows."""
    pairs = [(tokens_of(f"prompt {n}", n), tokens_of(f"draft {n}", 140 - n)) for n in (2, 40, 47, 48, 49, 100)]
    for _ in range(2):
        for (prompt, draft), scores in zip(pairs, scored(vllm, pairs, 3)[0], strict=True):
            distribution = -np.sort(-whole_distributions(vllm, prompt, draft))
            np.testing.assert_allclose(scores.top.log_probs, distribution[:, :3], atol=1e-5)
    assert vllm.engine.collective_rpc(unfinished) == [0]


def unfinished(worker):
    """Answers that a worker has begun."""
    return len(worker.model_runner._answers)


@served("in chunks", "in chunks, ahead")
def test_an_aborted_request_leaves_no_answer(vllm):
    begun = []

    async def score():
        await vllm.generate(
            "r", prompt_ids=tokens_of("long", 150).tolist(), sampling_params=SCORING | {"prompt_logprobs": 0}
        )

    async def give_up():
        await vllm.generate("s", prompt_ids=[3], sampling_params=SCORING)
        begun.extend(vllm.engine.collective_rpc(unfinished))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        vllm.run(give_up(), score())
    scored(vllm, [(tokens_of("prompt", 20), tokens_of("draft", 20))])
    assert begun == [1]
    assert vllm.engine.collective_rpc(unfinished) == [0]


@served("by a stock worker")
def test_a_stock_worker_is_refused(vllm):
    with pytest.raises(UserError, match="worker_cls"):
        scored(vllm, [(tokens_of("prompt", 20), tokens_of("draft", 20))])


@served("by a stock worker")
def test_log_probabilities_of_a_stock_worker_are_refused_at_another_temperature(vllm):
    def sampled(**settings):
        return vllm.generate("r", prompt_ids=[3], sampling_params=SCORING | settings)

    for settings in ({"logprobs": True}, {"prompt_logprobs": 0}):
        vllm.run(sampled(temperature=1.0, **settings))
        with pytest.raises(UserError, match="at temperature 1 only") as error:
            vllm.run(sampled(temperature=0.6, **settings))
        assert (error.value.key, error.value.value) == ("worker_cls", "auto")
    vllm.run(sampled(temperature=0.6))


@served("in one pass, ahead")
def test_responses_that_are_scheduled_ahead_have_the_policys_log_probabilities(vllm):
    core = vllm.engine.engine_core.engine_core
    assert (core.batch_queue.maxlen, type(core.scheduler).__name__) == (2, "AsyncScheduler")
    engine, prompts = VLLMEngine(vllm, (5, 6), LONGEST), [tokens_of(f"prompt {n}", n) for n in (2, 20, 40, 60)]

    async def one(prompt):
        async with engine.session(prompt.tolist()) as session:
            return await session.decode(np.zeros(0, np.int32), 40, Inversion(np.array([len(prompt) / 100])))

    made = vllm.run(*map(one, prompts))
    assert len({len(each.tokens) for each in made}) > 1, "some end before others"
    for prompt, each in zip(prompts, made, strict=True):
        distribution = whole_distributions(vllm, prompt, each.tokens)[np.arange(len(each.tokens)), each.tokens]
        np.testing.assert_allclose(each.log_probs, distribution, atol=1e-5)


@served("in one pass", "in one pass, ahead")
def test_a_continuation_finds_what_was_scored(vllm):
    """Both requests of a session read the cache, and the prompt of the first came from another session."""
    prompt, draft = tokens_of("prompt", 40), tokens_of("draft", 60)
    engine = VLLMEngine(vllm, (), LONGEST)

    async def one(draft):
        async with engine.session(prompt.tolist()) as session:
            await session.score(draft)
            return await session.decode(draft[:30], 5, Inversion(np.array([0.5])))

    (made,) = vllm.run(one(draft))
    assert made.cached == 2 * BLOCK


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("prompt", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1])
def test_chunks_have_the_scores_of_whole_drafts_and_compute_little_twice(prompt, top, vllm):
    """Of prompt and earlier chunks a request computes no more than a block that is not full."""
    shared, draft = tokens_of("prompt", prompt), tokens_of("draft", 150)
    ((whole,), _), requests = scored(vllm, [(shared, draft)], top), []
    assert vllm.engine.reset_prefix_cache()

    async def generate(request_id, **request):
        output = await vllm.generate(request_id, **request)
        requests.append((len(request["prompt_ids"]), output.extra_fields["num_cached_tokens"]))
        return output

    engine, parts = VLLMEngine(type("Client", (), {"generate": staticmethod(generate)})(), (), LONGEST, chunk=40), []

    async def one():
        async with engine.session(shared.tolist()) as session:
            while sum(len(part.log_probs) for part in parts) < len(draft):
                parts.append(await session.score(draft, top=top, scored=sum(len(part.log_probs) for part in parts)))

    vllm.run(one())
    np.testing.assert_allclose(np.concatenate([p.log_probs for p in parts]), whole.log_probs, atol=1e-5)
    if top:
        np.testing.assert_allclose(np.concatenate([p.top.log_probs for p in parts]), whole.top.log_probs, atol=1e-5)
    ends = [end for end, _ in requests]
    assert len(requests) == len(parts) == 4
    assert all(cached >= before - BLOCK for before, (_, cached) in zip(ends, requests[1:], strict=False))
    assert engine.usage.scored_tokens == len(draft)


def sampled(vllm, jobs, seed):
    """Tokens of requests without seeds, after a seed of the worker."""
    vllm.engine.reset_prefix_cache()
    vllm.engine.collective_rpc("seed_sampling", args=(seed,))
    engine = VLLMEngine(vllm, stops=(), max_length=LONGEST, seeded=False)

    async def one(name):
        async with engine.session(tokens_of(f"prompt {chr(97 + name)}", 9).tolist()) as session:
            nothing = np.zeros(0, np.int32)
            return (await session.decode(nothing, 12, Inversion(np.ones(12)))).tokens.tolist()

    return vllm.run(*map(one, jobs))


def test_a_seed_of_a_step_repeats_the_same_batch_and_no_other(vllm):
    """With one seed for all requests, the numbers of a request are those of its row in the batch."""
    first = sampled(vllm, range(4), 7)
    assert sampled(vllm, range(4), 7) == first
    assert sampled(vllm, range(4), 8) != first
    assert sampled(vllm, [3, 2, 1, 0], 7) != first[::-1], "another order gives other tokens"
    assert len({tuple(tokens) for tokens in first}) == 4
