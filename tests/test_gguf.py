"""GGUF files as models: what the configuration refuses, and what comes out of a file."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from pydantic import ValidationError

from redraft.config import Experiments, GgufModel
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.files import read_json, read_json_lines, sha256
from redraft.rollout.engine import Inversion
from redraft.tasks.prompts import encode
from redraft.train import initial_policy as make
from redraft.train import models
from redraft.train.pretrained import gguf, packages
from tests import gguf_files
from tests.checkout import copy_to

ROOT = Path(__file__).parents[1]
LOCK = ROOT / make.GGUF
HASH = "0" * 64
PACKAGED = {"package": "a-model", "version": "1.0", "file": "a_model/model.gguf"}


@pytest.mark.parametrize(
    "given",
    [{}, {"path": "m.gguf", **PACKAGED}, {"package": "a-model", "version": "1.0"}, {"path": "m.gguf", "version": "1"}],
)
def test_a_file_is_named_in_one_way(given):
    with pytest.raises(ValidationError, match="either path, or package, version and file"):
        GgufModel(sha256=HASH, **given)


@pytest.mark.parametrize(
    "change",
    [{"sha256": "abc"}, {"file": "../model.gguf"}, {"package": "a b"}, {"version": "--pre"}, {"package": "-r"}],
    ids=str,
)
def test_no_part_of_it_leads_elsewhere(change):
    assert GgufModel(sha256=HASH, **PACKAGED)
    with pytest.raises(ValidationError):
        GgufModel(**({"sha256": HASH} | PACKAGED | change))


def test_the_hash_is_part_of_a_runs_identity():
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "smol")
    assert run.identity["model"]["sha256"] == run.model.sha256


def test_a_file_that_is_not_there_or_another_is_rejected_before_anything_is_loaded(tmp_path):
    file = tmp_path / "model.gguf"
    with pytest.raises(UserError, match="no such file") as refused:
        gguf.load(GgufModel(path=str(file), sha256=HASH), LOCK)
    assert (refused.value.key, refused.value.value) == ("model.path", str(file))
    file.write_bytes(b"GGUF")
    with pytest.raises(UserError, match="differs from the configured one") as refused:
        gguf.load(GgufModel(path=str(file), sha256=HASH), LOCK)
    assert (refused.value.key, refused.value.value, refused.value.allowed) == ("model.sha256", HASH, sha256(file))


# With the package gguf, which an index is asked for.


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """The pinned gguf, importable."""
    folder = tmp_path_factory.mktemp("gguf")
    try:
        packages.install(LOCK, folder)
    except UserError as error:
        if "no package index can be reached" not in error.message:
            raise
        pytest.skip(error.message)
    sys.path.append(str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def file(reader, tmp_path):
    file = tmp_path / "small.gguf"
    gguf_files.write(file, gguf_files.random_llama())
    return file


def settings(file):
    return GgufModel(path=str(file), sha256=sha256(file))


@pytest.mark.servers
def test_weights_tokenizer_and_template_are_those_that_were_written(file, tmp_path):
    expected = gguf_files.random_llama()
    model, tokenizer = gguf.load(settings(file), LOCK)
    tokens = torch.arange(3, 60)[None]
    assert torch.allclose(model(tokens).logits, expected(tokens).logits, atol=1e-4)
    models.save(model, tokenizer, tmp_path / "model")
    again, saved = models.load(tmp_path / "model")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert (saved.bos_token, saved.eos_token, saved.pad_token, saved.unk_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert models.stop_tokens(again) == {2}
    [prompt] = encode(saved, ["hello 12 , it 's"])
    assert saved.decode(prompt) == "<|im_start|>user\nhello 12 , it 's<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.count(1) == 2
    assert prompt.count(2) == 1


ROPES = {
    "none": ({"rope_type": "default"}, {}),
    "type none": ({"rope_type": "default"}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "no type": ({"rope_type": "linear", "factor": 2.0}, {"rope.scaling.factor": 2.0}),
    "old": ({"rope_type": "linear", "factor": 2.0}, {"rope.scale_linear": 2.0}),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.finetuned": True,
        },
    ),
    "yarn, bounds": (
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 40.0,
            "beta_slow": 2.0,
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.yarn_beta_fast": 40.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {},
    ),
}
"""transformers' parameters of rotary embeddings, and the same as keys of a GGUF file."""


