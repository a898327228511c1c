"""A run as verl's keys: one table for each part of verl's configuration, as nested dictionaries.

Keys that are not set here keep verl's default. `settings` is independent of the hardware; `on_gpus` or `on_cpu` adds it
(a CPU is treated as one GPU) and is independent of the method. The source of each value is next to its field in
`redraft.config` and in the presets.
"""

import math
import os
import secrets
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.config.requests import ray_cpus
from redraft.config.trainer import VerlEngine
from redraft.engines.vllm.engine import WORKER
from redraft.files import socket_folder
from redraft.train.losses import divides_by_std, estimator

Table = dict[str, Any]

VLLM_MAX_LOGPROBS = 20
"""vLLM's own `max_logprobs`."""
EXTERNAL = "VERL_USE_EXTERNAL_MODULES"
"""Variable with the modules that verl imports first in each of its processes, separated by commas."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Thread counts of the numerical libraries of PyTorch, vLLM and NumPy; the last two override the first."""


def engine_of(run: Run) -> VerlEngine:
    """The engine settings of a run under verl."""
    assert isinstance(run.engine, VerlEngine)
    return run.engine


def settings(run: Run, model: str | Path, problems: Path) -> Table:
    """All settings of a run that do not depend on the hardware; arguments as of `redraft.train.verl.config.compose`."""
    return {
        "data": data(run, problems),
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "actor": actor(run),
            "ref": {"strategy": "fsdp2"},
            "rollout": rollout(run),
        },
        "critic": critic(run, model),
        "algorithm": algorithm(run),
        "reward": {"num_workers": 1, "reward_model": {"enable": False, "rollout": {"name": "vllm"}}},
        "trainer": trainer(run),
    }


def data(run: Run, problems: Path) -> Table:
    """The training data. verl requires a loader, but the run's schedule chooses the prompts."""
    settings = run.trainer
    return {
        # verl requires validation data although validation is off.
        "train_files": [str(problems)],
        "val_files": [str(problems)],
        "prompt_key": "prompt",
        "train_batch_size": settings.batch_prompts,
        "max_prompt_length": settings.max_prompt_tokens,
        "max_response_length": settings.max_response_tokens,
        # Leaving out a prompt would shift the indices of all later prompts against their drafts.
        "filter_overlong_prompts": False,
        "truncation": "error",
        "return_raw_chat": True,
        "shuffle": True,
        "seed": run.seed,
        "dataloader_num_workers": 0,
    }


def actor(run: Run) -> Table:
    """Update of the policy: the losses of `redraft.train.losses` as verl's keys."""
    algorithm = run.algorithm
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": run.trainer.most_prompts_per_update,
        "ppo_epochs": 1,
        # Rows are trained on in the order of the batch, as in the local trainer.
        "shuffle": False,
        "data_loader_seed": run.seed,
        "clip_ratio": algorithm.clip_low,
        "clip_ratio_low": algorithm.clip_low,
        "clip_ratio_high": algorithm.clip_high,
        "clip_ratio_c": algorithm.clip_ratio_c,
        "loss_agg_mode": algorithm.loss_agg_mode,
        "use_kl_loss": algorithm.kl_loss_coef > 0,
        "kl_loss_coef": algorithm.kl_loss_coef,
        "kl_loss_type": algorithm.kl_loss_type,
        "entropy_coeff": 0,  # 0.001 in SPEC-RL's scripts, absent from its paper
        "grad_clip": run.trainer.gradient_clip,
        "optim": _optimizer(run, run.trainer.learning_rate),
        "checkpoint": {
            "save_contents": ["model", "optimizer", "extra", "hf_model"],
            "load_contents": ["model", "optimizer", "extra"],
        },
    }


