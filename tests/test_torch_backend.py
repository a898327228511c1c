"""The in-process engine as a backend of evaluation: the sampling that a benchmark asks for reaches the engine."""

from types import SimpleNamespace

import pytest
import torch

from redraft.config import InProcessEngine
from redraft.config.data import Sampling
from redraft.errors import UserError
from redraft.evaluate import backends
from redraft.evaluate.backend import GenerationRequest
from redraft.evaluate.backends import TorchBackend
from redraft.train import models


@pytest.fixture
def engines(monkeypatch):
    """Settings of the engines that are opened."""
    opened = []
    engine = backends.TorchEngine

    def recorded(model, **settings):
        opened.append(settings)
        return engine(model, **settings)

    monkeypatch.setattr(backends, "TorchEngine", recorded)
    return opened


def test_temperature_top_p_and_limits_are_those_of_the_benchmark_and_the_machine(tiny_model, engines):
    backend = TorchBackend(tiny_model, InProcessEngine(device="cpu", max_rows=3, max_batched_tokens=70))
    sampling = Sampling(temperature=0.7, top_p=0.6, max_new_tokens=5)
    answers = []
    backend.sample(
        "b", [GenerationRequest(0, s, [4, 5]) for s in range(4)], sampling, 0, lambda *new: answers.extend(new)
    )
    expected = {"temperature": 0.7, "top_p": 0.6, "max_length": 7, "max_rows": 3, "max_batched_tokens": 70}
    assert [{name: settings[name] for name in expected} for settings in engines] == [expected]
    assert sorted(answer.sample for answer in answers) == [0, 1, 2, 3]
    assert all(len(answer.tokens) <= 5 for answer in answers)


def test_a_cache_that_does_not_fit_is_rejected_before_it_is_made_and_the_rows_that_do_are_named(
    tiny_model, engines, monkeypatch
):
    """Of 4 rows of 7 tokens, 16 slots each, that memory has room for 3."""
    backend = TorchBackend(tiny_model, InProcessEngine(device="cpu", max_rows=4))
    requests, sampling = [GenerationRequest(0, s, [4, 5]) for s in range(4)], Sampling(max_new_tokens=5)
    config = backend.model.config
    row = 2 * 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 16
    monkeypatch.setattr(backends, "available", lambda device: 4 * row - 1)
    with pytest.raises(UserError, match="does not fit into memory") as refused:
        backend.sample("b", requests, sampling, 0, lambda *_: None)
    assert (refused.value.key, refused.value.allowed) == ("max_rows", "at most 3 rows")
    assert "4 rows of 7 tokens" in refused.value.value
    assert not engines
    monkeypatch.setattr(backends, "available", lambda device: 4 * row)
    backend.sample("b", requests, sampling, 0, lambda *_: None)
    assert len(engines) == 1


def test_a_cache_on_a_gpu_does_not_grow_and_takes_half(tiny_model, monkeypatch):
    config = models.load_config(tiny_model)
    row = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 16
    monkeypatch.setattr(backends, "available", lambda device: 4 * row)
    gpu, cpu = (SimpleNamespace(config=config, dtype=torch.float32, device=torch.device(d)) for d in ("cuda", "cpu"))
    backends.check_cache_memory(gpu, 4, 16)
    with pytest.raises(UserError, match="does not fit") as refused:
        backends.check_cache_memory(cpu, 4, 16)
    assert refused.value.allowed == "at most 2 rows"
