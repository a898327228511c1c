"""Files of models: what ends a response, weights that do not fit, heads of their own, and settings that do nothing."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from redraft.errors import UserError
from redraft.files import read_json
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.initial_policy import make_model


@pytest.fixture
def model_folder(tiny_model, tmp_path):
    """A copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny_model, tmp_path / "a-model"))


def edit(folder, name, **change):
    file = folder / name
    content = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (1, 1, {1}),
        (1, [1, 5], {1, 5}),
        ([1, 5], 1, {1, 5}),
        ([5, 6], None, {1, 5, 6}),
        ([5, 6], ..., {1, 5, 6}),
        (..., 7, {1, 7}),
        (0, ..., {0, 1}),
        (..., ..., {1}),
    ],
    ids=str,
)
def test_all_ends_that_the_files_and_the_tokenizer_name_end_a_response_of_every_backend(
    model_folder, in_config, in_generation, expected
):
    """The tokenizer names 1. Whatever reads the loaded or the saved model by transformers' rules finds the same."""
    edit(model_folder, "config.json", eos_token_id=in_config)
    edit(model_folder, "generation_config.json", eos_token_id=in_generation)
    if in_generation is ...:
        (model_folder / "generation_config.json").unlink()
    model, tokenizer = models.load(model_folder)
    assert models.ends(model_folder, tokenizer) == models.stop_tokens(model) == expected
    models.save(model, tokenizer, model_folder.with_name("saved"))
    saved = LlamaForCausalLM if model.config.model_type == "llama" else type(model)
    found = saved.from_pretrained(model_folder.with_name("saved")).generation_config.eos_token_id
    assert set(found if isinstance(found, list) else [found]) == expected


def test_defaults_of_configuration_classes_end_no_response(model_folder):
    """A Llama's configuration without `eos_token_id` has 2 in transformers."""
    model = tied()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    models.save(model, make_tokenizer(), model_folder)
    edit(model_folder, "config.json", eos_token_id=...)
    assert models.load_config(model_folder).eos_token_id == 2
    assert models.stop_tokens(models.load(model_folder)[0]) == {1}


@pytest.mark.parametrize("value", ["1", True, -1, [1, None, 2.0], {}], ids=str)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_end_that_is_no_token_is_rejected(model_folder, name, value):
    edit(model_folder, name, eos_token_id=value)
    with pytest.raises(UserError) as refused:
        models.ends(model_folder, SimpleNamespace(eos_token_id=1))
    found = (refused.value.file, refused.value.key, refused.value.value)
    assert found == (model_folder / name, "eos_token_id", value)


def test_a_damaged_file_of_settings_is_named_and_not_taken_for_a_missing_one(model_folder):
    (model_folder / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="damaged") as refused:
        models.load(model_folder)
    assert refused.value.file == model_folder / "generation_config.json"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": "qwen3", "hidden_size": "a"}'),
        ("config.json", '{"model_type": "qwen3", "num_attention_heads": 0}'),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_files_of_the_wrong_type_are_one_error_that_names_the_folder(model_folder, name, content):
    (model_folder / name).write_text(content)
    with pytest.raises(UserError, match="no model can be loaded from here") as refused:
        models.load(model_folder)
    assert refused.value.file == model_folder


def test_settings_that_are_no_object_are_one_error_that_names_the_file(model_folder):
    (model_folder / "generation_config.json").write_text("[]")
    with pytest.raises(UserError, match="this is no object of settings") as refused:
        models.load(model_folder)
    assert refused.value.file == model_folder / "generation_config.json"


def change_weights(folder, **change):
    weights = load_file(folder / "model.safetensors") | change
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


UP = "model.layers.0.mlp.up_proj.weight"
LOADERS = {"policy": models.load, "critic": lambda path: models.load_critic(path, 0), "vLLM": models.check_weights_of}


