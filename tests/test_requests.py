"""What a preset's jobs ask of Slurm."""

import re
from pathlib import Path

import pytest

from redraft.config import Experiments, InProcessEngine, PretrainedModel, TinyModel, VerlEngine
from redraft.config.requests import DEFAULT_PARAMETERS, STORAGE_UNITS, parameters, ray_cpus, request_of
from redraft.config.site import minutes
from redraft.errors import UserError

EXPERIMENTS = Experiments(Path(__file__).parents[1])
STAGES = ("train", "evaluate", "grade")
PAPER = {
    "train": {"cpus": 64, "runtime": "4d"},
    "evaluate": {"cpus": 8, "runtime": "1d"},
    "grade": {"cpus": 1, "memory_gb": 16, "runtime": "6h"},
}
MEMORY = {
    "llama-3.2-1b-instruct": (192, 48),
    "qwen3-1.7b-base": (208, 48),
    "qwen2.5-math-1.5b": (208, 48),
    "qwen2.5-7b": (352, 80),
    "qwen2.5-math-7b": (352, 80),
    "qwen3-8b-base": (320, 80),
    "llama-3.1-8b-instruct": (384, 80),
    "qwen3-14b-base": (800, 96),
    "qwen2.5-14b": (896, 96),
    "qwen2.5-32b": (592, 160),
}
"""The tables of docs/slurm.md: what jobs of all models ask for, and memory to train and to evaluate by model, GiB."""
TINY = {"cpus": 1, "memory_gb": 3, "runtime": "1h"}


def asked(preset, stage, *models, **changes):
    whole = EXPERIMENTS.preset(preset)
    some = whole.of_models(*(models or whole.models)).model_copy(update=changes)
    return request_of(stage, some).model_dump(exclude_none=True)


@pytest.mark.parametrize("model", EXPERIMENTS.preset("paper").models)
def test_the_papers_scale_asks_for_what_the_tables_of_the_manual_say(model):
    train, evaluate = MEMORY[model]
    assert asked("paper", "train", model) == PAPER["train"] | {"memory_gb": train}
    assert asked("paper", "evaluate", model) == PAPER["evaluate"] | {"memory_gb": evaluate}
    assert asked("paper", "grade", model) == PAPER["grade"]


def test_32b_on_one_node_keeps_its_state_in_host_memory():
    policy = {"actor_rollout_ref.actor.fsdp_config.offload_policy": True}
    engine = EXPERIMENTS.preset("paper").engine_of("qwen2.5-32b").model_copy(update={"nodes": 1, "verl": policy})
    assert asked("paper", "train", "qwen2.5-32b", engine=engine)["memory_gb"] == 1472


@pytest.mark.parametrize("preset", ["tiny", "smoke"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_quarter_million_parameters_on_one_thread_ask_for_a_processor_three_gigabytes_and_an_hour(preset, stage):
    assert asked(preset, stage) == TINY


def test_a_pretrained_model_on_a_processor_asks_for_its_threads_and_for_what_it_takes():
    model = EXPERIMENTS.preset("smol").models["qwen3-1.7b-base"]
    assert parameters(model) == 135e6
    assert asked("smol", "train")["cpus"] == asked("smol", "evaluate")["cpus"] == 1
    assert 8 <= asked("smol", "train")["memory_gb"] <= 16


def test_verl_on_a_processor_asks_for_the_memory_of_its_many_processes():
    assert asked("verl-tiny", "train") == {"cpus": 2, "memory_gb": 13, "runtime": "1h"}
    assert asked("verl-tiny", "evaluate") == {"cpus": 1, "memory_gb": 7, "runtime": "1h"}
    assert asked("verl-tiny", "grade") == TINY
    for units in ("8", 0, -3, 2.5, None, True):
        wrong = EXPERIMENTS.preset("paper").engine.model_copy(update={"verl": {STORAGE_UNITS: units}})
        with pytest.raises(UserError, match=f"(?s)engine.verl.{re.escape(STORAGE_UNITS)}.*allowed: 1 or more"):
            ray_cpus(wrong)
    two_nodes = EXPERIMENTS.preset("verl-tiny").engine.model_copy(update={"nodes": 2})
    assert asked("verl-tiny", "train", engine=two_nodes)["cpus"] == 8


def test_fewer_gpus_more_nodes_or_no_offloading_ask_for_less_memory():
    engine = EXPERIMENTS.preset("paper").engine
    changed = [
        {"engine": engine.model_copy(update={"gpus": 4})},
        {"engine": engine.model_copy(update={"nodes": 2})},
        {"engine": engine.model_copy(update={"offload": False})},
        {"engine": engine.model_copy(update={"tensor_parallel": 8})},
    ]
    assert all(asked("paper", "train", "qwen3-14b-base", **change)["memory_gb"] < 800 for change in changed)
    assert asked("paper", "train", engine=engine.model_copy(update={"gpus": 4}))["cpus"] == 32


def test_threads_and_a_checkpoint_on_a_processor_count():
    engine = InProcessEngine(threads=4)
    assert asked("tiny", "train", engine=engine)["cpus"] == 4
    large = {"m": PretrainedModel(path="Qwen/Qwen2.5-0.5B")}
    whole = asked("tiny", "train", engine=engine, models=large)
    assert whole["memory_gb"] >= 0.5e9 * 32 / 2**30
    assert minutes(whole["runtime"]) > 60
    batch = asked("tiny", "train", engine=engine.model_copy(update={"max_batched_tokens": 65536}), models=large)
    assert batch["memory_gb"] > whole["memory_gb"], "the logits of a larger batch"


def test_one_gpu_under_the_local_trainer_asks_for_a_share_of_a_node():
    whole = asked("paper", "train", "qwen3-14b-base", engine=InProcessEngine(gpus=1))
    assert whole == {"cpus": 8, "memory_gb": 128, "runtime": "4d"}
    assert asked("paper", "train", "qwen3-14b-base", engine=VerlEngine(gpus=1))["memory_gb"] > whole["memory_gb"], (
        "vLLM holds weights"
    )


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("Qwen/Qwen3-1.7B-Base", 1.7e9),
        ("meta-llama/Llama-3.2-1B-Instruct", 1e9),
        ("Qwen/Qwen3-14B-Base", 14e9),
        ("/models/Qwen3-32B/", 32e9),
        ("/models/30B/my-finetune", DEFAULT_PARAMETERS),
        ("org/model-v2b1", DEFAULT_PARAMETERS),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),  # an upper bound: experts share the attention
        ("hub/models--Qwen--Qwen3-1.7B/snapshots/ea980cb0a6c2ae4b936e82123acc929f1cec041b", 1.7e9),
        ("hub/models--org--base/snapshots/0b7a1de5c3a94f31e2b8c7d6f5a4e3d2c1b0a97b", DEFAULT_PARAMETERS),
    ],
)
def test_a_checkpoint_s_size_is_in_its_name(path, size):
    assert parameters(PretrainedModel(path=path)) == size


def test_a_tiny_model_s_size_follows_from_its_widths():
    assert parameters(TinyModel(hidden_size=10, layers=3, heads=2, head_dim=4, intermediate_size=8)) == 3 * (320 + 240)
