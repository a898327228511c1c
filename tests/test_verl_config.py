"""A cell as a complete configuration of verl: what stands in it, what is refused, and that verl takes it."""

import math
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from pydantic import ValidationError
from verl.utils.experimental.torch_functional import FusedLinearForPPO

from redraft.cli.app import main
from redraft.config import DAPO, GRPO, PPO, RLOO, Experiments, Run, TinyModel, requests
from redraft.config.trainer import InProcessEngine, TrainerConfig, VerlEngine
from redraft.config.verl_keys import SITE_KEYS, under
from redraft.engines.vllm.engine import WORKER
from redraft.errors import UserError
from redraft.methods.weighted import WeightedReuse
from redraft.train.verl import config as verl
from redraft.train.verl import config_rules
from redraft.train.verl import settings as verl_settings
from redraft.train.verl.settings import environment, rows_per_pass, settings

ROOT = Path(__file__).parents[1]
EXPERIMENTS = Experiments(ROOT)
PRESETS = [
    name
    for name in sorted(file.stem for file in (ROOT / "experiments/presets").glob("*.yaml"))
    if EXPERIMENTS.preset(name).engine.kind == "verl"
]
PATHS = ("models/m", Path("runs/r"), Path("problems.parquet"))


def paper(cell, **engine):
    run = EXPERIMENTS.run(f"spec_rl/{cell}", 0, "paper")
    return run.model_copy(update={"engine": run.engine.model_copy(update=engine)})


def composed(run, gpu=True, **others):
    return verl.compose(run, *PATHS, gpu=gpu, **others)


def values(config, *keys):
    return [OmegaConf.select(config, key) for key in keys]


def actor(config, *keys):
    return values(config.actor_rollout_ref.actor, *keys)


def fitting(preset):
    """All cells that fit a preset and whose model and data it has."""
    has = EXPERIMENTS.preset(preset)
    cells = [cell for paper in EXPERIMENTS.papers for cell in EXPERIMENTS.cells(paper)]
    cells = [cell for cell in cells if cell.model in has.models and cell.data in has.data]
    return [cell for cell in cells if not EXPERIMENTS.misfit(cell.id, preset)]


@pytest.mark.servers
@pytest.mark.parametrize("preset", PRESETS)
def test_every_cell_of_every_preset_for_verl_is_taken_by_verl(preset):
    assert {"paper", "verl-tiny"} <= set(PRESETS)
    runs = [EXPERIMENTS.run(cell.id, 0, preset) for cell in fitting(preset)]
    refused = {run.cell for run in runs if run.unsupported}
    speculating = {run.cell for run in runs if run.decoding.kind != "plain"}
    others = {"grpo-release-l0.5", "grpo-release-verification-l0.5", "gumbel"}
    assert refused == others | speculating
    kinds = verl.check([run for run in runs if run.cell not in refused])
    assert 1 < kinds < len(runs) / 2, "what differs only in its method is checked once"


def test_weights_of_a_method_are_verl_s_rollout_correction():
    keys = ("rollout_is", "rollout_is_threshold", "bypass_mode")
    weights = {"level": "token", "bound": 1.5}
    weighted = paper("grpo-vanilla").model_copy(update={"reuse": WeightedReuse(weights=weights)})
    assert values(composed(weighted).algorithm.rollout_correction, *keys) == ["token", 1.5, False]
    assert values(composed(paper("grpo-vanilla")).algorithm.rollout_correction, *keys)[0] is None


