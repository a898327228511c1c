"""A model in two halves: logits of chosen positions, a chunk at a time."""

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from redraft.engines.torch import head as distributions
from redraft.engines.torch.head import MAX_LOGIT_ERROR, Head, check_heads, hidden_states
from redraft.errors import UserError

VOCABULARY = 19
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES)),
    "llama, tied": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "olmo": (OlmoForCausalLM, OlmoConfig(**SIZES)),
    "granite": (GraniteForCausalLM, GraniteConfig(**SIZES, logits_scaling=3.0)),
    "cohere": (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**SIZES, final_logit_softcapping=2.0)),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=1
        ),
    ),
}


def make(name):
    torch.manual_seed(0)
    kind, config = MODELS[name]
    return kind(config).eval()


@pytest.fixture(scope="module")
def qwen3():
    return make("qwen3")


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(2, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_halves_are_the_whole(name, tokens):
    model = make(name)
    logits = Head(model)(hidden_states(model, input_ids=tokens))
    torch.testing.assert_close(logits, model(input_ids=tokens).logits)
    check_heads(model)


@torch.no_grad()
def test_bfloat16_is_reduced_in_float32(tokens):
    model = make("qwen3").bfloat16()
    check_heads(model)
    hidden = hidden_states(model, input_ids=tokens)[0, :-1]
    found, _ = Head(model).log_probs(hidden, tokens[0, 1:])
    distribution = model(input_ids=tokens[:1]).logits[0, :-1].float().log_softmax(-1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, distribution.gather(1, tokens[0, 1:, None])[:, 0])


def test_a_model_in_training_with_dropout_or_in_mixed_precision_is_checked_without_them():
    """As TRL has it: accelerate runs `forward` under autocast, whose rounding is larger than the check allows."""
    torch.manual_seed(0)
    kind, config = MODELS["qwen3"]
    shape = config.to_dict() | {"num_hidden_layers": 12, "initializer_range": 1.0, "attention_dropout": 0.5}
    model = kind(type(config)(**shape | {"layer_types": None})).train()
    inputs = {"input_ids": torch.arange(2)[None], "use_cache": False}
    plain = type(model).forward
    model.forward = torch.autocast("cpu", torch.bfloat16)(lambda **given: plain(model, **given))
    model.eval()
    with torch.inference_mode():
        whole, halves = model(**inputs).logits.float(), Head(model)(hidden_states(model, **inputs))
    model.train()
    assert (whole - halves).abs().max() > 3 * MAX_LOGIT_ERROR * whole.abs().max()
    check_heads(model)
    assert model.training


def test_a_head_that_is_more_than_a_linear_layer_is_refused():
    class Doubled(Qwen3ForCausalLM):
        def forward(self, **inputs):
            output = super().forward(**inputs)
            output.logits = output.logits * 2
            return output

    with pytest.raises(UserError, match="how this model makes logits"):
        check_heads(Doubled(MODELS["qwen3"][1]))


@pytest.mark.parametrize("at_once", [1, 3 * VOCABULARY, 1 << 20], ids=["one by one", "three", "all"])
def test_log_probs_entropies_and_their_gradients_do_not_depend_on_chunks(qwen3, tokens, monkeypatch, at_once):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", at_once)
    monkeypatch.setitem(distributions.NORMALISED_AT_ONCE, "cpu", 2 * VOCABULARY)
    chosen = tokens[:, 1:].flatten()

    def gradients(log_probs, entropies):
        qwen3.zero_grad(set_to_none=True)
        (log_probs.sin() + 0.5 * entropies).sum().backward()
        return [parameter.grad.clone() for parameter in qwen3.parameters()]

    distribution = qwen3(input_ids=tokens).logits[:, :-1].flatten(0, 1).log_softmax(-1)
    plain = distribution.gather(1, chosen[:, None])[:, 0], -(distribution.exp() * distribution).sum(-1)
    found = Head(qwen3).log_probs(hidden_states(qwen3, input_ids=tokens)[:, :-1].flatten(0, 1), chosen, entropy=True)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradients(*found), gradients(*plain))


@pytest.mark.parametrize("grad", [True, False])
def test_no_more_logits_are_made_at_once_than_a_chunk(qwen3, tokens, monkeypatch, grad):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", 4 * VOCABULARY)
    sizes, saved = [], []
    counting = qwen3.lm_head.register_forward_hook(lambda _, __, logits: sizes.append(len(logits)))
    hidden = hidden_states(qwen3, input_ids=tokens)[:, :-1].flatten(0, 1)
    keep = torch.autograd.graph.saved_tensors_hooks(lambda kept: saved.append(kept.shape) or kept, lambda kept: kept)
    with torch.set_grad_enabled(grad), keep:
        Head(qwen3).log_probs(hidden, tokens[:, 1:].flatten())
    counting.remove()
    assert sizes == [4] * 7 + [2]
    assert all(VOCABULARY not in shape[-1:] for shape in saved), "logits wait for no gradient"


def test_the_gradient_of_a_piece_of_the_logits_is_no_larger_than_the_piece(qwen3, tokens, monkeypatch):
    monkeypatch.setitem(distributions.NORMALISED_AT_ONCE, "cpu", 2 * VOCABULARY)
    hidden = hidden_states(qwen3, input_ids=tokens)[:, :-1].flatten(0, 1).detach()
    log_probs, entropies = Head(qwen3).log_probs(hidden, tokens[:, 1:].flatten(), entropy=True)
    names, waiting = set(), [log_probs.grad_fn, entropies.grad_fn]
    while waiting:
        node = waiting.pop()
        names.add(node.name())
        waiting += [before for before, _ in node.next_functions if before is not None]
    assert "SplitBackward0" in names
    assert "SliceBackward0" not in names, "each piece has a gradient as large as the chunk"


@torch.no_grad()
def test_divergences_of_chunks_are_those_of_whole_distributions(qwen3, tokens, monkeypatch):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", 4 * VOCABULARY)
    other = make("granite")
    states = [hidden_states(model, input_ids=tokens)[0] for model in (qwen3, other)]
    found = Head(qwen3).divergences(states[0], Head(other), states[1])
    own, its = (model(input_ids=tokens[:1]).logits[0].log_softmax(-1) for model in (qwen3, other))
    torch.testing.assert_close(found, (own.exp() * (own - its)).sum(-1))
    assert float(found.min()) > 0


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_a_temperature_divides_the_logits_of_every_distribution_and_no_logit(qwen3, tokens, temperature):
    hidden, head = hidden_states(qwen3, input_ids=tokens)[0], Head(qwen3, temperature)
    logits = qwen3(input_ids=tokens[:1]).logits[0]
    distribution = (logits / temperature).log_softmax(-1)
    log_probs, entropies = head.log_probs(hidden[:-1], tokens[0, 1:], entropy=True)
    torch.testing.assert_close(log_probs, distribution[:-1].gather(1, tokens[0, 1:, None])[:, 0])
    torch.testing.assert_close(entropies, -(distribution.exp() * distribution).sum(-1)[:-1])
    torch.testing.assert_close(head(hidden), logits)