@pytest.mark.servers
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("architecture", gguf_files.CONFIGS)
def test_logits_are_those_of_the_model_that_was_written_for_every_architecture_and_scaling(
    reader, tmp_path, architecture, rope
):
    """At 300 positions, with and without a separate head; saved and loaded again they are equal."""
    parameters, keys = ROPES[rope]
    expected = gguf_files.random_model(
        architecture,
        rope_parameters={"rope_theta": 1e5} | parameters,
        tie_word_embeddings=rope == "none",
        sliding_window=None,
    )
    tensors = {}
    if parameters["rope_type"] == "llama3":
        plain = 1 / 1e5 ** (np.arange(0, 8, 2) / 8)
        tensors = {"rope_freqs.weight": (plain / expected.model.rotary_emb.inv_freq.numpy()).astype(np.float32)}
        keys = {"context_length": 512}
    if architecture == "qwen3":
        keys = keys | {"attention.key_length": 8, "attention.value_length": 8}
    file = tmp_path / "small.gguf"
    extra = {f"{architecture}.{key}": value for key, value in keys.items()}
    gguf_files.write(file, expected, architecture, split="qwen2", extra=extra, tensors=tensors)
    model, tokenizer = gguf.load(settings(file), LOCK)
    tokens = torch.arange(300)[None] % 250
    torch.testing.assert_close(model(tokens).logits, expected(tokens).logits, atol=1e-4, rtol=1e-4)
    models.save(model, tokenizer, tmp_path / "model")
    assert torch.equal(models.load(tmp_path / "model")[0](tokens).logits, model(tokens).logits)


@pytest.mark.servers
def test_a_response_ends_with_the_sequence_or_the_turn_or_the_message(reader, tmp_path):
    file = tmp_path / "small.gguf"
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}
    gguf_files.write(file, gguf_files.random_llama(), extra=extra)
    model, tokenizer = gguf.load(settings(file), LOCK)
    models.save(model, tokenizer, tmp_path / "model")
    assert models.ends(tmp_path / "model", tokenizer) == models.stop_tokens(model) == {2, 7, 9}


@pytest.mark.servers
def test_tokens_that_were_added_to_the_vocabulary_are_never_split(reader, tmp_path):
    types = [3 if token in gguf_files.SPECIAL else 1 for token in gguf_files.TOKENS]
    types[gguf_files.TOKENS.index("ll")] = 4
    file = tmp_path / "small.gguf"
    gguf_files.write(file, gguf_files.random_llama(), extra={"tokenizer.ggml.token_type": types})
    _, tokenizer = gguf.load(settings(file), LOCK)
    assert tokenizer.tokenize("hello") == ["he", "ll", "o"]