def test_grpo_on_the_8b_model_is_the_paper_s():
    config = composed(paper("8b-grpo-vanilla"))
    data, rollout, trainer = config.data, config.actor_rollout_ref.rollout, config.trainer
    assert values(data, "train_batch_size", "max_prompt_length", "max_response_length") == [1024, 1024, 4096]
    assert actor(config, "ppo_mini_batch_size", "ppo_epochs", "loss_agg_mode") == [256, 1, "token-mean"]
    assert actor(config, "optim.lr", "optim.weight_decay", "optim.clip_grad") == [5e-7, 0.01, 1.0]
    assert actor(config, "optim.lr_scheduler_type", "optim.lr_warmup_steps") == ["constant", 0]
    assert actor(config, "use_kl_loss", "kl_loss_coef", "kl_loss_type") == [True, 1e-4, "low_var_kl"]
    assert actor(config, "clip_ratio_low", "clip_ratio_high", "clip_ratio_c") == [0.2, 0.2, 3.0]
    assert actor(config, "entropy_coeff", "use_dynamic_bsz", "strategy") == [0, True, "fsdp2"]
    assert values(rollout, "n", "temperature", "top_p", "top_k") == [8, 1.0, 1.0, -1]
    assert values(rollout, "tensor_model_parallel_size", "gpu_memory_utilization") == [2, 0.6]
    assert values(rollout, "enforce_eager", "enable_prefix_caching", "max_model_len") == [False, True, 5120]
    assert values(config.algorithm, "adv_estimator", "use_kl_in_reward", "filter_groups.enable") == [
        "grpo",
        False,
        False,
    ]
    assert values(trainer, "total_training_steps", "n_gpus_per_node", "nnodes") == [90, 8, 1]
    assert not config.critic.enable


BY_MODEL = {
    "spec_rl/grpo-vanilla": (1, 1, 0.8, False),
    "spec_rl/llama-grpo-vanilla": (1, 1, 0.8, False),
    "spec_rl/8b-ppo-vanilla": (1, 2, 0.6, False),
    "spec_rl/14b-ppo-vanilla": (1, 2, 0.8, True),
    "efficient_rollout/ar": (1, 1, 0.6, False),
    "efficient_rollout/14b-ar": (1, 1, 0.8, True),
    "ar3po/32b-dapo": (2, 4, 0.6, False),
}
"""Nodes, GPUs of a replica, vLLM's share and offloading."""


@pytest.mark.parametrize("cell", BY_MODEL)
def test_each_size_of_model_has_its_own_engine(cell):
    run = EXPERIMENTS.run(cell, 0, "paper")
    config, (nodes, parallel, share, offload) = composed(run), BY_MODEL[cell]
    rollout, fsdp = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.fsdp_config
    assert values(config.trainer, "nnodes", "n_gpus_per_node") == [nodes, 8]
    assert values(rollout, "tensor_model_parallel_size", "gpu_memory_utilization") == [parallel, share]
    assert values(fsdp, "param_offload", "optimizer_offload", "offload_policy") == [offload, offload, False]
    assert values(rollout, "enforce_eager", "max_num_batched_tokens", "max_num_seqs") == [False, 16384, 1024]
    assert fsdp.use_no_sync_for_gradient_accumulation is False, "else each GPU would hold all gradients"


def test_master_weights_are_float32_and_passes_bfloat16():
    config = composed(paper("ppo-vanilla"))
    workers = config.actor_rollout_ref
    for part in (workers.actor.fsdp_config, workers.ref.fsdp_config, config.critic.fsdp):
        found = values(
            part, "model_dtype", *(f"mixed_precision.{name}_dtype" for name in ("param", "reduce", "buffer"))
        )
        assert found == ["fp32", "bf16", "fp32", "fp32"]
    assert workers.rollout.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("variables", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "64", "SLURM_CPUS_ON_NODE": "128"}, 64),
        ({"SLURM_CPUS_ON_NODE": "48"}, 48),
        ({"SLURM_CPUS_PER_TASK": "4"}, 34),
        ({"SLURM_CPUS_ON_NODE": ""}, None),
        ({}, None),
    ],
)
def test_ray_counts_the_cpus_of_the_slurm_job_and_never_fewer_than_it_reserves(variables, cpus, monkeypatch, folder):
    monkeypatch.setattr("os.cpu_count", lambda: 34)
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert composed(paper("grpo-vanilla")).ray_kwargs.ray_init.num_cpus == cpus
    monkeypatch.setattr("os.cpu_count", lambda: 33)
    assert composed(paper("grpo-vanilla")).ray_kwargs.ray_init.num_cpus == (cpus or 34)
    assert composed(paper("grpo-vanilla", nodes=2)).ray_kwargs.ray_init.num_cpus is None, "each node counts its own"
    keys = {"ray_kwargs.ray_init.num_cpus": 16}
    assert composed(with_site_keys(folder, keys)).ray_kwargs.ray_init.num_cpus == 16