def broken(weight, *values):
    """A copy of a weight with other values at its beginning."""
    weight = weight.clone()
    weight.view(-1)[: len(values)] = torch.tensor(values)
    return weight


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        (UP, [torch.nan], "1 NaN, 0 infinite"),
        (UP, [torch.inf, -torch.inf, torch.nan], "1 NaN, 2 infinite"),
        ("model.norm.weight", [torch.nan, torch.nan], "2 NaN, 0 infinite"),
        ("model.embed_tokens.weight", [-torch.inf], "0 NaN, 1 infinite"),
    ],
    ids=["nan", "several", "norm", "embeddings"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_that_are_not_finite_are_rejected_by_every_loader(model_folder, loader, name, values, count, dtype):
    weight = load_file(model_folder / "model.safetensors")[name]
    change_weights(model_folder, **{name: broken(weight, *values).to(dtype)})
    with pytest.raises(UserError, match=f"{len(values)} of the {weight.numel():,} values of this weight") as refused:
        LOADERS[loader](model_folder)
    assert refused.value.file == model_folder / "model.safetensors"
    assert (refused.value.key, refused.value.value) == (name, count)


def test_large_finite_weights_are_no_mistake_and_those_that_float32_cannot_hold_are_one(model_folder):
    weight = load_file(model_folder / "model.safetensors")[UP]
    change_weights(model_folder, **{UP: torch.full_like(weight, 3e38)})  # the sum is infinite
    assert models.load(model_folder)
    change_weights(model_folder, **{UP: broken(weight.double(), 1e39)})
    with pytest.raises(UserError, match="1 of the"):
        models.load(model_folder)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["int8", "uint8", "bool", "int32", "int64", "float8_e4m3fn"])
def test_weights_that_are_stored_as_integers_or_codes_are_rejected_by_every_loader(model_folder, loader, kind):
    weight = load_file(model_folder / "model.safetensors")[UP]
    change_weights(model_folder, **{UP: (weight * 10).to(getattr(torch, kind))})
    with pytest.raises(UserError, match="no plain floating-point number") as refused:
        LOADERS[loader](model_folder)
    assert (refused.value.file, refused.value.key) == (model_folder / "model.safetensors", UP)
    assert refused.value.value in {"I8", "U8", "BOOL", "I32", "I64", "F8_E4M3"}
    assert refused.value.allowed == "BF16, F16, F32, F64"


@pytest.mark.parametrize("loader", LOADERS)
def test_every_shard_is_checked_and_named(model_folder, loader):
    weights = load_file(model_folder / "model.safetensors")
    parts = {"a.safetensors": {UP: broken(weights[UP], torch.nan)}, "b.safetensors": weights}
    weights.pop(UP)
    for name, part in parts.items():
        save_file(part, model_folder / name, metadata={"format": "pt"})
    (model_folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in parts.items() for name in part}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="values of this weight are not finite") as refused:
        LOADERS[loader](model_folder)
    assert (refused.value.file, refused.value.key) == (model_folder / "a.safetensors", UP)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", 9999),
        ("eos_token_id", [1, 44]),
        ("bos_token_id", 44),
        ("pad_token_id", 9999),
        ("pad_token_id", -1),
        ("decoder_start_token_id", 44),
        ("suppress_tokens", [3, 50]),
        ("bad_words_ids", [[3], [4, 50]]),
    ],
    ids=str,
)
def test_tokens_outside_of_the_vocabulary_are_rejected_by_every_loader(model_folder, loader, name, key, value):
    edit(model_folder, name, **{key: value})
    with pytest.raises(UserError, match="not in the model's vocabulary|no token") as refused:
        LOADERS[loader](model_folder)
    assert (refused.value.file, refused.value.key, refused.value.value) == (model_folder / name, key, value)
    assert value == -1 or refused.value.allowed == "0 to 43 (vocab_size is 44)"


@pytest.mark.parametrize("loader", ["policy", "vLLM"])
def test_a_tokenizer_with_more_tokens_than_the_model_is_rejected(model_folder, loader):
    tokenizer = models.load_tokenizer(model_folder)
    assert models.load(model_folder)
    tokenizer.add_tokens(["more", "and more"])
    tokenizer.save_pretrained(model_folder)
    with pytest.raises(UserError, match="2 tokens of the tokenizer are not in the model's vocabulary") as refused:
        LOADERS[loader](model_folder)
    assert (refused.value.file, refused.value.key, refused.value.value) == (model_folder, "tokenizer", "more is 44")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("change", "problem", "value"),
    [
        ({UP: None}, "lack weights", UP),
        ({UP: torch.zeros(3, 4)}, "another shape", f"{UP} [3, 4]"),
        ({UP.replace("weight", "bias"): torch.ones(32)}, "left out", UP.replace("weight", "bias")),
        ({UP.replace("0", "1"): torch.ones(32, 16)}, "left out", UP.replace("0", "1")),
    ],
    ids=["missing", "shape", "bias", "layer"],
)
def test_weights_that_do_not_fit_the_configuration_are_rejected_by_every_loader(
    model_folder, loader, change, problem, value
):
    change_weights(model_folder, **change)
    with pytest.raises(UserError, match=problem) as refused:
        LOADERS[loader](model_folder)
    assert (refused.value.file, refused.value.key, refused.value.value) == (model_folder, "weights", value)


