"""Bytes and operations of models: the released constants, models of transformers, and what is unsupported."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.self_speculation import CONFIGURATIONS
from redraft.errors import UserError
from redraft.selfspec.constants import TIED_BY_DEFAULT, model_constants, read_model
from tests.selfspec import DATA, needs_data

QWEN = CONFIGURATIONS["Qwen2.5-7B"]
RELEASED = {
    "Qwen2.5-7B": (15230974976, 5443042304, 57344, 14140571648, 401408),
    "Qwen2.5-14B": (29539379200, 9721292800, 196608, 27981250560, 983040),
    "Llama3.1-8B": (16060522496, 5591539712, 131072, 15009316864, 524288),
}
"""W_t, W_d, κ, C_dense and C_attn of the released calibrations (sd_toggle/configs/a100_tp1_*.json)."""
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": 50,
    "pad_token_id": 0,
    "sliding_window": None,
}


@pytest.mark.parametrize("name", RELEASED)
def test_costs_are_the_released_ones(name):
    costs = model_constants(CONFIGURATIONS[name]).costs
    found = (costs.target_bytes, costs.draft_bytes, costs.kv_bytes, costs.dense_flops, costs.attention_flops)
    assert found == RELEASED[name]


@needs_data
def test_sizes_and_costs_are_those_of_the_released_file():
    released = json.loads((DATA / "model_constants_qwen257b_tp1.json").read_text())
    model = model_constants(QWEN)
    sizes = (
        model.hidden,
        model.intermediate,
        model.layers,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocabulary,
    )
    assert sizes == tuple(released[key] for key in ("D", "D_ff", "L", "n_heads", "n_kv", "d_h", "V"))
    costs = model.costs
    assert (costs.target_bytes, costs.draft_bytes) == (released["W_t"], released["W_d"])
    assert costs.draft_bytes / costs.target_bytes == released["rho"]
    assert (costs.kv_bytes, costs.dense_flops, costs.attention_flops) == tuple(
        released[key] for key in ("kappa_theoretical", "C_dense", "C_attn")
    )


def test_a_drafter_of_8_bits_has_twice_the_bytes_of_its_quantised_weights():
    w4, w8 = (model_constants(QWEN, draft_bits=bits) for bits in (4, 8))
    quantised = w4.ffn_parameters + w4.qkvo_parameters
    assert w8.costs.draft_bytes - w4.costs.draft_bytes == quantised / 2
    assert w8.costs.target_bytes == w4.costs.target_bytes == 2 * quantised + 2 * w4.kept_parameters
    with pytest.raises(UserError, match="no such drafter") as raised:
        model_constants(QWEN, draft_bits=3)
    assert (raised.value.key, raised.value.value) == ("draft_bits", 3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", TIED_BY_DEFAULT)
def test_weights_are_those_of_the_model_that_transformers_makes(kind, tied):
    config = AutoConfig.for_model(kind, **SIZES, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    left_out = ("bias", "q_norm.weight", "k_norm.weight")
    weights = {name: each.numel() for name, each in model.named_parameters() if not name.endswith(left_out)}
    found = model_constants(config)
    assert found.costs.target_bytes == 2 * sum(weights.values())
    linear = {name: module.weight.numel() for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    assert found.costs.dense_flops == 2 * sum(linear.values())
    assert found.ffn_parameters == sum(size for name, size in linear.items() if ".mlp." in name)
    assert found.qkvo_parameters == sum(size for name, size in linear.items() if ".self_attn." in name)
    assert found == model_constants(config.to_dict())


@pytest.mark.parametrize("kind", TIED_BY_DEFAULT)
def test_a_head_is_tied_by_default_as_in_transformers(kind):
    config = AutoConfig.for_model(kind, **SIZES)
    keys = {key: value for key, value in config.to_dict().items() if key != "tie_word_embeddings"}
    assert model_constants(keys).tied == bool(config.tie_word_embeddings)


def test_heads_of_keys_and_their_width_have_defaults():
    keys = {key: value for key, value in QWEN.items() if key not in ("num_key_value_heads", "head_dim")}
    assert (model_constants(keys).kv_heads, model_constants(keys).head_dim) == (28, 128)
    assert model_constants(QWEN | {"head_dim": 64}).head_dim == 64


REFUSED = {
    "a mixture of experts": ({"num_experts": 8}, ["mixture of experts", "num_experts", "dense decoder"]),
    "another mixture": ({"model_type": "mixtral", "num_local_experts": 8}, ["mixture of experts", "num_local_experts"]),
    "another architecture": ({"model_type": "mamba"}, ["does not cover this architecture", "mamba", "llama"]),
    "no architecture": ({"model_type": None}, ["does not cover this architecture", "model_type"]),
    "a quantised target": ({"quantization_config": {"bits": 4}}, ["quantised target", "16-bit"]),
    "a window": ({"use_sliding_window": True, "sliding_window": 4096}, ["a part of the positions", "sliding_window"]),
    "mistral's window": ({"model_type": "mistral", "sliding_window": 4096}, ["a part of the positions"]),
    "linear layers": (
        {"layer_types": ["full_attention", "linear_attention"]},
        ["a part of the positions", "layer_types"],
    ),
    "a missing size": ({"hidden_size": None}, ["lacks a size", "hidden_size", "whole number"]),
    "a size that no model has": ({"vocab_size": 10**400}, ["lacks a size", "vocab_size", "at most 1000000000"]),
    "a text in place of a truth value": ({"tie_word_embeddings": "false"}, ["tie_word_embeddings", "true or false"]),
    "several architectures": ({"model_type": ["qwen2"]}, ["does not cover", "model_type"]),
    "a size that is none": ({"vocab_size": 1.5}, ["lacks a size", "vocab_size", "1.5"]),
    "no layers": ({"num_hidden_layers": 0}, ["lacks a size", "num_hidden_layers"]),
    "uneven heads": ({"num_key_value_heads": 5}, ["evenly", "num_key_value_heads", "a divisor of 28"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_roofline_does_not_cover_is_refused(name):
    change, parts = REFUSED[name]
    with pytest.raises(UserError) as error:
        model_constants(QWEN | change)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_window_that_is_not_used_is_none():
    unused = {"use_sliding_window": False, "sliding_window": 131072, "layer_types": ["full_attention"] * 28}
    assert model_constants(QWEN | unused) == model_constants(QWEN)
    assert model_constants(QWEN | {"sliding_window": 131072}) == model_constants(QWEN), "as in raw files of Qwen2"


def test_a_folder_or_a_file_is_read(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN))
    assert read_model(tmp_path) == read_model(file) == model_constants(QWEN)
    file.write_text("[]")
    with pytest.raises(UserError, match="no configuration of a model"):
        read_model(file)
    file.write_text(json.dumps(QWEN | {"num_experts": 4}))
    with pytest.raises(UserError, match="config.json"):
        read_model(tmp_path)
    for size in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
        file.write_text(json.dumps(QWEN | {size: None}))
        with pytest.raises(UserError, match="lacks a size") as error:
            read_model(tmp_path)
        assert (error.value.file, error.value.key) == (file, size)
    with pytest.raises(UserError, match="missing"):
        read_model(tmp_path / "nothing.json")