def test_what_ray_reserves_is_what_verl_declares():
    from verl.single_controller.ray.base import ResourcePoolManager

    assert ResourcePoolManager.max_colocate_count == requests.BUNDLE_CPUS
    assert OmegaConf.select(composed(paper("grpo-vanilla")), requests.STORAGE_UNITS) == requests.DEFAULT_STORAGE_UNITS
    assert OmegaConf.select(composed(paper("grpo-vanilla"), gpu=False), requests.STORAGE_UNITS) == 1, (
        "as counted without GPUs"
    )


def test_bitwise_is_verl_s_full_determinism_and_vllm_s_batch_invariance(monkeypatch):
    monkeypatch.setattr(verl_settings, "find_spec", lambda name: name)
    keys = (
        "actor_rollout_ref.rollout.full_determinism",
        "actor_rollout_ref.actor.fsdp_config.full_determinism",
        "actor_rollout_ref.ref.fsdp_config.full_determinism",
        "critic.fsdp.full_determinism",
        "actor_rollout_ref.model.use_fused_kernels",
    )
    assert values(composed(paper("ppo-vanilla", bitwise=True)), *keys) == [True] * 5
    assert values(composed(paper("ppo-vanilla")), *keys) == [False] * 5
    source = Path(find_spec("verl.trainer.main_ppo").origin).read_text()
    assert "if rollout_cfg.full_determinism" in source
    assert 'os.environ["VLLM_BATCH_INVARIANT"] = "1"' in source, "verl forwards it to vLLM's processes"


@pytest.mark.parametrize(("gpu", "flash"), [(False, True), (True, False)])
def test_bitwise_where_it_cannot_hold_is_rejected(gpu, flash, monkeypatch):
    monkeypatch.setattr(verl_settings, "find_spec", lambda name: name if flash else None)
    with pytest.raises(UserError, match=r"engine\.bitwise"):
        composed(paper("grpo-vanilla", bitwise=True), gpu=gpu)


WRONG_ENGINES = [
    ({"no-model": {"nodes": 2}}, ["no model no-model"]),
    ({"qwen3-8b-base": {"gpus": 4}}, ["separate value", "engines.qwen3-8b-base.gpus"]),
    ({"qwen3-8b-base": {"tensor_paralel": 1}}, ["separate value", "tensor_parallel"]),
    ({"qwen3-8b-base": {"nodes": 0}}, ["engines.qwen3-8b-base.nodes", "greater than or equal to 1"]),
    ({"qwen3-8b-base": {"verl": {"algorithm.lam": 1}}}, ["engines.qwen3-8b-base.verl"]),
]


@pytest.mark.parametrize(("engines", "words"), WRONG_ENGINES, ids=str)
def test_a_wrong_engine_of_a_model_is_rejected_when_the_preset_is_read(engines, words, folder):
    file = folder / "experiments/presets/paper.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"engines": engines}, sort_keys=False))
    with pytest.raises(UserError) as error:
        Experiments(folder).preset("paper")
    assert all(word in str(error.value) for word in ["paper.yaml", *words]), str(error.value)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 2.0])
def test_verl_divides_logits_by_the_run_s_temperature(temperature):
    run = paper("grpo-vanilla")
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"temperature": temperature})})
    rollout = composed(run).actor_rollout_ref.rollout
    assert (rollout.temperature, rollout.logprobs_mode) == (temperature, "raw_logprobs")