def _optimizer(run: Run, learning_rate: float) -> Table:
    """AdamW with PyTorch's defaults and a constant rate after warm-up, as in `train.local.learner`."""
    return {
        "optimizer": "AdamW",
        "lr": learning_rate,
        "lr_scheduler_type": "constant",
        "lr_warmup_steps": run.trainer.warmup_steps,
        "lr_warmup_steps_ratio": 0.0,
        "weight_decay": run.trainer.weight_decay,
        "betas": [0.9, 0.999],
        "clip_grad": run.trainer.gradient_clip,
    }


def critic(run: Run, model: str | Path) -> Table:
    """The critic of PPO, initialised with the policy's weights; disabled for other algorithms."""
    if not isinstance(run.algorithm, PPO):
        return {"enable": False, "strategy": "fsdp2", "model": {"path": str(model)}}
    return {
        "enable": True,
        "strategy": "fsdp2",
        "model": {"path": str(model)},
        "grad_clip": run.trainer.gradient_clip,
        "optim": _optimizer(run, run.trainer.learning_rate * run.algorithm.critic_learning_rate_ratio),
        "cliprange_value": run.algorithm.value_clip,
        "ppo_mini_batch_size": run.trainer.most_prompts_per_update,
        "ppo_epochs": 1,
        "shuffle": False,
        "data_loader_seed": run.seed,
        # The V1 trainer always batches a critic by tokens.
        "use_dynamic_bsz": True,
    }


def rollout(run: Run) -> Table:
    """Sampling from the full distribution; verl applies the temperature to all log-probabilities too."""
    settings, top = run.trainer, run.reuse.retention.top
    return {
        "name": "vllm",
        "mode": "async",
        "n": settings.group_size,
        "seed": run.seed,
        "temperature": settings.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "do_sample": True,
        "ignore_eos": False,
        # Log-probabilities under the policy, also for a token sampled from a residual; `WORKER` applies the
        # temperature.
        "calculate_log_probs": True,
        "logprobs_mode": "raw_logprobs",
        "prompt_length": settings.max_prompt_tokens,
        "response_length": settings.max_response_tokens,
        "max_model_len": run.longest_sequence,
        "max_num_seqs": run.engine.max_rows,
        "max_num_batched_tokens": run.engine.max_batched_tokens,
        "tensor_model_parallel_size": engine_of(run).tensor_parallel,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        # The method's top-k log-probabilities per position, if k exceeds vLLM's default.
        "engine_kwargs": {"vllm": {"worker_cls": WORKER} | ({"max_logprobs": top} if top > VLLM_MAX_LOGPROBS else {})},
        "agent": {"agent_loop_manager_class": "redraft.train.verl.manager.RolloutManager"},
    }


def algorithm(run: Run) -> Table:
    """Estimator of advantages. verl's filter of groups is off, since the schedule filters."""
    ours, weights = run.algorithm, run.reuse.importance
    return {
        "adv_estimator": estimator(ours),
        "gamma": ours.gamma if isinstance(ours, PPO) else 1.0,
        "lam": ours.lam if isinstance(ours, PPO) else 1.0,
        "norm_adv_by_std_in_grpo": divides_by_std(ours),
        "use_kl_in_reward": False,
        "filter_groups": {"enable": False},
        # Importance weights from `rollout_log_probs` to old log-probabilities.
        "rollout_correction": ({"rollout_is": weights.level, "rollout_is_threshold": weights.bound} if weights else {}),
    }


def trainer(run: Run) -> Table:
    """Names and length. The training loop controls steps, records and checkpoints (`redraft.train.loop`)."""
    return {
        "project_name": "redraft",
        "experiment_name": f"{run.paper}/{run.cell}/seed{run.seed}",
        "logger": [],
        "total_training_steps": run.steps,
        "total_epochs": math.ceil(run.trainer.epochs),
        "critic_warmup": 0,
        "save_freq": 1,
        "test_freq": -1,
        "val_before_train": False,
        # `redraft.train.checkpoint` decides which checkpoints are kept and resumed from.
        "max_actor_ckpt_to_keep": None,
        "max_critic_ckpt_to_keep": None,
        "resume_mode": "disable",
        "use_v1": True,
        "v1": {"trainer_mode": "redraft"},
    }


