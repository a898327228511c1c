"""Which tokens end a response of a model, and heads of their own."""

from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.initial_policy import make_model
from redraft.train.models import stop_tokens


@pytest.mark.parametrize(
    ("ends", "stops"), [(1, {1, 2}), ([1, 5], {1, 2, 5}), ([2], {2}), (0, {0, 2}), (None, {2})], ids=str
)
def test_all_ends_that_model_and_tokenizer_name_are_stops(ends, stops):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=ends))
    assert stop_tokens(model, SimpleNamespace(eos_token_id=2)) == stops


def test_a_model_without_settings_ends_as_its_tokenizer_says():
    assert stop_tokens(SimpleNamespace(generation_config=None), SimpleNamespace(eos_token_id=3)) == {3}
    assert stop_tokens(SimpleNamespace(), SimpleNamespace(eos_token_id=None)) == set()


def tied():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=44,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            tie_word_embeddings=True,
        )
    )


def test_a_head_of_its_own_has_the_distributions_of_the_shared_one_and_follows_no_update_of_the_embeddings(tmp_path):
    model, tokens = tied(), torch.arange(3, 20)[None]
    before = model(tokens).logits
    models.untie(model)
    models.save(model, make_tokenizer(), tmp_path / "model")
    again, _ = models.load(tmp_path / "model")
    assert not models.load_config(tmp_path / "model").tie_word_embeddings
    torch.testing.assert_close(again(tokens).logits, before)
    with torch.no_grad():
        again.get_input_embeddings().weight.zero_()
    assert again.get_output_embeddings().weight.any()
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in tied().parameters()) + 44 * 16


def test_a_head_that_has_its_own_weights_keeps_them():
    model = tied()
    models.untie(model)
    own = model.get_output_embeddings().weight
    models.untie(model)
    assert model.get_output_embeddings().weight is own


@pytest.mark.parametrize("untie", [True, False])
def test_the_stage_unties_what_the_preset_says(folder, tmp_path, monkeypatch, untie):
    models.save(tied(), make_tokenizer(), tmp_path / "found")
    preset = folder / "experiments/presets/smol.yaml"
    content = yaml.safe_load(preset.read_text())
    content["models"] = {"qwen3-1.7b-base": {"kind": "pretrained", "path": str(tmp_path / "found"), "untie": untie}}
    preset.write_text(yaml.safe_dump(content))
    monkeypatch.chdir(folder)
    make_model("smol", "qwen3-1.7b-base", tmp_path / "model")
    assert models.load_config(tmp_path / "model").tie_word_embeddings is not untie