def test_the_losses_are_those_of_the_local_trainer():
    """Whatever `redraft.train.losses` gives to verl's loss must stand in verl's configuration as well."""
    from redraft.train.losses import PolicyLoss

    for algorithm in (
        GRPO(),
        PPO(),
        DAPO(),
        RLOO(),
        GRPO(clip_low=0.1, clip_high=0.3, loss_agg_mode="seq-mean-token-sum"),
    ):
        run = paper("grpo-vanilla").model_copy(update={"algorithm": algorithm})
        ours, theirs = PolicyLoss(algorithm).config, composed(run).actor_rollout_ref.actor
        for key in (
            "clip_ratio",
            "clip_ratio_low",
            "clip_ratio_high",
            "clip_ratio_c",
            "loss_agg_mode",
            "entropy_coeff",
        ):
            assert theirs[key] == getattr(ours, key), key
        assert theirs.policy_loss.loss_mode == "vanilla"
        assert theirs.use_kl_loss == bool(algorithm.kl_loss_coef)


def test_the_optimizer_is_that_of_the_local_trainer():
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config.optimizer import build_optimizer

    weights = [torch.nn.Parameter(torch.zeros(1))]
    theirs = build_optimizer(
        weights, omega_conf_to_dataclass(composed(paper("grpo-vanilla")).actor_rollout_ref.actor.optim)
    )
    assert theirs.defaults == torch.optim.AdamW(weights, lr=5e-7, weight_decay=0.01).defaults


def test_ppo_has_a_critic():
    config = composed(paper("ppo-vanilla"))
    critic = config.critic
    assert values(critic, "enable", "cliprange_value", "ppo_mini_batch_size", "strategy") == [True, 0.5, 256, "fsdp2"]
    assert critic.optim.lr == pytest.approx(1e-5)
    assert values(critic.optim, "weight_decay", "clip_grad") == [0.01, 1.0]
    assert values(config.algorithm, "adv_estimator", "gamma", "lam") == ["gae", 1.0, 1.0]
    assert values(critic, "model.path", "ppo_infer_max_token_len_per_gpu") == ["models/m", 16384]
    assert not config.actor_rollout_ref.actor.use_kl_loss


def test_dapo_leaves_the_filter_to_the_schedule_and_rloo_has_its_estimator():
    config = composed(paper("dapo-vanilla"))
    assert values(config.algorithm, "adv_estimator", "filter_groups.enable") == ["grpo", False]
    assert actor(config, "clip_ratio_low", "clip_ratio_high", "clip_ratio_c") == [0.2, 0.28, 10.0]
    config = composed(paper("rloo-vanilla"))
    assert values(config.algorithm, "adv_estimator", "filter_groups.enable") == ["rloo", False]


def test_the_seed_is_the_run_s_everywhere():
    run = EXPERIMENTS.run("spec_rl/ppo-vanilla", 7, "paper")
    config = composed(run)
    assert (
        values(config, "data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.actor.data_loader_seed")
        == [7] * 3
    )
    assert config.critic.data_loader_seed == 7