def has_flash_attention() -> bool:
    """True if flash-attn is installed; it is optional, since no package index has wheels of it."""
    return find_spec("flash_attn") is not None


PRECISION = {
    "model_dtype": "fp32",
    "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
}
"""FSDP2 on GPUs: float32 weights, moments and sums of gradients, and passes in bfloat16. These are verl's defaults,
stated since results depend on them."""


def on_gpus(run: Run) -> Table:
    """GPUs: compute in bfloat16, update float32 weights."""
    engine, flash = engine_of(run), has_flash_attention()
    offload = PRECISION | {"param_offload": engine.offload, "optimizer_offload": engine.offload}
    exact = {"full_determinism": True, "seed": run.seed} if engine.bitwise else {}
    model = {
        "use_remove_padding": True,
        "enable_gradient_checkpointing": True,
        # With sdpa, transformers keeps the sequences of a pass apart by their positions.
        "override_config": {"attn_implementation": "flash_attention_2" if flash else "sdpa"},
    }
    # Without flash-attn, and with full_determinism, verl computes log-probabilities in bfloat16 in a Python loop. Its
    # fused head computes them in chunks of 512 tokens, in float32.
    head = (
        {}
        if flash and not engine.bitwise
        else {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}
    )
    return {
        "actor_rollout_ref": {
            "model": model | head,
            "actor": {
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": engine.max_tokens_per_gpu,
                "fsdp_config": offload | exact,
            },
            "ref": {"fsdp_config": PRECISION | {"param_offload": engine.offload} | exact},
            "rollout": {
                "full_determinism": engine.bitwise,  # sets VLLM_BATCH_INVARIANT for vLLM's processes
                "dtype": "bfloat16",
                # vLLM gets the trainer's weights before its first request, so it need not read the files.
                "load_format": "dummy",
                "gpu_memory_utilization": engine.gpu_memory_utilization,
                "enforce_eager": engine.eager,
                "free_cache_engine": True,
                "enable_sleep_mode": True,
                "agent": {"num_workers": 8},
            },
        },
        "critic": _critic(run, engine.max_tokens_per_gpu, {"model": model, "fsdp": offload | exact}),
        "trainer": {"device": "cuda", "n_gpus_per_node": engine.gpus, "nnodes": engine.nodes},
        "ray_kwargs": {"ray_init": _ray(run, **({"num_cpus": cpus} if (cpus := counted_cpus(engine)) else {}))},
    }


def on_cpu(run: Run) -> Table:
    """A CPU in float32, with the settings by which verl and vLLM treat it as one GPU (docs/verl.md)."""
    rows = rows_per_pass(run)
    tokens = rows * (run.trainer.max_prompt_tokens + run.trainer.max_response_tokens)
    exact = {
        "model_dtype": "fp32",
        "use_torch_compile": False,
        "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }
    model = {
        "use_remove_padding": False,
        "enable_gradient_checkpointing": False,
        "override_config": {"attn_implementation": "sdpa"},
    }
    return {
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "use_dynamic_bsz": False,
                "ppo_micro_batch_size_per_gpu": rows,
                "use_torch_compile": False,
                "fsdp_config": exact,
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": rows, "fsdp_config": exact},
            "rollout": {
                "dtype": "float32",
                "load_format": "dummy",
                "log_prob_micro_batch_size_per_gpu": rows,
                "enforce_eager": True,
                "free_cache_engine": False,
                "enable_sleep_mode": False,
                "enable_chunked_prefill": False,  # vLLM on a CPU cannot cut the prefill of a request with a seed
                "agent": {"num_workers": 1},
                # With vLLM's default of 128 tokens per block, short responses would have no cached prefix.
                "engine_kwargs": {
                    "vllm": {
                        "block_size": 32,
                        "worker_extension_cls": "redraft.verl_cpu.weights.CpuWorkerExtension",
                    }
                },
            },
        },
        "critic": _critic(run, tokens, {"model": model, "fsdp": exact}),
        # More CPUs than the machine has: each Ray actor reserves one, and most of them only wait.
        "ray_kwargs": {"ray_init": _ray(run, num_cpus=32, num_gpus=1)},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "trainer": {"device": "cpu", "n_gpus_per_node": 1, "nnodes": run.engine.nodes},
    }


