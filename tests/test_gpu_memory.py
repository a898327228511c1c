"""Memory of a GPU under verl against published numbers and PyTorch, and the check before anything is submitted."""

import csv
import itertools
import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from redraft.analysis.cost.memory_text import memory_rows
from redraft.cli.app import main
from redraft.config import Experiments
from redraft.config.model import PretrainedModel
from redraft.config.trainer import VerlEngine
from redraft.errors import UserError
from redraft.ops.sizing import gpu_memory as sizing
from redraft.ops.sizing.gpu_memory import GIB, alternatives, check_fits, gpu_memory, memory_fault
from redraft.ops.sizing.learner_time import learner_seconds
from redraft.ops.sizing.shapes import SHAPES, parameters_of, shape_of
from redraft.train.verl.config import check, compose
from tests.checkout import ROOT

EXPERIMENTS = Experiments(ROOT)
PUBLISHED = {
    "Qwen/Qwen3-8B-Base": (8.2, 6.95),
    "Qwen/Qwen3-14B-Base": (14.8, 13.2),
    "Qwen/Qwen3-1.7B-Base": (1.7, 1.4),
    "Qwen/Qwen2.5-7B": (7.61, 6.53),
    "Qwen/Qwen2.5-14B": (14.7, 13.1),
    "Qwen/Qwen2.5-32B": (32.5, 31.0),
    "Qwen/Qwen2.5-Math-1.5B": (1.54, 1.31),
    "meta-llama/Llama-3.2-1B-Instruct": (1.23, None),
    "meta-llama/Llama-3.1-8B-Instruct": (8.03, None),
}
"""Model cards: billions of parameters, and without embeddings."""


def run_of(cell="spec_rl/8b-grpo-vanilla", **engine):
    run = EXPERIMENTS.run(cell, 0, "paper")
    return run.model_copy(update={"engine": run.engine.model_copy(update=engine)})


def memory(cell="spec_rl/8b-grpo-vanilla", **engine):
    run = run_of(cell, **engine)
    return gpu_memory(run, shape_of(run.model))