@pytest.mark.parametrize(
    ("reuse", "most"),
    [
        ({"kind": "residual", "top": 32}, 32),
        ({"kind": "residual", "top": 20}, None),
        ({"kind": "one_hot"}, None),
    ],
)
def test_vllm_may_be_asked_for_as_much_of_a_distribution_as_is_stored(reuse, most):
    run = paper("grpo-vanilla")
    config = composed(Run.model_validate(run.model_dump() | {"reuse": reuse}))
    assert OmegaConf.select(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs") == most
    assert config.actor_rollout_ref.rollout.logprobs_mode == "raw_logprobs", "of a token that was drawn by a bias, too"


@pytest.mark.parametrize("gpu", [True, False])
def test_drafts_are_scored_by_our_worker_of_vllm(gpu):
    config = composed(EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "paper" if gpu else "verl-tiny"), gpu=gpu)
    assert OmegaConf.select(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_cls") == WORKER
    assert environment(gpu)["VLLM_USE_V2_MODEL_RUNNER"] == "0", "the worker's model runner is the first"
    assert find_spec(WORKER.rpartition(".")[0])


def test_on_a_processor_all_is_exact_and_of_no_gpu():
    config = composed(EXPERIMENTS.run("spec_rl/ppo-vanilla", 0, "verl-tiny"), gpu=False)
    workers = config.actor_rollout_ref
    for part in (workers.actor.fsdp_config, workers.ref.fsdp_config, config.critic.fsdp):
        assert values(part, "model_dtype", "mixed_precision.param_dtype", "use_torch_compile") == [
            "fp32",
            "fp32",
            False,
        ]
    assert values(workers.rollout, "dtype", "enable_sleep_mode", "engine_kwargs.vllm.block_size") == [
        "float32",
        False,
        32,
    ]
    assert values(workers.model, "use_remove_padding", "override_config.attn_implementation") == [False, "sdpa"]
    assert values(config.trainer, "device", "n_gpus_per_node") == ["cpu", 1]
    assert config.ray_kwargs.ray_init.num_gpus == 1
    assert verl.environment(gpu=False)["VERL_PLATFORM"] == "cpu"
    assert verl.environment(gpu=False)["VERL_USE_EXTERNAL_MODULES"].startswith("redraft.verl_cpu.platform,")


@pytest.mark.parametrize("flash", [True, False])
def test_attention_on_gpus_is_what_is_installed(flash, monkeypatch):
    monkeypatch.setattr(verl_settings, "find_spec", lambda name: name if flash and name == "flash_attn" else None)
    config = composed(EXPERIMENTS.run("spec_rl/ppo-vanilla", 0, "paper"), gpu=True)
    attention = "flash_attention_2" if flash else "sdpa"
    for model in (config.actor_rollout_ref.model, config.critic.model):
        assert model.override_config.attn_implementation == attention
    assert config.actor_rollout_ref.model.use_fused_kernels is not flash
    assert flash or config.actor_rollout_ref.model.fused_kernel_options.impl_backend == "torch"
    fused = config.actor_rollout_ref.model.use_fused_kernels
    modules = environment(gpu=True, fused=fused)["VERL_USE_EXTERNAL_MODULES"].split(",")
    needed = ["job_names", *([] if flash else ["critic", "fused_head"])]
    assert modules == [f"redraft.train.verl.{name}" for name in needed]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_head_has_the_log_probs_and_gradients_of_the_plain_one(dtype):
    torch.manual_seed(0)
    states, weights = torch.randn(1000, 64).to(dtype).requires_grad_(), torch.randn(333, 64).to(dtype).requires_grad_()
    tokens = torch.randint(333, (1000,))
    log_probs, entropy = FusedLinearForPPO(impl_backend="torch")(states, weights, tokens, temperature=0.7)
    plain = ((states @ weights.t()) / 0.7).float().log_softmax(-1)
    expected = plain.gather(1, tokens[:, None])[:, 0]
    assert log_probs.dtype == torch.float32
    assert (log_probs - expected).abs().max() < 1e-5
    assert (entropy.float() + (plain.exp() * plain).sum(-1)).abs().max() < (1e-4 if dtype == torch.float32 else 0.02)
    found = torch.autograd.grad(log_probs.sum(), (states, weights))
    wanted = torch.autograd.grad(expected.sum(), (states, weights))
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    for one, other in zip(found, wanted, strict=True):
        assert (one.float() - other.float()).abs().max() < tolerance * other.abs().max()


def test_a_critic_loads_without_flash_attention(tiny_model):
    code = (
        "import sys, verl, torch, verl.utils.model as m; from transformers import AutoConfig;"
        "c = AutoConfig.from_pretrained(sys.argv[1]); c.num_labels = 1;"
        "print(m.load_valuehead_model(sys.argv[1], torch.float32, c, False).config._attn_implementation)"
    )
    module = {"VERL_USE_EXTERNAL_MODULES": "redraft.train.verl.critic"}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model)],
        env=os.environ | module,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split()[-1:] == ["sdpa"], result.stderr