def counted_cpus(engine: VerlEngine) -> int | None:
    """CPUs that Ray counts on a single node; None if it may count them itself.

    They are at least those that its actors reserve. Most actors only wait, and with fewer Ray would wait forever.
    """
    allocated, reserved = allocated_cpus(), ray_cpus(engine)
    enough = (os.cpu_count() or 1) >= reserved
    return max(allocated or 0, reserved) if allocated or not enough else None


def allocated_cpus() -> int | None:
    """CPUs of this Slurm job on its node; None outside of one. Ray would count all of the node's."""
    found = (os.environ.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"))
    return next((int(text) for text in found if text.isdecimal() and int(text)), None)


def _ray(run: Run, **resources: int) -> Table:
    """A new local Ray with these resources on one node; on several nodes the running one, which knows its own."""
    return {"include_dashboard": False} | (
        {"address": "local"} | resources if run.engine.nodes == 1 else {"address": "auto"}
    )


def _critic(run: Run, tokens: int, settings: Table) -> Table:
    """Hardware settings of the critic; empty without PPO."""
    if not isinstance(run.algorithm, PPO):
        return {}
    return {**settings, "ppo_max_token_len_per_gpu": tokens, "ppo_infer_max_token_len_per_gpu": tokens}


def rows_per_pass(run: Run) -> int:
    """Sequences per pass on a CPU: the largest allowed divisor of a node's share of a mini-batch."""
    rows = run.trainer.most_prompts_per_update * run.trainer.group_size // run.engine.nodes
    return max(n for n in range(1, min(run.engine.rows_per_micro_batch, rows) + 1) if rows % n == 0)


SOCKETS = {"RAY_TMPDIR": 41, "VLLM_RPC_BASE_PATH": 70}
"""Variables with a folder in which a library makes sockets, and the most bytes that its name may have."""


def socket_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Folders for sockets of Ray and vLLM where that of temporary files is too long; set variables keep their value."""
    own = tempfile.gettempdir()
    folders = {name: socket_folder(longest) for name, longest in SOCKETS.items() if name not in variables}
    return {name: folder for name, folder in folders.items() if folder != own}


def environment(gpu: bool, fused: bool = False) -> dict[str, str]:
    """Environment variables of a process that runs verl; Ray's and vLLM's processes inherit them.

    Args:
        fused: whether verl's head computes log-probabilities from its weights (`use_fused_kernels`).
    """
    variables = {
        "HF_HUB_OFFLINE": "1",  # models are local folders by then
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else 15: beside any other load on the processors the run would hardly go on
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # `redraft.engines.vllm.worker` scores drafts in the V1 runner
        "REDRAFT_VERL_RUN": secrets.token_hex(8),  # a name for `redraft.train.verl.job_names`
    }
    modules = {
        "redraft.verl_cpu.platform": not gpu,
        "redraft.train.verl.job_names": True,
        "redraft.train.verl.critic": gpu and not has_flash_attention(),
        "redraft.train.verl.fused_head": gpu and fused,
    }
    variables[EXTERNAL] = ",".join(name for name, needed in modules.items() if needed)
    if gpu:
        return variables
    return variables | {
        # One thread for all libraries: the number of threads changes the order of sums. Snakemake sets these variables
        # for its jobs, so a run resumed outside of it or with other cores would give other numbers.
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "TORCH_COMPILE_DISABLE": "1",  # vLLM would compile functions of its sampler, which takes longer than a tiny run
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for this name only, but it runs on any device
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    }
