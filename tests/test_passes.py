"""Passes that are timed for a roofline: all kinds, in the format of a sweep, with the model left as it was."""

import itertools

import pytest
import torch

from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.passes import throughput, timed_passes
from redraft.engines.torch.speculation import Fixed, SpeculativeEngine
from redraft.errors import UserError
from redraft.lab.selfspec import machine
from redraft.lab.selfspec.machine import measure
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, read_sweep, write_sweep
from tests.test_torch_engine import make_model


def test_every_kind_of_pass_is_timed_at_every_batch_and_length(monkeypatch):
    model = make_model("qwen3", 4, 2).train()
    engine = SpeculativeEngine(
        model, QuantisedDrafter(model, group=16), Fixed(3), 3, stops=(), max_length=20, max_rows=4
    )
    widths, forward = [], engine._forward
    own = model.model.layers[0].mlp.up_proj.weight

    def noted(tokens, *arguments, **named):
        widths.append((tuple(tokens.shape), model.model.layers[0].mlp.up_proj.weight is own))
        return forward(tokens, *arguments, **named)

    monkeypatch.setattr(engine, "_forward", noted)
    found = list(timed_passes(engine, (1, 4), (5, 16), (2, 3), repetitions=2))
    kinds = [("policy", 0), ("drafter", 0), ("block", 2), ("block", 3)]
    assert [(p.length, p.batch, p.kind, p.proposals) for p in found] == [
        (length, batch, *kind) for length, batch, kind in itertools.product((5, 16), (1, 4), kinds)
    ]
    assert all(len(p.seconds) == 2 and min(p.seconds) >= 0 for p in found)
    # Five repetitions each, of which the first three warm up.
    assert widths[::5][:4] == [((1, 1), True), ((1, 1), False), ((1, 3), True), ((1, 4), True)]
    assert len(widths) == 5 * len(found)
    assert model.training
    assert model.config._attn_implementation != "redraft_slots"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_machine_s_sweep_has_what_a_fit_needs(tiny_model, tmp_path, dtype):
    lines, flops = measure(tiny_model, "cpu", 1, 4, dtype, batches=(1, 2), lengths=(8, 16), gammas=(1, 3))
    write_sweep(tmp_path / "sweep.csv", lines)
    sweep = read_sweep(tmp_path / "sweep.csv")
    assert sweep.gammas == [1, 3]
    for mode, gammas in ((TARGET, (0,)), (DRAFT, (1, 3)), (VERIFY, (1, 3))):
        for gamma in gammas:
            times = sweep.times(mode, gamma)
            assert sorted(zip(times.length, times.batch, strict=True)) == [(8, 1), (8, 2), (16, 1), (16, 2)]
            assert times.seconds.min() > 0
    assert flops > 1e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sweep_is_in_the_precision_of_the_run(tiny_model, monkeypatch, dtype):
    asked = []
    monkeypatch.setattr(machine, "timed_passes", lambda engine, *_: asked.append(engine.dtype) or [])
    monkeypatch.setattr(machine, "throughput", lambda _, dtype: asked.append(dtype) or 1.0)
    assert measure(tiny_model, "cpu", 1, 4, dtype, lengths=(8, 16), gammas=(1,)) == ([], 1.0)
    assert asked == [dtype, dtype]


def test_a_model_too_short_for_two_lengths_is_rejected(tiny_model):
    with pytest.raises(UserError, match="two lengths or more"):
        measure(tiny_model, "cpu", 1, 4, lengths=(256, 510, 1024), gammas=(7,))


def test_throughput_is_of_products_of_matrices(monkeypatch):
    readings = iter(range(100))
    monkeypatch.setattr("redraft.engines.torch.passes.now", lambda device: float(next(readings)))
    monkeypatch.setattr("redraft.engines.torch.passes.PRODUCT", {"cpu": 8})
    assert throughput(torch.device("cpu"), torch.float32) == 2 * 8**3, "8 x 8 matrices in a second"