def test_a_workflows_number_of_threads_does_not_change_how_a_processor_adds(monkeypatch):
    """Snakemake sets these for its jobs; a matrix product of MKL's has other last bits under another number."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(variable, "2")
    variables = os.environ | verl.environment(gpu=False)
    code = "import torch; print(torch.get_num_threads(), torch.__config__.parallel_info())"
    result = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("1 ")
    assert "mkl_get_max_threads() : 1" in result.stdout


@pytest.mark.parametrize(("allowed", "rows"), [(256, 16), (16, 16), (15, 8), (3, 2), (1, 1)])
def test_a_micro_batch_on_a_processor_divides_the_mini_batch(allowed, rows):
    run = EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "verl-tiny")
    engine = run.engine.model_copy(update={"rows_per_micro_batch": allowed})
    assert rows_per_pass(run.model_copy(update={"engine": engine})) == rows


def test_checkpoints_are_the_campaign_s_and_what_it_needs_is_in_the_configuration():
    config = composed(paper("grpo-vanilla"), inputs={"problems": "x"}, commits=["c"])
    assert values(config.trainer, "resume_mode", "max_actor_ckpt_to_keep") == ["disable", None]
    assert OmegaConf.to_container(config.redraft.inputs) == {"problems": "x"}
    assert list(config.redraft.commits) == ["c"]


@pytest.mark.parametrize("cell", ["8b-ppo-spec-l0.3", "grpo-spec-linf", "grpo-release-uniforms-l0.5"])
def test_the_yaml_is_complete_and_the_run_can_be_rebuilt_from_it(cell):
    run = paper(cell)
    text = verl.show(run, Path("models/m"), Path("runs/r"))
    loaded = OmegaConf.create(text)
    assert OmegaConf.to_container(loaded, resolve=True, throw_on_missing=True) == yaml.safe_load(text)
    assert OmegaConf.to_yaml(loaded) == text
    assert "${" not in text
    assert Run.model_validate(yaml.safe_load(text)["redraft"]["run"]) == run
    if cell == "grpo-spec-linf":
        assert math.isinf(run.reuse.lenience)


@pytest.mark.parametrize("preset", ["tiny", "smol"])
def test_a_run_of_the_in_process_engine_is_shown_as_verl_would_get_it(preset):
    run = EXPERIMENTS.run("spec_rl/grpo-spec-l0.5", 0, preset)
    shown = yaml.safe_load(verl.show(run, Path("models/m"), Path("runs/r")))
    assert shown["redraft"]["run"]["engine"]["kind"] == "verl"
    assert shown["actor_rollout_ref"]["rollout"]["n"] == run.trainer.group_size


def leaves(config):
    """All dotted keys of a configuration."""
    stack = [("", OmegaConf.to_container(config, resolve=True))]
    while stack:
        above, node = stack.pop()
        for key, value in node.items():
            if isinstance(value, dict):
                stack.append((f"{above}{key}.", value))
            else:
                yield above + key


def test_no_key_that_says_what_is_learned_is_a_site_s():
    """A site may set nothing that the tables set, and each of its keys is one of verl's."""
    run = paper("ppo-vanilla")
    fixed = config_rules.dotted(settings(run, PATHS[0], PATHS[2]))
    assert [key for key in fixed if any(under(key, site) for site in SITE_KEYS)] == []
    known = [
        *leaves(composed(run)),
        *leaves(composed(EXPERIMENTS.run("spec_rl/ppo-vanilla", 0, "verl-tiny"), gpu=False)),
    ]
    nested = {key.rpartition(".")[0] for key in known}
    unknown = [s for s in SITE_KEYS if not any(under(k, s) for k in known) and s not in nested]
    vllm = "actor_rollout_ref.rollout.engine_kwargs.vllm."
    assert [key for key in unknown if not key.startswith(vllm)] == []