@pytest.mark.parametrize("loader", ["policy", "vLLM"])
def test_a_missing_head_is_rejected_where_it_is_used(model_folder, loader):
    change_weights(model_folder, **{"lm_head.weight": None})
    with pytest.raises(UserError, match="lack weights, which would be random numbers") as refused:
        LOADERS[loader](model_folder)
    assert refused.value.value == "lm_head.weight"
    assert models.load_critic(model_folder, 0)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_shared_head_is_not_missing_and_buffers_and_other_modules_are_no_surplus(tmp_path, loader):
    models.save(tied(), make_tokenizer(), tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    further = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "visual.weight": torch.ones(2)}
    change_weights(tmp_path, **further)
    LOADERS[loader](tmp_path)


def test_two_heads_for_one_are_rejected(tmp_path):
    models.save(tied(), make_tokenizer(), tmp_path)
    embeddings = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(tmp_path, **{"lm_head.weight": embeddings.clone()})
    assert models.load(tmp_path)
    change_weights(tmp_path, **{"lm_head.weight": embeddings + 1})
    with pytest.raises(UserError, match="a head that differs from the embeddings") as refused:
        models.load(tmp_path)
    assert refused.value.key == "tie_word_embeddings"


def test_settings_without_effect_are_dropped_so_that_the_model_can_be_saved(model_folder, tmp_path):
    """Some published models have a temperature beside `do_sample: false`; contradictory settings are an error."""
    edit(model_folder, "generation_config.json", do_sample=False, temperature=0.6, top_p=0.9, length_penalty=2.0)
    model, tokenizer = models.load(model_folder)
    models.save(model, tokenizer, tmp_path / "saved")
    found = read_json(tmp_path / "saved/generation_config.json")
    assert found["do_sample"] is False
    assert not {"temperature", "top_p", "length_penalty"} & {key for key, value in found.items() if value is not None}
    edit(model_folder, "generation_config.json", num_return_sequences=2)
    with pytest.raises(UserError, match="num_return_sequences"):
        models.load(model_folder)


def test_settings_with_an_effect_are_kept(model_folder, tmp_path):
    edit(model_folder, "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9)
    models.save(*models.load(model_folder), tmp_path / "saved")
    found = read_json(tmp_path / "saved/generation_config.json")
    assert (found["temperature"], found["top_p"]) == (0.6, 0.9)


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


def test_an_index_that_names_weights_outside_of_its_folder_is_rejected(model_folder):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "w/a.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="outside of its folder") as raised:
        models.load(model_folder)
    assert (raised.value.key, raised.value.allowed) == ("weight_map", "names of files in the folder")


def test_all_files_of_a_model_are_of_the_named_revision(model_folder, monkeypatch):
    found = []

    def recorded(function):
        def call(*arguments, **named):
            found.append(named.get("revision"))
            return function(*arguments, **named)

        return call

    for part in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(
            getattr(transformers, part), "from_pretrained", recorded(getattr(transformers, part).from_pretrained)
        )
    monkeypatch.setattr(transformers.utils, "cached_file", recorded(transformers.utils.cached_file))
    models.load(model_folder, "0123abc")
    assert len(found) > 3
    assert set(found) == {"0123abc"}


def test_a_model_with_an_adapter_is_rejected(model_folder):
    model, _ = models.load(model_folder)
    model._hf_peft_config_loaded = True  # as transformers marks it once it has loaded an adapter
    info = {"missing_keys": (), "mismatched_keys": (), "unexpected_keys": ()}
    with pytest.raises(UserError, match="adapter"):
        models.check_weights(model, info, model_folder)


def test_a_folder_without_a_tokenizer_is_rejected(model_folder):
    for file in model_folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer|no model can be loaded"):
        models.load(model_folder)


def test_a_character_that_the_tiny_tokenizer_lacks_is_padding():
    tokenizer = make_tokenizer()
    assert tokenizer("Ω1")["input_ids"] == [tokenizer.pad_token_id, tokenizer.convert_tokens_to_ids("1")]
