"""Packed weights: the same results as plain products, always of the present weights, and only in large models."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from redraft.engines.torch import packed
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.head import hidden_states
from redraft.engines.torch.packed import packable, packed_weights
from tests.test_torch_engine import check_against_plain_forward, make_engine, make_jobs, make_model, run

TOKENS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 0)
    return make_model("llama", 4, 2).eval()


def hidden(model):
    with torch.inference_mode():
        return hidden_states(model, input_ids=TOKENS, use_cache=False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 40), (5, 40), (2, 33, 40), (0, 40)], ids=str)
def test_packed_products_are_those_of_the_layer(monkeypatch, shape, dtype, bias):
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 0)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(40, 24, bias).to(dtype), torch.randn(shape).to(dtype)
    gaps = torch.stack([x, x], -1)[..., 0]
    if not packable(layer):
        pytest.skip("oneDNN lacks this precision here")
    with torch.inference_mode():
        plain = layer(x)
        with packed_weights(layer):
            torch.testing.assert_close(layer(x), plain)
            torch.testing.assert_close(layer(gaps), plain)


def test_an_engine_with_packed_weights_computes_what_the_model_does(model, monkeypatch):
    jobs, reordered = make_jobs(), []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda *args: [reordered.append(args), reorder(*args)][1]
    )
    results = run(make_engine(model), jobs)
    assert len(reordered) == sum(type(module) is torch.nn.Linear for module in model.modules())
    check_against_plain_forward(model, jobs, results)


def test_each_run_computes_with_the_present_weights(model):
    engine, jobs = make_engine(model), make_jobs(4)
    before = run(engine, jobs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(1.5)  # by `data`, which no counter of versions sees
    after = run(engine, jobs)
    check_against_plain_forward(model, jobs, after)
    assert any(
        not np.array_equal(now.log_probs, then.log_probs) for (_, now), (_, then) in zip(after, before, strict=True)
    )


def test_exchanged_weights_are_used_unpacked(model):
    drafter = QuantisedDrafter(model, bits=2)
    policy = hidden(model)
    with drafter.drafting():
        draft = hidden(model)
    assert not torch.allclose(policy, draft, atol=1e-3)
    with packed_weights(model):
        torch.testing.assert_close(hidden(model), policy)
        with drafter.drafting():
            torch.testing.assert_close(hidden(model), draft)
        torch.testing.assert_close(hidden(model), policy)


def test_layers_are_their_own_again_after_an_error(model):
    before = hidden(model)
    with pytest.raises(ZeroDivisionError), packed_weights(model):
        raise ZeroDivisionError
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert torch.equal(hidden(model), before)


def test_small_models_and_those_of_other_layers_or_precisions_are_not_packed(model, monkeypatch):
    assert packable(model)
    assert not packable(model.double())
    assert not packable(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)).transformer)
    monkeypatch.undo()
    assert not packable(model.float())


def test_a_models_size_is_that_of_its_linear_layers(monkeypatch):
    layer = torch.nn.Linear(16, 4)
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 64)
    assert packable(layer) == [layer]
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 65)
    assert not packable(layer)