def test_every_model_of_the_preset_has_known_sizes():
    assert {model.path for model in EXPERIMENTS.preset("paper").models.values()} == set(SHAPES)
    assert shape_of(PretrainedModel(path="someone/else")) is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_model_cards(name):
    total, without = PUBLISHED[name]
    shape = SHAPES[name]
    assert parameters_of(shape) / 1e9 == pytest.approx(total, rel=0.02)
    if without:
        assert (shape.ffn_parameters + shape.qkvo_parameters) / 1e9 == pytest.approx(without, rel=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_that_transformers_makes(name):
    shape = SHAPES[name]
    kinds = {"Qwen/Qwen3": Qwen3Config, "Qwen/Qwen2": Qwen2Config, "meta-llam": LlamaConfig}
    config = next(kind for prefix, kind in kinds.items() if name.startswith(prefix))(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        made = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    assert parameters_of(shape) == pytest.approx(made, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("Qwen/Qwen3-8B-Base", 144),
        ("meta-llama/Llama-3.1-8B-Instruct", 128),
        ("Qwen/Qwen2.5-7B", 56),
        ("Qwen/Qwen2.5-32B", 256),
    ],
)
def test_keys_and_values_of_a_token(name, kib):
    """Llama 3.1 8B: 128 KiB in bfloat16, as widely published (16 GiB for 131,072 tokens)."""
    assert SHAPES[name].costs.kv_bytes == kib * 1024


def test_the_trained_state_is_zero_s_sixteen_bytes_a_parameter():
    """ZeRO (1910.02054), Figure 1: 7.5B parameters, 64 GPUs, K = 12: 120 GB without, and 1.9 GB with stage 3.

    There 2 + 2 bytes are weights and gradients in half precision, and 12 the float32 state; under FSDP2 the float32
    weights are the only copy, and gradients are float32: the same sum.
    """
    per_parameter = sizing.WEIGHT + sizing.GRADIENT + sizing.MOMENTS
    assert 7.5e9 * per_parameter == 120e9
    assert 7.5e9 * per_parameter / 64 == pytest.approx(1.9e9, rel=0.02)
    shape, parts = SHAPES["Qwen/Qwen2.5-32B"], memory("ar3po/32b-dapo", nodes=1).update
    assert parts["weights and moments"] + parts["gradients"] == parameters_of(shape) * 16 / 8
    assert (parts["weights and moments"] + parts["gradients"]) / 1e9 == pytest.approx(65.5, rel=0.01)


def test_gradients_that_are_not_reduced_after_each_pass_are_whole_on_each_gpu():
    whole = memory(verl={sizing.ACCUMULATION: True}).update["gradients"]
    assert whole == 8 * memory().update["gradients"] == 4 * parameters_of(SHAPES["Qwen/Qwen3-8B-Base"])


def test_activations_follow_korthikanti():
    """2 · s · b · h · L bytes with full recomputation (2205.05198, §5), beside one layer; without it every layer."""
    shape, tokens = SHAPES["Qwen/Qwen3-8B-Base"], 16384
    layer = 3 * tokens * (14 * 4096 + 4 * 12288)
    assert memory().update["activations"] == 2 * tokens * 4096 * 36 + layer
    assert memory(verl={sizing.CHECKPOINTING: False}).update["activations"] == layer * shape.layers


def test_a_fused_head_never_has_all_logits():
    assert memory().update["logits"] == 4 * 16384 * 151936
    assert memory(bitwise=True).update["logits"] == memory(verl={sizing.FUSED: True}).update["logits"] < GIB


def test_vllm_s_share_is_weights_a_pass_and_the_rest_keys_and_values():
    found, shape = memory(gpu_memory=80, gpu_memory_utilization=0.5), SHAPES["Qwen/Qwen3-8B-Base"]
    assert sum(found.vllm.values()) == pytest.approx(40 * GIB)
    assert found.vllm["weights"] == parameters_of(shape)  # two bytes, two GPUs
    assert found.cached_tokens == pytest.approx(4 * found.vllm["keys and values"] / (72 * 1024))
    assert found.rollout["vLLM's share"] == 40 * GIB


def test_ppo_has_a_critic_without_a_head():
    grpo, ppo = memory(), memory("spec_rl/8b-ppo-vanilla")
    critic = parameters_of(SHAPES["Qwen/Qwen3-8B-Base"]) - 4096 * 151936
    assert ppo.rollout["weights and moments"] - grpo.rollout["weights and moments"] == critic * 12 / 8
    offloaded = memory("spec_rl/8b-ppo-vanilla", offload=True)
    assert "weights and moments" not in offloaded.rollout


def fitting_cells():
    preset = EXPERIMENTS.preset("paper")
    cells = [
        c
        for p in EXPERIMENTS.papers
        for c in EXPERIMENTS.cells(p)
        if c.model in preset.models and c.data in preset.data
    ]
    return [cell.id for cell in cells if not EXPERIMENTS.misfit(cell.id, preset.name)]


def test_every_cell_of_the_preset_fits():
    check_fits([EXPERIMENTS.run(cell, 0, "paper") for cell in fitting_cells()])


def test_one_node_does_not_hold_32b_and_what_would_is_named():
    run = run_of("ar3po/32b-dapo", nodes=1)
    shape = shape_of(run.model)
    (fault,) = [f for f in gpu_memory(run, shape).faults if "update" in f]
    assert "of 79.6 GiB (weights and moments 45.8, gradients 15.3" in fault
    assert any(name.startswith("nodes: 2") for name in alternatives(run, shape))
    for change in ({"nodes": 2}, {"verl": {sizing.POLICIES["actor"]: True}}):
        tried = run.model_copy(update={"engine": run.engine.model_copy(update=change)})
        assert gpu_memory(tried, shape).faults == []


@pytest.mark.parametrize(
    ("cell", "engine", "words"),
    [
        ("ar3po/32b-dapo", {"nodes": 1}, ["qwen2.5-32b", "an update needs", "nodes: 2"]),
        (
            "spec_rl/8b-ppo-vanilla",
            {"gpu_memory_utilization": 0.9},
            ["the rollout needs", "gpu_memory_utilization: 0.6"],
        ),
        ("spec_rl/14b-grpo-vanilla", {"gpu_memory": 24.0}, ["an update needs", "of 24.0 GiB"]),
        ("ar3po/32b-dapo", {"tensor_parallel": 1}, ["no memory for a sequence of 5,120 tokens", "tensor_parallel: 2"]),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_submitted(cell, engine, words):
    with pytest.raises(UserError) as error:
        check([run_of(cell, **engine)])
    assert all(word in str(error.value) for word in [cell, "paper.yaml", "gpu_memory", *words]), str(error.value)
    check_fits([run_of(cell, **{**engine, "gpu_memory": None})])


def test_what_is_named_is_possible_under_verl():
    """Not passes that are shorter than the longest sequence, which verl rejects."""
    run = run_of("efficient_rollout/14b-ar", gpu_memory=60.0)
    names = alternatives(run, shape_of(run.model))
    assert names
    assert all("max_tokens_per_gpu" not in name for name in names), "8192 tokens are less than 9216"


def test_heads_are_split_evenly_and_those_of_keys_are_copied():
    """vLLM (config/model.py): heads must be divisible by the size, and each GPU has at least one head of keys."""
    run = run_of("speed_rl/7b-dapo17k-rloo", gpu_memory=80.0, tensor_parallel=4, gpu_memory_utilization=0.2)
    named = alternatives(run, shape_of(run.model))
    assert named
    assert not any("tensor_parallel: 8" in name for name in named), "28 heads"
    with pytest.raises(UserError, match="tensor_parallel 8 does not divide its 28 heads"):
        check_fits([run_of("speed_rl/7b-dapo17k-rloo", tensor_parallel=8)])
    two, four = (memory("speed_rl/numina-rloo", tensor_parallel=n) for n in (2, 4))
    tokens_of_a_replica = [m.cached_tokens / m.replicas * 28 * 2 * 2 * 128 for m in (two, four)]
    assert tokens_of_a_replica == pytest.approx([m.vllm["keys and values"] / (2 / 2) for m in (two, four)])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "parallel", "words"),
    [
        (40, 8, 5, "tensor_parallel 5 does not divide its 8 heads of keys and values"),
        (28, 4, 7, "tensor_parallel 7 is no multiple of its 4 heads of keys and values"),
        (12, 2, 3, "tensor_parallel 3 is no multiple of its 2 heads of keys and values"),
        (24, 8, 3, "tensor_parallel 3 does not divide its 8 heads of keys and values"),
        (28, 4, 8, "tensor_parallel 8 does not divide its 28 heads"),
        (64, 8, 8, None),
        (32, 8, 16, None),
        (40, 8, 4, None),
        (12, 2, 1, None),
    ],
)
def test_heads_of_keys_are_split_or_copied_evenly(monkeypatch, heads, kv_heads, parallel, words):
    """The assertions of vLLM's attention (model_executor/models/qwen2.py)."""
    run = run_of("speed_rl/7b-dapo17k-rloo", tensor_parallel=parallel, gpus=parallel)
    monkeypatch.setitem(SHAPES, run.model.path, replace(shape_of(run.model), heads=heads, kv_heads=kv_heads))
    fault = memory_fault(run)
    assert ("heads" in fault) == (words is not None)
    assert (words or "") in fault


def test_the_policy_of_the_actor_leaves_the_critic_where_it_is():
    keys = list(sizing.POLICIES.values())
    whole, actor, both = (
        memory("spec_rl/8b-ppo-vanilla", verl=dict.fromkeys(keys[:n], True)).rollout.get("weights and moments", 0)
        for n in range(3)
    )
    assert whole > actor > both == 0
    run = run_of("spec_rl/14b-ppo-vanilla", gpu_memory=40.0, offload=False)
    assert any(all(key in name for key in keys) for name in alternatives(run, shape_of(run.model)))


def test_cells_with_the_same_reason_share_a_line():
    with pytest.raises(UserError) as error:
        check_fits([run_of("ar3po/32b-dapo", nodes=1), run_of("ar3po/32b-ar3po-option1", nodes=1)])
    assert error.value.message.count("an update needs") == 1


def test_presets_without_gpus_are_not_checked():
    check_fits([EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, name) for name in ("tiny", "verl-tiny")])
    assert isinstance(EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "verl-tiny").engine, VerlEngine)