@pytest.mark.servers
@pytest.mark.parametrize(("split", "found"), [("smollm", ["Ġ", "1", "2"]), ("gpt-2", ["Ġ1", "2"])])
def test_text_is_split_as_the_file_says(reader, tmp_path, split, found):
    file = tmp_path / "small.gguf"
    gguf_files.write(file, gguf_files.random_llama(), split=split)
    _, tokenizer = gguf.load(settings(file), LOCK)
    assert tokenizer.tokenize(" 12") == found
    assert tokenizer.tokenize("hello") == ["hell", "o"]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"template": ""}, "tokenizer.chat_template", None),
        ({"split": "llama-bpe"}, "tokenizer.ggml.pre", "llama-bpe"),
        ({"architecture": "mpt"}, "general.architecture", "mpt"),
        ({"name": "mistral"}, "general.architecture", "mistral"),
        ({"lacks": "blk.1.ffn_up"}, "weights", "model.layers.1.mlp.up_proj.weight"),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(48, np.float32)}}, "tensors", "blk.0.attn_q.bias"),
        ({"tensors": {"rope_freqs.weight": np.arange(1, 5, dtype=np.float32)}}, "tensors", "rope_freqs.weight"),
        ({"lacks": "llama.attention.head_count_kv"}, "llama.attention.head_count_kv", None),
        ({"extra": {"tokenizer.ggml.eos_token_id": 9999}}, "tokenizer.ggml.eos_token_id", 9999),
        ({"extra": {"tokenizer.ggml.padding_token_id": 264}}, "tokenizer.ggml.padding_token_id", 264),
        ({"extra": {"tokenizer.ggml.eot_token_id": 2**32 - 1}}, "tokenizer.ggml.eot_token_id", 2**32 - 1),
        ({"extra": {"tokenizer.ggml.tokens": [*gguf_files.TOKENS, "more"]}}, "tokenizer", "more is 264"),
    ],
)
def test_a_file_that_would_be_read_wrongly_is_rejected(reader, tmp_path, change, key, value):
    file = tmp_path / "small.gguf"
    gguf_files.write(file, gguf_files.random_llama(), **change)
    with pytest.raises(UserError) as refused:
        gguf.load(settings(file), LOCK)
    assert (refused.value.key, refused.value.value, refused.value.file) == (key, value, file)


