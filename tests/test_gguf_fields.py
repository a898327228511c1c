"""What a GGUF file's metadata says of model and tokenizer, and which files are rejected for it; no file is read."""

import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from redraft.errors import UserError
from redraft.train.pretrained.gguf import check_fields, corrected
from redraft.train.pretrained.gguf_metadata import check_tensors, configuration
from tests.gguf_files import MERGES, TEMPLATE, TOKENS

FILE = Path("small.gguf")
FIELDS = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": TEMPLATE,
}


@pytest.fixture
def tokenizer():
    """As transformers 5.10 reads the file: the beginning for the end, no padding, GPT-2's splitting, spaces tidied."""
    merges = [tuple(merge.split()) for merge in MERGES]
    whole = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token=TOKENS[1], eos_token=TOKENS[1], clean_up_tokenization_spaces=True
    )


def test_special_tokens_are_those_that_the_file_names(tokenizer):
    found = corrected(tokenizer, FIELDS)
    assert (found.bos_token_id, found.eos_token_id, found.unk_token_id, found.pad_token_id) == (1, 2, 0, 2)


def test_what_the_file_does_not_name_stays(tokenizer):
    fields = {key: value for key, value in FIELDS.items() if not key.endswith("bos_token_id")}
    assert corrected(tokenizer, fields).bos_token_id == 1


@pytest.mark.parametrize(
    ("model", "split", "found"),
    [
        ("gpt2", "smollm", ["Ġ", "1", "2"]),
        ("gpt2", "gpt-2", ["Ġ1", "2"]),
        ("gpt2", "qwen2", ["Ġ1", "2"]),
        ("llama", "smollm", ["Ġ1", "2"]),
    ],
)
def test_byte_pairs_are_merged_within_what_the_file_splits(tokenizer, model, split, found):
    fields = FIELDS | {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": split}
    assert corrected(tokenizer, fields).tokenize(" 12") == found


def test_decoding_tidies_no_spaces(tokenizer):
    found = corrected(tokenizer, FIELDS)
    text = "it 's 1 . 2 , so ?"
    assert found.decode(found(text)["input_ids"]) == text


def test_a_readable_file_is_taken():
    check_fields(FIELDS, FILE)
    check_fields(FIELDS | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}, FILE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "mpt"),
        ("general.architecture", None),
        ("tokenizer.chat_template", ""),
        ("tokenizer.chat_template", None),
        ("tokenizer.ggml.pre", "llama-bpe"),
        ("tokenizer.ggml.pre", None),
    ],
)
def test_a_file_that_would_be_read_wrongly_is_rejected(key, value):
    fields = {name: content for name, content in (FIELDS | {key: value}).items() if content is not None}
    with pytest.raises(UserError) as refused:
        check_fields(fields, FILE)
    assert (refused.value.key, refused.value.file) == (key, FILE)
    assert refused.value.value == (None if key == "tokenizer.chat_template" else value)
    assert refused.value.allowed


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.model": "llama"}, True),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_bos_token": False}, False),
    ],
    ids=str,
)
def test_a_text_without_template_begins_as_the_file_says(tokenizer, fields, begins):
    tokens = corrected(tokenizer, FIELDS | fields)("hello")["input_ids"]
    assert (tokens[0] == FIELDS["tokenizer.ggml.bos_token_id"]) is begins


# The configuration.

NUMBERS = {
    "context_length": 512,
    "block_count": 2,
    "embedding_length": 48,
    "feed_forward_length": 64,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
THETA = 1e5
"""A base other than the default."""


def of(numbers, architecture="llama"):
    own = {f"{architecture}.{key}": value for key, value in numbers.items() if value is not None}
    return FIELDS | {"general.architecture": architecture} | own


def frequencies(dimensions, scale, beta_fast=32, beta_slow=1, original=None):
    """Angle per position of each pair of numbers, and the factor of keys and queries, as `ggml_rope_yarn` has them.

    Without `original` all frequencies are scaled alike.
    """

    def pair(rotations):
        return dimensions * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(THETA))

    angles, size = [], 1.0
    for i in range(0, dimensions, 2):
        extrapolated = THETA ** (-i / dimensions)
        mix = 0.0
        if original:
            low, high = max(0, math.floor(pair(beta_fast))), min(dimensions - 1, math.ceil(pair(beta_slow)))
            mix = 1 - min(1, max(0, (i / 2 - low) / max(0.001, high - low)))
            size = 1 + 0.1 * math.log(1 / scale)
        angles.append(scale * extrapolated * (1 - mix) + extrapolated * mix)
    return angles, size


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"scale": 1}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"scale": 1}),
        ({"rope.scaling.factor": 0.0}, {"scale": 1}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"scale": 1 / 4}),
        ({"rope.scaling.factor": 2.0}, {"scale": 1 / 2}),
        ({"rope.scale_linear": 2.0}, {"scale": 1 / 2}),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {"scale": 1 / 4, "original": 512}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 8.0,
                "rope.scaling.original_context_length": 64,
                "rope.scaling.yarn_beta_fast": 4.0,
                "rope.scaling.yarn_beta_slow": 2.0,
            },
            {"scale": 1 / 8, "original": 64, "beta_fast": 4, "beta_slow": 2},
        ),
    ],
    ids=str,
)
def test_rotary_embeddings_turn_as_in_llama_cpp(architecture, keys, expected):
    """Heads of 64 numbers, so that yarn's ramp has inner values."""
    width = {"attention.key_length": 64, "rope.dimension_count": 64, "rope.freq_base": THETA}
    config = configuration(of(NUMBERS | width | keys, architecture), {}, FILE)
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    angles, size = frequencies(64, **expected)
    np.testing.assert_allclose(rotary.inv_freq, angles, rtol=1e-5)
    assert rotary.attention_scaling == pytest.approx(size)


