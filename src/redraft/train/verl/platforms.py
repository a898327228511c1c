"""Platforms of a run under verl: GPUs, or one processor that stands for one. No method enters here."""

from typing import Any

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.config.trainer import VerlEngine

Table = dict[str, Any]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Thread counts of the libraries that PyTorch, vLLM and NumPy compute with; the last two win over the first."""


def engine_of(run: Run) -> VerlEngine:
    """The engine settings of a run under verl."""
    assert isinstance(run.engine, VerlEngine)
    return run.engine


def on_gpus(run: Run) -> Table:
    """The GPUs of one node, weights in bfloat16 for computing and in float32 for updating, verl's defaults."""
    engine = engine_of(run)
    offload = {"param_offload": engine.offload, "optimizer_offload": engine.offload}
    model = {
        "use_remove_padding": True, "enable_gradient_checkpointing": True,
        "override_config": {"attn_implementation": "flash_attention_2"},
    }  # fmt: skip
    return {
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": engine.max_tokens_per_gpu,
                "fsdp_config": offload,
            },
            "ref": {"fsdp_config": {"param_offload": engine.offload}},
            "rollout": {
                "dtype": "bfloat16", "load_format": "dummy", "gpu_memory_utilization": engine.gpu_memory_utilization,
                "enforce_eager": engine.eager, "free_cache_engine": True, "enable_sleep_mode": True,
                "agent": {"num_workers": 8},
            },
        },
        "critic": _critic(run, engine.max_tokens_per_gpu, {"model": model, "fsdp": offload}),
        "trainer": {"device": "cuda", "n_gpus_per_node": engine.gpus, "nnodes": engine.nodes},
        "ray_kwargs": {"ray_init": _ray(run)},
    }  # fmt: skip


def on_cpu(run: Run) -> Table:
    """One processor in float32, with what verl and vLLM need in order to take it for a GPU (docs/verl.md)."""
    rows = rows_per_pass(run)
    tokens = rows * (run.trainer.max_prompt_tokens + run.trainer.max_response_tokens)
    exact = {
        "model_dtype": "fp32", "use_torch_compile": False,
        "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    }  # fmt: skip
    model = {
        "use_remove_padding": False, "enable_gradient_checkpointing": False,
        "override_config": {"attn_implementation": "sdpa"},
    }  # fmt: skip
    return {
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": rows, "use_torch_compile": False,
                "fsdp_config": exact,
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": rows, "fsdp_config": exact},
            "rollout": {
                "dtype": "float32", "load_format": "dummy", "log_prob_micro_batch_size_per_gpu": rows,
                "enforce_eager": True, "free_cache_engine": False, "enable_sleep_mode": False,
                "enable_chunked_prefill": False,  # vLLM on a CPU cannot cut the prefill of a request with a seed
                "agent": {"num_workers": 1},
                # vLLM's default of 128 tokens a block would leave short responses without a cached prefix.
                "engine_kwargs": {"vllm": {
                    "block_size": 32, "worker_extension_cls": "redraft.verl_cpu.weights.CpuWorkerExtension",
                }},
            },
        },
        "critic": _critic(run, tokens, {"model": model, "fsdp": exact}),
        # More processors than there are: Ray counts its own actors, which mostly wait.
        "ray_kwargs": {"ray_init": _ray(run, num_cpus=32, num_gpus=1)},
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
        "trainer": {"device": "cpu", "n_gpus_per_node": 1, "nnodes": run.engine.nodes},
    }  # fmt: skip


def _ray(run: Run, **has: int) -> Table:
    """A Ray of its own on one node with what that has, or the one that runs on several nodes, which knows it."""
    return {"include_dashboard": False} | ({"address": "local"} | has if run.engine.nodes == 1 else {"address": "auto"})


def _critic(run: Run, tokens: int, settings: Table) -> Table:
    """A critic's share, if there is a critic."""
    if not isinstance(run.algorithm, PPO):
        return {}
    return {**settings, "ppo_max_token_len_per_gpu": tokens, "ppo_infer_max_token_len_per_gpu": tokens}


def rows_per_pass(run: Run) -> int:
    """Sequences in one pass on a processor: the most that are allowed and divide a node's share of a mini-batch."""
    rows = run.trainer.most_prompts_per_update * run.trainer.group_size // run.engine.nodes
    return max(n for n in range(1, min(run.engine.rows_per_micro_batch, rows) + 1) if rows % n == 0)


def environment(gpu: bool) -> dict[str, str]:
    """Environment variables of a process that runs verl; Ray's and vLLM's processes inherit them."""
    variables = {
        "HF_HUB_OFFLINE": "1",  # models are local folders by then
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # drafts are scored in the first (`redraft.engines.vllm.worker`)
    }
    if gpu:
        return variables
    return variables | {
        # One thread for whatever computes: Snakemake sets these for its jobs, and another number of threads adds in
        # another order, so that a run that goes on outside of it, or with other cores, would not be the same run.
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "TORCH_COMPILE_DISABLE": "1",  # else vLLM compiles small functions of its sampler, for longer than a run takes
        "VERL_ENGINE_DEVICE": "cuda",  # verl's FSDP engine is registered for this name only, and runs on any
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "redraft.verl_cpu.platform",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    }
