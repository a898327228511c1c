"""The memory estimate of a run against the size of its tensors, and the error for too little memory."""

import math
from types import SimpleNamespace

import pytest
import torch
import transformers

from redraft.config import GRPO, PPO
from redraft.engines.torch.kv_cache import SlotCache
from redraft.errors import UserError
from redraft.train import models
from redraft.train.local import trainer as local
from redraft.train.local.learner import Learner
from redraft.train.pretrained import memory_check
from redraft.train.pretrained.precision import computing_in
from tests.test_trainer import LIMIT, make_run, train

CPU = torch.device("cpu")
LONGEST = 9


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("algorithm", [GRPO(), GRPO(kl_loss_coef=0), PPO()], ids=["GRPO", "no reference", "PPO"])
def test_what_is_told_is_what_models_and_optimizers_take(tiny_model, algorithm, dtype):
    """A critic's head has one output instead of the vocabulary, so its estimate is a little too large."""
    run = make_run(algorithm=algorithm, dtype=dtype)
    estimate = memory_check.training(run, tiny_model, LONGEST)
    policy, _ = models.load(tiny_model)
    learner = Learner(run, policy, tiny_model, CPU, pad=0)
    parts = [part for name, part in learner.parts.items() if "optimizer" not in name]
    for name in ("optimizer", "critic_optimizer"):
        for group in learner.parts.get(name, SimpleNamespace(param_groups=[])).param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
    for name, part in learner.parts.items():
        if "optimizer" in name:
            part.step()
    weights = [parameter for part in parts for parameter in part.parameters()]
    state = [
        value
        for name, part in learner.parts.items()
        if "optimizer" in name
        for entry in part.state.values()
        for key, value in entry.items()
        if key != "step"
    ]
    reference = [] if learner.reference is None else list(learner.reference.parameters())
    expected = {
        "weights": bytes_of(weights),
        "gradients": bytes_of([parameter.grad for parameter in weights]),
        "AdamW's moments": bytes_of(state),
        "reference policy": bytes_of(reference),
        "rollout copy": 0 if dtype == "auto" else bytes_of(policy.parameters()) / 2,
    }
    for name, size in expected.items():
        assert size <= estimate.get(name, 0) <= 1.15 * size + 4096, name  # the header of the file, and a critic's head


def test_the_cache_is_told_as_it_is_made(tiny_model):
    run = make_run(max_rows=5, dtype="bfloat16")
    length = LONGEST + run.trainer.max_response_tokens
    cache = SlotCache(models.load_config(tiny_model), 5, length, CPU, torch.bfloat16)
    assert memory_check.training(run, tiny_model, LONGEST)["key-value cache"] == bytes_of(cache._buffers)


def test_a_cache_has_no_more_rows_in_use_than_a_step_has_responses(tiny_model):
    run, rows = make_run(max_rows=999), make_run(max_rows=1)
    responses = run.trainer.prompts_per_step * run.trainer.group_size
    many, one = (memory_check.training(each, tiny_model, LONGEST)["key-value cache"] for each in (run, rows))
    assert many == responses * one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_activations_are_no_less_than_what_a_backward_pass_keeps(name, dtype):
    """Of a narrow SmolLM2: three query heads for each key-value head, feed-forward layers of 8/3 the width."""
    rows, length = 4, 64
    config = getattr(transformers, f"{name}Config")(
        vocab_size=99,
        hidden_size=144,
        num_hidden_layers=4,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=16,
        intermediate_size=384,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # kept alive, so that its address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), computing_in(dtype, CPU):
        model.base_model(torch.zeros(rows, length, dtype=torch.long))
    found = sum(storage.nbytes() for storage in kept.values())
    rounded = 0 if dtype == torch.float32 else 2 * sum(parameter.numel() for parameter in model.parameters())
    estimate = memory_check.KEPT_BYTES[dtype.itemsize] * memory_check._kept(config) * rows * length
    assert 0.6 * estimate <= found - rounded <= estimate


def test_an_update_or_a_checkpoint_is_told_whichever_is_larger(tiny_model):
    """AdamW's moments are in memory three times while they are written; a small micro-batch takes less."""
    name, found = "an update, or a checkpoint as it is written", {}
    for rows in (1, 1000):
        estimate = memory_check.training(make_run(rows_per_micro_batch=rows, group=500), tiny_model, LONGEST)
        found[rows] = estimate[name]
        assert estimate[name] >= 2 * estimate["AdamW's moments"]
    assert found[1] == 2 * estimate["AdamW's moments"]
    config, length = models.load_config(tiny_model), LONGEST + LIMIT
    assert found[1000] == 4 * memory_check._kept(config) * 1000 * length


def test_too_little_is_rejected_before_the_model_is_loaded(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "available", lambda device: 1000.0)
    monkeypatch.setattr(local.models, "load", None)
    with pytest.raises(UserError, match="too little memory for this model") as error:
        train(make_run(), tiny_model, tmp_path)
    assert (error.value.key, error.value.value) == ("memory", "0.0 GiB")
    assert error.value.allowed.startswith("at least ")
    assert "AdamW's moments" in error.value.allowed


def test_all_parts_count_and_enough_is_enough(tmp_path):
    memory_check.check_memory({"a": 2.0**30, "b": 2.0**31}, 3 * 2.0**30, tmp_path)
    with pytest.raises(UserError, match="too little") as error:
        memory_check.check_memory({"a": 2.0**30, "b": 2.0**31}, 3 * 2.0**30 - 1, tmp_path)
    assert error.value.allowed == "at least 3.0 GiB (a 1.0 GiB, b 2.0 GiB)"


@pytest.mark.parametrize(("text", "least"), [("max\n", math.inf), ("12345\n", 12345), (None, math.inf)])
def test_a_container_may_take_less_than_its_machine_has(tmp_path, monkeypatch, text, least):
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(memory_check, "CGROUP", file)
    monkeypatch.setattr(memory_check.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert memory_check.available(CPU) == min(10**6, least)