@pytest.mark.servers
def test_a_file_with_values_that_are_not_finite_is_rejected(reader, tmp_path):
    file, model = tmp_path / "small.gguf", gguf_files.random_llama()
    with torch.no_grad():
        model.model.norm.weight[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    gguf_files.write(file, model)
    with pytest.raises(UserError, match="3 of the 48 values") as refused:
        gguf.load(settings(file), LOCK)
    assert (refused.value.key, refused.value.value) == ("model.norm.weight", "1 NaN, 2 infinite")
    assert refused.value.file == file


@pytest.mark.servers
def test_a_model_that_the_engine_would_run_wrongly_is_rejected(file, monkeypatch):
    real = transformers.AutoModelForCausalLM.from_pretrained

    def capped(*arguments, **named):
        model, told = real(*arguments, **named)
        model.config.attn_logit_softcapping = 50.0
        return model, told

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", capped)
    with pytest.raises(UserError, match="cannot run this llama model") as refused:
        gguf.load(settings(file), LOCK)
    assert refused.value.key == "attn_logit_softcapping"


@pytest.mark.servers
@pytest.mark.parametrize("end", [3, 200, -5000])
def test_a_file_that_is_cut_off_is_named(file, end):
    file.write_bytes(file.read_bytes()[:end])
    with pytest.raises(UserError, match="no whole GGUF file") as refused:
        gguf.load(settings(file), LOCK)
    assert refused.value.file == file


@pytest.mark.servers
def test_memory_is_asked_for_before_weights_are_read(file, monkeypatch):
    monkeypatch.setattr(gguf, "available", lambda device: 1e5)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(UserError, match="too little memory") as refused:
        gguf.load(settings(file), LOCK)
    assert refused.value.key == "memory"


@pytest.fixture
def made(file, tmp_path, folder, monkeypatch):
    """Folder of the model that the stage makes of the preset's entry, which names the small file."""
    preset = folder / "experiments/presets/smol.yaml"
    lines = preset.read_text().splitlines()
    entry = next(i for i, line in enumerate(lines) if line.startswith("  qwen3-1.7b-base:"))
    lines[entry] = f"  qwen3-1.7b-base: {{kind: gguf, path: {file}, sha256: {sha256(file)}}}"
    preset.write_text("\n".join(lines))
    shutil.copytree(ROOT / "envs", folder / "envs")
    monkeypatch.chdir(folder)
    make.make_model("smol", "qwen3-1.7b-base", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.servers
def test_the_stage_leaves_a_model_in_bfloat16_that_the_engine_runs_as_transformers_does(made):
    """Three query heads for each key-value head, tied embeddings, the template's prompts and its stop."""
    assert models.load_config(made).dtype == torch.bfloat16
    model, tokenizer = models.load(made)
    prompts = encode(tokenizer, ["hello", "hello 12", "1", "what is it"])
    expected = [greedy(model, prompt) for prompt in prompts]
    assert any(tokens[-1] != 2 for tokens in expected)
    assert [found.tolist() for found in decoded(model, prompts)] == expected
    for prompt, tokens, scores in zip(prompts, expected, scored(model, prompts, expected), strict=True):
        distribution = model(torch.tensor([prompt + tokens])).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
        plain = distribution.gather(1, torch.tensor(tokens)[:, None])[:, 0].detach().numpy()
        np.testing.assert_allclose(scores, plain, atol=1e-4)


def greedy(model, prompt):
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=2, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def decoded(model, prompts):
    engine = TorchEngine(model, stops={2}, max_length=max(map(len, prompts)) + 20, temperature=0.0)

    async def one(prompt):
        async with engine.session(prompt) as session:
            return (await session.decode(np.zeros(0, np.int32), 20, Inversion(np.ones(20)))).tokens

    return engine.run(*map(one, prompts))


def scored(model, prompts, responses):
    engine = TorchEngine(model, stops={2}, max_length=max(map(len, prompts)) + 20)

    async def one(prompt, response):
        async with engine.session(prompt) as session:
            return (await session.score(np.array(response, np.int32))).log_probs

    return engine.run(*(one(*pair) for pair in zip(prompts, responses, strict=True)))


# Through Snakemake.


@pytest.fixture
def checkout(file, tmp_path):
    """A checkout whose preset smol trains the small model for two steps of 8 tokens, in bfloat16."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    copy_to(folder)
    preset = folder / "experiments/presets/smol.yaml"
    content = yaml.safe_load(preset.read_text())
    content["models"] = {"qwen3-1.7b-base": {"kind": "gguf", "path": str(file), "sha256": sha256(file)}}
    content["data"] = {"deepmath-6k": content["data"]["deepmath-6k"] | {"size": 8}}
    content["trainer"] |= {"epochs": 2, "max_response_tokens": 8, "evaluate_every": 1}
    content["engine"]["dtype"] = "bfloat16"
    made = content["data"]["deepmath-6k"] | {"size": 2, "split": "held-out"}
    content["benchmarks"] = {"made": {"data": made, "grading": "instructions", "max_new_tokens": 8}}
    del content["protocol"]
    preset.write_text(yaml.safe_dump(content))
    return folder


@pytest.mark.servers
def test_a_file_becomes_a_model_a_run_and_scores(checkout):
    command = ["redraft", "run", "spec_rl/grpo-spec-l0.5", "--preset", "smol", "--cores", "2"]
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    results = checkout / "results/smol"
    assert models.load_tokenizer(results / "models/qwen3-1.7b-base").chat_template == gguf_files.TEMPLATE
    run = results / "runs/spec_rl/grpo-spec-l0.5/seed0"
    first, second = read_json_lines(run / "steps.jsonl")
    assert first["tokens_reused"] == 0 < second["tokens_reused"]
    assert read_json(run / "manifest.json")["configuration"]["engine"]["dtype"] == "bfloat16"
    assert (run / "scores.json").exists()


@pytest.mark.servers
def test_another_file_in_its_place_is_rejected_by_one_message_that_has_its_hash(checkout, file):
    file.write_bytes(file.read_bytes() + b" ")
    command = ["redraft", "stage", "redraft.train.initial_policy:make_model", "smol", "qwen3-1.7b-base", "model"]
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 2
    assert "model.sha256" in result.stderr
    assert sha256(file) in result.stderr
    assert "Traceback" not in result.stderr
    assert not (checkout / "model").exists()