def with_site_keys(folder, keys):
    file = folder / "experiments/presets/paper.yaml"
    content = yaml.safe_load(file.read_text())
    content["engine"]["verl"] = keys
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return Experiments(folder).run("spec_rl/grpo-vanilla", 0, "paper")


NOT_A_SITE_S = {
    "actor_rollout_ref.rollout.temperature": ["trainer.temperature"],
    "actor_rollout_ref.rollout.top_p": ["without top-p"],
    "actor_rollout_ref.rollout.n": ["trainer.group_size"],
    "actor_rollout_ref.rollout.seed": ["the run's seed"],
    "actor_rollout_ref.actor.optim.lr": ["trainer.learning_rate"],
    "actor_rollout_ref.actor.kl_loss_coef": ["algorithm"],
    "actor_rollout_ref.rollout.repetition_penalty": ["below"],
    "data.train_batch_size": ["trainer.prompts_per_step"],
    "algorithm.adv_estimator": ["algorithm"],
    "trainer.total_training_steps": ["the preset's trainer"],
    "skip.rollout.enable": ["below"],
    "no.such.key": ["below", "transfer_queue"],
}


@pytest.mark.parametrize("key", NOT_A_SITE_S)
def test_what_the_cell_fixes_is_rejected_when_the_preset_is_read(folder, key):
    with pytest.raises(UserError) as error:
        with_site_keys(folder, {"ray_kwargs.ray_init.num_cpus": 4, key: 1})
    assert all(word in str(error.value) for word in ["paper.yaml", "engine.verl", key, *NOT_A_SITE_S[key]]), error.value


WRONG_SITE_KEYS = [
    ({"actor_rollout_ref.actor.fsdp_config.param_ofload": True}, ["no such key", "param_offload"]),
    ({"transfer_queue.backend.Nowhere.size": 1}, ["no such key", "transfer_queue.backend.Nowhere.size"]),
    ({"actor_rollout_ref.rollout.dtype": 16}, ["another type", "dtype", "16", "str"]),
    ({"actor_rollout_ref.actor.fsdp_config.fsdp_size": "eight"}, ["another type", "eight", "int"]),
    ({"actor_rollout_ref.model.use_liger": "sometimes"}, ["another type", "sometimes", "bool"]),
    ({"actor_rollout_ref.actor.fsdp_config.strategy": "zero"}, ["verl rejects", "zero", "fsdp_config.strategy: zero"]),
]


@pytest.mark.parametrize(("keys", "words"), WRONG_SITE_KEYS, ids=str)
def test_what_verl_does_not_know_or_take_is_rejected_with_its_file_and_key(folder, keys, words):
    with pytest.raises(UserError) as error:
        composed(with_site_keys(folder, keys))
    assert all(word in str(error.value) for word in ["paper.yaml", *words]), str(error.value)


def test_a_site_s_keys_have_the_last_word(folder):
    keys = {
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes": 2,
        "ray_kwargs.ray_init.num_cpus": 16,
    }
    config = composed(with_site_keys(folder, keys))
    assert values(config, *keys) == ["sdpa", 2, 16]
    assert config.ray_kwargs.ray_init.include_dashboard is False


@pytest.mark.parametrize("gpu", [True, False])
def test_a_run_over_several_nodes_joins_the_ray_that_is_there(gpu):
    run = paper("grpo-vanilla")
    run = run.model_copy(update={"engine": run.engine.model_copy(update={"nodes": 2})})
    config = composed(run, gpu=gpu)
    assert values(config.trainer, "nnodes", "n_gpus_per_node") == [2, 8 if gpu else 1]
    assert values(config.ray_kwargs.ray_init, "address", "include_dashboard", "num_cpus") == ["auto", False, None]
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size % 2 == 0