@pytest.mark.parametrize("original", [8192, 512, 64])
def test_factors_of_frequencies_are_recognised_as_llama_3_s(original):
    def factor(wavelength):  # as in convert_hf_to_gguf.py
        if wavelength < original / 4:
            return 1.0
        if wavelength > original / 1:
            return 8.0
        smooth = (original / wavelength - 1) / (4 - 1)
        return 1 / ((1 - smooth) / 8 + smooth)

    plain = [THETA ** (-i / 64) for i in range(0, 64, 2)]
    factors = np.array([factor(2 * math.pi / angle) for angle in plain], np.float32)
    assert (factors.min(), factors.max()) == (1, 8)
    config = configuration(
        of(NUMBERS | {"attention.key_length": 64, "rope.freq_base": THETA}), {"rope_freqs.weight": factors}, FILE
    )
    rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
    np.testing.assert_allclose(rotary.inv_freq, np.array(plain) / factors, rtol=1e-4)
    same = configuration(of(NUMBERS), {"rope_freqs.weight": np.ones(4, np.float32)}, FILE)
    assert same.rope_parameters["rope_type"] == "default"


def test_numbers_and_special_tokens_are_those_of_the_file():
    config = configuration(of(NUMBERS | {"vocab_size": 300, "rope.freq_base": 2e4}), {"output.weight": None}, FILE)
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (48, 2, 64)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (6, 2, 8)
    assert (config.max_position_embeddings, config.vocab_size, config.rms_norm_eps) == (512, 300, 1e-5)
    assert config.rope_parameters["rope_theta"] == 2e4
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert config.tie_word_embeddings is False
    assert configuration(of(NUMBERS), {}, FILE).tie_word_embeddings is True
    assert configuration(of(NUMBERS), {}, FILE).vocab_size == len(TOKENS)
    assert configuration(of(NUMBERS | {"attention.key_length": 16}, "qwen3"), {}, FILE).head_dim == 16


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in NUMBERS),
        ("block_count", 0),
        ("feed_forward_length", [64, 32]),
        ("attention.head_count_kv", [2, 1]),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("rope.freq_base", -1.0),
        ("rope.dimension_count", 4),
        ("attention.value_length", 4),
        ("attention.sliding_window", 256),
        ("attention.causal", False),
        ("attention.scale", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.25),
        ("residual_scale", 0.2),
        ("embedding_scale", 12.0),
        ("expert_count", 8),
        ("use_parallel_residual", True),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.factor", math.inf),
        ("rope.scaling.factor", 0.5),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("something.new", 1),
    ],
    ids=str,
)
def test_a_key_that_the_model_cannot_have_rejects_the_file(key, value):
    with pytest.raises(UserError) as refused:
        configuration(of(NUMBERS | {key: value}), {}, FILE)
    assert (refused.value.file, refused.value.key) == (FILE, f"llama.{key}")
    assert refused.value.allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 0),
        ("attention.sliding_window", 512),
        ("attention.causal", True),
        ("expert_count", 0),
        ("logit_scale", 1.0),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.finetuned", True),
        ("rope.scaling.original_context_length", 64),
        ("tensor_data_layout", "Meta AI original pth"),
    ],
)
def test_a_key_without_effect_changes_nothing(key, value):
    plain = configuration(of(NUMBERS), {}, FILE).to_dict()
    assert configuration(of(NUMBERS | {key: value}), {}, FILE).to_dict() == plain


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "phi3"),
        ("general.architecture", "starcoder2"),
        ("general.type", "adapter"),
        ("split.count", 2),
        ("adapter.lora.alpha", 16.0),
        ("diffusion.shift_logits", True),
        ("tokenizer.ggml.model", "t5"),
        ("tokenizer.ggml.add_eos_token", True),
        ("tokenizer.ggml.remove_extra_whitespaces", True),
        ("tokenizer.ggml.precompiled_charsmap", [1, 2]),
        ("tokenizer.ggml.something_new", "x"),
    ],
)
def test_a_key_of_the_file_or_the_tokenizer_that_may_change_it_rejects_the_file(key, value):
    with pytest.raises(UserError) as refused:
        check_fields(FIELDS | {key: value}, FILE)
    assert (refused.value.file, refused.value.key, refused.value.value) == (FILE, key, value)


def test_descriptions_and_unused_tokens_reject_nothing():
    described = {
        "general.name": "x",
        "general.type": "model",
        "general.sampling.temp": 0.7,
        "quantize.imatrix.file": "x",
        "somebody.version": 3,
        "split.count": 1,
        "tokenizer.chat_template.tool_use": "x",
        "tokenizer.huggingface.json": "{}",
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.fim_pre_token_id": 5,
        "tokenizer.ggml.seperator_token_id": 5,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.remove_extra_whitespaces": False,
    }
    check_fields(FIELDS | described, FILE)


def test_every_tensor_has_a_weight():
    mapped = ["token_embd.weight", "blk.0.attn_q.weight"]
    check_tensors([*mapped, "rope_freqs.weight", "blk.0.attn_rot_embd.weight"], mapped, FILE)
    with pytest.raises(UserError, match="left out") as refused:
        check_tensors([*mapped, "blk.0.attn_q.bias", "rope_factors_long.weight"], mapped, FILE)
    assert refused.value.value == "blk.0.attn_q.bias, rope_factors_long.weight"
