"""Keys of verl's configuration that a site may set, and the settings that decide the others. Does not import verl."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

SITE_KEYS = (
    "actor_rollout_ref.actor.entropy_checkpointing",
    "actor_rollout_ref.actor.entropy_from_logits_chunk_size",
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking",
    "actor_rollout_ref.actor.fsdp_config",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.use_torch_compile",
    "actor_rollout_ref.model.enable_activation_offload",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.fused_kernel_options",
    "actor_rollout_ref.model.override_config.attn_implementation",
    "actor_rollout_ref.model.tiled_mlp",
    "actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.model.use_liger",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.use_shm",
    "actor_rollout_ref.ref.entropy_from_logits_with_chunking",
    "actor_rollout_ref.ref.fsdp_config",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "actor_rollout_ref.rollout.cudagraph_capture_sizes",
    "actor_rollout_ref.rollout.data_parallel_size",
    "actor_rollout_ref.rollout.disable_log_stats",
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.block_size",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_custom_all_reduce",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes",
    "actor_rollout_ref.rollout.free_cache_engine",
    "actor_rollout_ref.rollout.layered_summon",
    "actor_rollout_ref.rollout.load_format",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.prometheus",
    "critic.fsdp",
    "critic.model.enable_activation_offload",
    "critic.model.enable_gradient_checkpointing",
    "critic.model.use_remove_padding",
    "critic.model.use_shm",
    "critic.ppo_infer_max_token_len_per_gpu",
    "critic.ulysses_sequence_parallel_size",
    "ray_kwargs",
    "trainer.ray_wait_register_center_timeout",
    "transfer_queue",
)
"""Keys that affect execution only, each with all keys below it; but for those of the precision (`precision`)."""

BITWISE_VALUES: dict[str, Any] = {
    "attention_backend": "FLASH_ATTN",
    "attn_implementation": "flash_attention_2",
    "full_determinism": True,
    "use_liger": False,
}
"""By last name of a key: the only value with which `engine.bitwise` is known to hold. vLLM 0.24 drops its prefix cache
for other batch-invariant backends; PyTorch's attention has no deterministic backward pass under verl's settings."""

PRECISION_KEYS = ("dtype", "mixed_precision")
"""Last parts of the site's keys that change the precision of training or sampling, and so the results."""

SAMPLING = "nothing: rollouts are sampled without top-p or top-k"
SET_BY = {
    "actor_rollout_ref.rollout.temperature": "trainer.temperature",
    "actor_rollout_ref.rollout.top_p": SAMPLING,
    "actor_rollout_ref.rollout.top_k": SAMPLING,
    "actor_rollout_ref.rollout.n": "trainer.group_size",
    "actor_rollout_ref.rollout.seed": "the run's seed",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "engine.tensor_parallel",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "engine.gpu_memory_utilization",
    "actor_rollout_ref.rollout.enforce_eager": "engine.eager",
    "actor_rollout_ref.rollout.max_num_seqs": "engine.max_rows",
    "actor_rollout_ref.rollout.max_num_batched_tokens": "engine.max_batched_tokens",
    "actor_rollout_ref.actor.optim": "trainer.learning_rate, trainer.weight_decay, trainer.gradient_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "trainer.prompts_per_update",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "engine.max_tokens_per_gpu",
    "actor_rollout_ref.actor": "the cell's algorithm and the run's trainer",
    "actor_rollout_ref.model.path": "the preset's models",
    "algorithm": "the cell's algorithm",
    "critic": "the cell's algorithm and the run's trainer",
    "data.train_batch_size": "trainer.prompts_per_step",
    "data.max_prompt_length": "trainer.max_prompt_tokens",
    "data.max_response_length": "trainer.max_response_tokens",
    "data.seed": "the run's seed",
    "data": "the preset's data",
    "reward": "nothing: redraft.tasks.grading rewards",
    "trainer.n_gpus_per_node": "engine.gpus",
    "trainer.device": "engine.device",
    "trainer": "the paper's hyperparameters, the preset's trainer and engine",
}
"""Key of verl to the setting that decides it; the longest matching prefix counts."""


def under(key: str, prefix: str) -> bool:
    """True if a dotted key is `prefix` or below it."""
    # With the dot: `critic.fsdp_size` is not below `critic.fsdp`.
    return key == prefix or key.startswith(prefix + ".")


def leaves(keys: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values by dotted key; a mapping as value is another way to write the keys below it."""
    flat: dict[str, Any] = {}
    for key, value in keys.items():
        nested = isinstance(value, dict) and value
        flat |= leaves(value, f"{above}{key}.") if nested else {f"{above}{key}": value}
    return flat


def precision(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The keys among dotted ones that set a precision, which are part of a run's identity."""
    return {
        key: value
        for key, value in sorted(flat.items())
        if any(part.endswith(PRECISION_KEYS) for part in key.split("."))
    }


def checked_site_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of `engine.verl` if a site may set all of them.

    Raises:
        PydanticCustomError: for the first other key, with the setting that decides it.
    """
    for key in keys:
        # A mapping above an allowed key is not allowed, since it may contain others.
        if any(under(key, allowed) for allowed in SITE_KEYS):
            continue
        # The error names the setting to change instead, if there is one.
        setters = [prefix for prefix in SET_BY if under(key, prefix)]
        if setters:
            why, expected = (
                ": it changes training results, or another setting decides it",
                SET_BY[max(setters, key=len)],
            )
        else:
            why, expected = ": it is not known to affect execution only", "below " + ", ".join(SITE_KEYS)
        context = {"verl_key": key, "why": why, "expected": expected}
        raise PydanticCustomError("not_a_site_s", "a site may not set {verl_key}{why}", context)
    return keys