def table4(cell, column):
    """A number of SPEC-RL's Table 4, and the tokens of a step by Table 1, with 120 for each prompt."""
    values = []
    for number, name in ((4, column), (1, "tokens_m")):
        with (ROOT / f"experiments/spec_rl/reported/table{number:02d}.csv").open() as file:
            key = {"model": cell.model, "algorithm": cell.algorithm.kind, "method": "vanilla", "column": name}
            values += [float(r["value"]) for r in csv.DictReader(file) if all(r[k] == v for k, v in key.items())]
    return values[0], values[1] * 1e6 / 90 + 8192 * 120


@pytest.mark.parametrize(
    "name", ["grpo-vanilla", "8b-grpo-vanilla", "llama-grpo-vanilla", "ppo-vanilla", "8b-ppo-vanilla"]
)
def test_the_learner_s_seconds_are_those_of_table_4(name):
    """Two shares, of two models, give log-probabilities, updates and PPO's critic of all of them within a quarter."""
    cell, parts = EXPERIMENTS.cell(f"spec_rl/{name}"), ["old_log_probs_s", "update_actor_s"]
    parts += ["values_s", "update_critic_s"] if "ppo" in name else ["ref_s"]
    measured = sum(table4(cell, part)[0] for part in parts)
    run = EXPERIMENTS.run(cell.id, 0, "paper")
    assert learner_seconds(run, shape_of(run.model), table4(cell, "total_s")[1]) == pytest.approx(measured, rel=0.25)


