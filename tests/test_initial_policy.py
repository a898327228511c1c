"""Import of initial policies from local folders: one at a time, within memory."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from redraft.config import PretrainedModel
from redraft.errors import UserError
from redraft.train import initial_policy, models
from redraft.train.initial_policy import make_model


@pytest.fixture
def preset(tiny_model, monkeypatch):
    """A preset with one model, which is taken from a folder."""
    settings = SimpleNamespace(models={"m": PretrainedModel(path=str(tiny_model))})
    settings.of_block = lambda _: settings
    monkeypatch.setattr(initial_policy, "Experiments", lambda: SimpleNamespace(preset=lambda *_: settings))


def test_parameters_are_counted_without_weights(tiny_model):
    model, _ = models.load(tiny_model)
    assert models.parameters(tiny_model) == sum(weights.numel() for weights in model.parameters())


def test_a_model_that_exceeds_the_memory_is_not_loaded(preset, tiny_model, tmp_path, monkeypatch):
    size = 4 * models.parameters(tiny_model)
    monkeypatch.setattr(initial_policy, "available", lambda device: {"cpu": size - 1}[device.type])
    with pytest.raises(UserError, match="too little memory for this model"):
        make_model("any", "m", tmp_path / "models" / "m")
    monkeypatch.setattr(initial_policy, "available", lambda _: size)
    make_model("any", "m", tmp_path / "models" / "m")
    imported, _ = models.load(tmp_path / "models" / "m")
    for name, weights in models.load(tiny_model)[0].named_parameters():
        assert torch.equal(imported.get_parameter(name), weights)


def test_models_are_imported_one_after_the_other(preset, tmp_path):
    """A lock of Linux's flock is that of an open file, so threads wait for each other as processes do."""
    held = threading.Event()

    def hold():
        with initial_policy._turn(tmp_path / "models"):
            held.set()
            time.sleep(1)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    began = time.monotonic()
    make_model("any", "m", tmp_path / "models" / "m")
    assert time.monotonic() - began > 0.5, "it waited for the other one"
    other.join()