def test_only_verl_takes_several_nodes():
    with pytest.raises(ValidationError, match="nodes\n  Extra inputs are not permitted"):
        InProcessEngine(nodes=2)
    assert VerlEngine(nodes=2).nodes == 2


REFUSED = [
    ("grpo-release-l0.5", {}, {}, ["reuse", "release", "verified by the training engine", "engine.kind: torch"]),
    ("grpo-release-verification-l0.5", {}, {}, ["reuse", "verified by the training engine"]),
    ("grpo-vanilla", {"gpus": 0, "tensor_parallel": 1}, {}, ["engine.gpus", "at least 1"]),
    ("grpo-vanilla", {"tensor_parallel": 3}, {}, ["engine.tensor_parallel", "divisors of 8"]),
    ("grpo-vanilla", {"gpus": 7, "tensor_parallel": 1}, {}, ["engine.gpus", "divisors of 2048"]),
    ("grpo-vanilla", {}, {"temperature": 2.1}, ["trainer.temperature", "2.1", "0.01 to 2.0"]),
    ("grpo-vanilla", {}, {"temperature": 0.001}, ["trainer.temperature", "0.001", "0.01 to 2.0"]),
    ("grpo-vanilla", {"max_tokens_per_gpu": 4096}, {}, ["engine.max_tokens_per_gpu", "at least 5120"]),
    (
        "grpo-vanilla",
        {},
        {"prompts_per_step": 1000, "prompts_per_update": 250},
        ["prompts_per_step", "divisors of 6144"],
    ),
]


@pytest.mark.parametrize(("cell", "engine", "trainer", "words"), REFUSED)
def test_what_verl_cannot_do_here_is_rejected(cell, engine, trainer, words):
    run = paper(cell, **engine)
    run = run.model_copy(update={"trainer": TrainerConfig(**{**run.trainer.model_dump(), **trainer})})
    with pytest.raises(UserError) as error:
        composed(run)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_decoding_that_verl_cannot_do_is_rejected():
    with pytest.raises(UserError, match=r"speculation(.|\n)*key: +decoding\n(.|\n)*self_speculation"):
        composed(EXPERIMENTS.run("efficient_rollout/self-sd", 0, "paper"))


def test_the_configuration_is_shown_without_a_gpu_or_a_network(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        main(["show", "--backend", "verl", "--preset", "paper", "spec_rl/8b-grpo-spec-l0.5"])
    assert end.value.code == 0
    content = yaml.safe_load(capsys.readouterr().out)
    assert content["actor_rollout_ref"]["rollout"]["n"] == 8
    assert content["redraft"]["run"]["model"]["path"] == "Qwen/Qwen3-8B-Base"


@pytest.mark.servers
def test_the_workflow_has_verl_check_all_cells_before_any_job(tmp_path):
    for name in ("Snakefile", "config", "workflows", "profiles", "experiments", "envs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)

    def dry_run(*targets):
        command = ["snakemake", "-n", *targets, "--quiet", "rules", "--config", "preset=verl-tiny"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    code, text = dry_run("extras")
    counts = dict(re.findall(r"^(\w+) +(\d+)$", text, flags=re.M))
    assert code == 0, text
    assert "left out: spec_rl/grpo-release-l0.5" in text
    assert (counts["prepare_data"], counts["make_model"]) == ("1", "1")
    file = tmp_path / "experiments/presets/verl-tiny.yaml"
    file.write_text(file.read_text().replace("engine: {", "engine: {tensor_parallel: 2, "))
    code, text = dry_run()
    assert code == 2, text
    assert "error: spec_rl/grpo-vanilla: " in text
    assert "engine.tensor_parallel" in text


def test_the_tiny_preset_of_verl_is_tiny():
    preset = EXPERIMENTS.preset("verl-tiny")
    assert all(isinstance(model, TinyModel) and model.head_dim == 32 for model in preset.models.values())
    assert EXPERIMENTS.run("spec_rl/grpo-vanilla", 0, "verl-tiny").steps == 6