def output(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    return end.value.code, capsys.readouterr()


def test_memory_by_model_is_printed_before_anything_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, printed = output(capsys, "cost", "--memory", "--preset", "paper", "--json")
    rows = {row["model"]: row for row in json.loads(printed.out)["rows"]}
    assert code == 0
    assert rows.keys() == set(EXPERIMENTS.preset("paper").models)
    assert all(max(row["rollout"], row["update"]) < row["available"] and not row["faults"] for row in rows.values())
    assert (rows["qwen2.5-32b"]["gpus"], rows["qwen3-8b-base"]["cell"]) == (16, "spec_rl/8b-ppo-vanilla")
    _, printed = output(capsys, "cost", "--memory", "--preset", "paper", "ar3po/32b-dapo")
    assert "qwen2.5-32b    16   4    0.6" in printed.out
    _, printed = output(capsys, "show", "ar3po/32b-dapo", "--preset", "paper")
    assert "# GiB of a GPU at the peak of an update: weights and moments 22.9, gradients 7.6" in printed.out
    code, printed = output(capsys, "cost", "--memory", "--csv", "x.csv")
    assert (code, "--csv" in printed.err) == (2, True)
    _, printed = output(capsys, "cost", "--memory", "--preset", "tiny")
    assert printed.out.startswith("no run of the preset tiny")


def documented(heading, columns):
    """Rows of a table of docs/paper-scale.md, by their first column; cells are as they are now, after an arrow."""
    lines = (ROOT / "docs/paper-scale.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    cells = ([cell.strip().rpartition("→ ")[2] for cell in row.strip("|").split("|")] for row in rows)
    return {first: dict(zip(columns, rest, strict=False)) for first, *rest in cells}


def test_the_manual_s_tables_are_what_show_prints():
    """The table by model, against verl's composed configurations and the memory of the largest cell of each model."""
    found = {row["model"]: row for row in memory_rows(EXPERIMENTS.run(cell, 0, "paper") for cell in fitting_cells())}
    told = documented("model", ["parallel", "share", "offload", "nodes", "memory"])
    assert told.keys() == found.keys()
    for model, row in told.items():
        run = EXPERIMENTS.run(found[model]["cell"], 0, "paper")
        config = compose(run, "model", ROOT / "run", ROOT / "problems.parquet", gpu=True)
        rollout, offload = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.fsdp_config.param_offload
        assert row == {
            "parallel": str(rollout.tensor_model_parallel_size),
            "share": f"{rollout.gpu_memory_utilization:g}",
            "offload": "yes" if offload else "no",
            "nodes": str(config.trainer.nnodes),
            "memory": f"{found[model]['rollout']:.1f}, {found[model]['update']:.1f}",
        }, model
    shared = documented("setting of all models", ["before", "now"])
    assert shared["`enforce_eager`"]["now"] == str(rollout.enforce_eager).lower()
    assert shared["`max_num_batched_tokens`"]["now"] == str(rollout.max_num_batched_tokens)
    precision = config.actor_rollout_ref.actor.fsdp_config.model_dtype
    assert shared["`fsdp_config.model_dtype`"]["now"] == f"{precision}, stated"
    share = EXPERIMENTS.preset("paper").engine.gpu_memory_utilization
    assert shared["vLLM's share in evaluation"]["now"] == f"{share:g}"
