"""Supervised training of the tiny model: gradients of micro-batches, and what each optimizer trains."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.config.data import ArithmeticProblems
from redraft.config.model import WarmStart
from redraft.rollout.streams import stream
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import warm_start


@pytest.mark.parametrize("rows", [1, 5, 16, 64])
def test_micro_batches_have_loss_and_gradient_of_the_whole_batch(rows, monkeypatch):
    monkeypatch.setattr(warm_start, "ROWS", rows)
    torch.manual_seed(0)
    tokenizer, settings = make_tokenizer(), WarmStart(batch_size=24, data=ArithmeticProblems(min_terms=2))
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
    )
    tokens, targets = warm_start._batch(tokenizer, warm_start._sums(stream(0, "batch"), settings, 0.4))

    logits = model(input_ids=tokens).logits[:, :-1].flatten(0, 1)
    loss = cross_entropy(logits, targets[:, 1:].flatten(), ignore_index=-100)
    loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    assert warm_start._backward(model, tokens, targets) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close([p.grad for p in model.parameters()], expected, rtol=1e-4, atol=1e-6)


def test_both_optimizers_follow_the_schedule_every_parameter_moves_and_the_loss_falls(monkeypatch):
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=128,
            tie_word_embeddings=False,
        )
    )
    settings = WarmStart(steps=60, final_steps=2, batch_size=8, data=ArithmeticProblems(min_terms=2))
    optimizers = warm_start._optimizers(model, settings)
    monkeypatch.setattr(warm_start, "_optimizers", lambda *_: optimizers)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rates, losses, shares = [], [], []
    sums = warm_start._sums
    monkeypatch.setattr(warm_start, "_sums", lambda *given: (shares.append(given[2]), sums(*given))[1])

    def report(step, steps, loss):
        losses.append(loss)
        rates.append([group["lr"] for optimizer in optimizers for group in optimizer.param_groups])

    warm_start.warm_start(model, tokenizer, settings, report)
    assert rates == [[warm_start._rate(step, settings)] * 2 for step in range(62)]
    assert rates[0][0] == pytest.approx(settings.learning_rate / 50)
    assert [rate == settings.final_learning_rate for rate, _ in rates] == [False] * 60 + [True] * 2
    assert shares == [settings.guess_share] * 60 + [settings.final_guess_share] * 2
    assert [group["weight_decay"] for optimizer in optimizers for group in optimizer.param_groups] == [0.01] * 2
    assert sum(losses[50:60]) < 0.85 * sum(losses[:10])
    assert not any(map(torch.equal, before, model.parameters()))


def test_every_parameter_has_one_optimizer_and_matrices_of_layers_have_muon():
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=44,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            tie_word_embeddings=False,
        )
    )
    muon, adam = warm_start._optimizers(model, WarmStart())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    of_muon, of_adam = ([names[id(p)] for g in o.param_groups for p in g["params"]] for o in (muon, adam))
    assert sorted(of_muon + of_adam) == sorted(names.values())
    assert len(of_muon) == 2 * 7
    assert all(name.endswith("proj.weight") for name in of_muon)
    assert {"lm_head.weight", "model.embed_tokens.weight"} < set(of_adam)


@pytest.mark.parametrize(("signs", "has_plus"), [("both", True), ("minus", False)])
def test_operators_are_those_of_the_settings(signs, has_plus):
    settings = WarmStart(batch_size=32, data=ArithmeticProblems(signs=signs))
    prompts = [prompt for prompt, _ in warm_start._sums(stream(0, "batch"), settings, 0.0)]
    assert any("+" in prompt for prompt in prompts) is has_plus


@pytest.mark.parametrize("field", [{"size": 3}, {"split": "held-out"}, {"seed": 4}])
def test_fields_of_problems_without_an_effect_are_refused(field):
    with pytest.raises(ValidationError, match="it has no effect"):
        WarmStart(data=field)
    read_again = WarmStart.model_validate(WarmStart(data={"min_terms": 2}).model_dump())
    assert read_again.data.min_terms == 2
