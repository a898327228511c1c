"""vLLM as a backend of evaluation, over an engine that only records its requests."""

import asyncio
from types import SimpleNamespace

import pytest

from redraft.config import InProcessEngine
from redraft.config.data import Sampling
from redraft.evaluate.backend import GenerationRequest
from redraft.evaluate.vllm_backend import VLLMBackend


class Noting:
    """Answers each request with two tokens, the last one a stop for even samples."""

    def __init__(self, stop):
        self.stop, self.asked = stop, {}

    async def generate(self, identity, prompt_ids, sampling_params):
        self.asked[identity] = (prompt_ids, sampling_params)
        return SimpleNamespace(token_ids=[5, self.stop if identity.endswith(("0", "2")) else 6])

    def run(self, work):
        asyncio.run(work)


@pytest.fixture
def backend(tiny_model, monkeypatch):
    backend = VLLMBackend(tiny_model, InProcessEngine(device="cpu", max_rows=3))
    engine = Noting(backend.stops[0])
    monkeypatch.setattr("redraft.evaluate.vllm_backend.LocalVLLM", lambda *arguments: engine)
    return backend, engine


def test_a_benchmark_s_sampling_reaches_vllm_and_each_sample_has_a_seed(backend):
    backend, engine = backend
    answers = []
    sampling = Sampling(temperature=0.7, top_p=0.6, max_new_tokens=5)
    backend.sample("b", [GenerationRequest(1, s, [4, 5]) for s in range(4)], sampling, 0, answers.append)
    assert list(engine.asked) == [f"b-1-{sample}" for sample in range(4)]
    assert all(prompt == [4, 5] for prompt, _ in engine.asked.values())
    seeds = [asked.pop("seed") for _, asked in engine.asked.values()]
    assert len(set(seeds)) == 4
    expected = {
        "temperature": 0.7,
        "top_p": 0.6,
        "max_tokens": 5,
        "ignore_eos": True,
        "stop_token_ids": backend.stops,
        "detokenize": False,
    }
    assert [asked for _, asked in engine.asked.values()] == [expected] * 4
    assert {answer.sample: answer.finish for answer in answers} == {0: "stop", 1: "length", 2: "stop", 3: "length"}
