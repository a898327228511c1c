"""The in-process engine as a backend of evaluation: the sampling that a benchmark asks for reaches the engine."""

import pytest

from redraft.config import InProcessEngine
from redraft.config.data import Sampling
from redraft.evaluate import torch_backend
from redraft.evaluate.backend import Request
from redraft.evaluate.torch_backend import TorchBackend


@pytest.fixture
def engines(monkeypatch):
    """Settings of the engines that are opened."""
    opened = []
    engine = torch_backend.TorchEngine

    def recorded(model, **settings):
        opened.append(settings)
        return engine(model, **settings)

    monkeypatch.setattr(torch_backend, "TorchEngine", recorded)
    return opened


def test_temperature_top_p_and_limits_are_those_of_the_benchmark_and_the_machine(tiny_model, engines):
    backend = TorchBackend(tiny_model, InProcessEngine(device="cpu", max_rows=3, max_batched_tokens=70))
    sampling = Sampling(temperature=0.7, top_p=0.6, max_new_tokens=5)
    answers = []
    backend.sample("b", [Request(0, s, [4, 5]) for s in range(4)], sampling, 0, lambda *new: answers.extend(new))
    expected = {"temperature": 0.7, "top_p": 0.6, "max_length": 7, "max_rows": 3, "max_batched_tokens": 70}
    assert [{name: settings[name] for name in expected} for settings in engines] == [expected]
    assert sorted(answer.sample for answer in answers) == [0, 1, 2, 3]
    assert all(len(answer.tokens) <= 5 for answer in answers)
