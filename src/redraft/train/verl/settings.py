"""A run in verl's words: one table for each part of verl's configuration, as nested dictionaries of its keys.

What is not named here keeps verl's default. Where a run executes does not enter: `redraft.train.verl.platforms` adds
that. Each value's source stands beside the field it comes from, in `redraft.config` and in the presets.
"""

import math
from pathlib import Path
from typing import Any

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.engines.vllm.engine import WORKER
from redraft.train.losses import divides_by_std, estimator
from redraft.train.verl.platforms import engine_of

Table = dict[str, Any]

VLLM_MAX_LOGPROBS = 20
"""vLLM's own `max_logprobs`."""


def settings(run: Run, model: str | Path, problems: Path) -> Table:
    """Everything that verl must know of a run; arguments as of `redraft.train.verl.config.compose`."""
    return {
        "data": data(run, problems),
        "actor_rollout_ref": {
            "model": {"path": str(model)}, "actor": actor(run), "ref": {"strategy": "fsdp2"}, "rollout": rollout(run),
        },
        "critic": critic(run, model),
        "algorithm": algorithm(run),
        "reward": {"num_workers": 1, "reward_model": {"enable": False, "rollout": {"name": "vllm"}}},
        "trainer": trainer(run),
    }  # fmt: skip


def data(run: Run, problems: Path) -> Table:
    """The training data. verl insists on a loader; which prompts are rolled out, the run's schedule says."""
    settings = run.trainer
    return {
        # verl insists on data for a validation that it is told not to do.
        "train_files": [str(problems)], "val_files": [str(problems)], "prompt_key": "prompt",
        "train_batch_size": settings.batch_prompts,
        "max_prompt_length": settings.max_prompt_tokens, "max_response_length": settings.max_response_tokens,
        # A prompt that is left out would shift all that follow against their drafts.
        "filter_overlong_prompts": False, "truncation": "error", "return_raw_chat": True,
        "shuffle": True, "seed": run.seed, "dataloader_num_workers": 0,
    }  # fmt: skip


def actor(run: Run) -> Table:
    """Update of the policy: the losses of `redraft.train.losses`, in verl's words."""
    algorithm = run.algorithm
    return {
        "strategy": "fsdp2", "ppo_mini_batch_size": run.trainer.most_prompts_per_update, "ppo_epochs": 1,
        "shuffle": False, "data_loader_seed": run.seed,
        "clip_ratio": algorithm.clip_low, "clip_ratio_low": algorithm.clip_low, "clip_ratio_high": algorithm.clip_high,
        "clip_ratio_c": algorithm.clip_ratio_c, "loss_agg_mode": algorithm.loss_agg_mode,
        "use_kl_loss": algorithm.kl_loss_coef > 0, "kl_loss_coef": algorithm.kl_loss_coef,
        "kl_loss_type": algorithm.kl_loss_type,
        "entropy_coeff": 0,  # 0.001 in SPEC-RL's scripts, nothing of it in its paper
        "grad_clip": run.trainer.gradient_clip, "optim": _optimizer(run, run.trainer.learning_rate),
        "checkpoint": {
            "save_contents": ["model", "optimizer", "extra", "hf_model"],
            "load_contents": ["model", "optimizer", "extra"],
        },
    }  # fmt: skip


def _optimizer(run: Run, learning_rate: float) -> Table:
    """AdamW with PyTorch's defaults and a rate that is constant behind the warm-up, as in `train.local.learner`."""
    return {
        "optimizer": "AdamW", "lr": learning_rate, "lr_scheduler_type": "constant",
        "lr_warmup_steps": run.trainer.warmup_steps,
        "lr_warmup_steps_ratio": 0.0, "weight_decay": run.trainer.weight_decay, "betas": [0.9, 0.999],
        "clip_grad": run.trainer.gradient_clip,
    }  # fmt: skip


def critic(run: Run, model: str | Path) -> Table:
    """The critic of PPO, which starts from the policy's weights; without PPO there is none."""
    if not isinstance(run.algorithm, PPO):
        return {"enable": False, "strategy": "fsdp2", "model": {"path": str(model)}}
    return {
        "enable": True, "strategy": "fsdp2", "model": {"path": str(model)}, "grad_clip": run.trainer.gradient_clip,
        "optim": _optimizer(run, run.trainer.learning_rate * run.algorithm.critic_learning_rate_ratio),
        "cliprange_value": run.algorithm.value_clip, "ppo_mini_batch_size": run.trainer.most_prompts_per_update,
        "ppo_epochs": 1, "shuffle": False, "data_loader_seed": run.seed,
        # The V1 trainer batches a critic by tokens, whatever this says.
        "use_dynamic_bsz": True,
    }  # fmt: skip


def rollout(run: Run) -> Table:
    """Sampling from the whole law; verl divides logits by the temperature too, in all log-probabilities."""
    settings = run.trainer
    return {
        "name": "vllm", "mode": "async", "n": settings.group_size, "seed": run.seed,
        "temperature": settings.temperature, "top_p": 1.0, "top_k": -1, "do_sample": True, "ignore_eos": False,
        # Of the policy's own law, also for a token that is drawn from a residual; `WORKER` adds the temperature.
        "calculate_log_probs": True, "logprobs_mode": "raw_logprobs",
        "prompt_length": settings.max_prompt_tokens, "response_length": settings.max_response_tokens,
        # A draft is scored as a prompt, behind which vLLM generates at least one token.
        "max_model_len": settings.max_prompt_tokens + settings.max_response_tokens + 1,
        "max_num_seqs": run.engine.max_rows, "max_num_batched_tokens": run.engine.max_batched_tokens,
        "tensor_model_parallel_size": engine_of(run).tensor_parallel,
        "enable_prefix_caching": True, "enable_chunked_prefill": True,
        "engine_kwargs": {"vllm": {"worker_cls": WORKER} | _top_law(run)},
        "agent": {"agent_loop_manager_class": "redraft.train.verl.manager.RolloutManager"},
    }  # fmt: skip


def _top_law(run: Run) -> Table:
    """As many log-probabilities of a position as the method keeps, where vLLM's default is fewer."""
    top = run.reuse.retention.top
    return {"max_logprobs": top} if top > VLLM_MAX_LOGPROBS else {}


def algorithm(run: Run) -> Table:
    """Estimator of advantages. verl's own filter of groups is off: a schedule filters."""
    ours = run.algorithm
    return {
        "adv_estimator": estimator(ours),
        "gamma": ours.gamma if isinstance(ours, PPO) else 1.0, "lam": ours.lam if isinstance(ours, PPO) else 1.0,
        "norm_adv_by_std_in_grpo": divides_by_std(ours), "use_kl_in_reward": False, "filter_groups": {"enable": False},
        "rollout_correction": rollout_correction(run),
    }  # fmt: skip


def rollout_correction(run: Run) -> Table:
    """Importance weights from `rollout_log_probs` to old log-probabilities, where the method has weights."""
    weights = run.reuse.importance
    return {"rollout_is": weights.level, "rollout_is_threshold": weights.bound} if weights else {}


def trainer(run: Run) -> Table:
    """Names and length. Steps, records and checkpoints are the campaign loop's (`redraft.train.loop`)."""
    return {
        "project_name": "redraft", "experiment_name": f"{run.paper}/{run.cell}/seed{run.seed}", "logger": [],
        "total_training_steps": run.steps, "total_epochs": math.ceil(run.trainer.epochs),
        "critic_warmup": 0, "save_freq": 1, "test_freq": -1, "val_before_train": False,
        # Which checkpoints are kept and resumed from, `redraft.train.checkpoint` decides.
        "max_actor_ckpt_to_keep": None, "max_critic_ckpt_to_keep": None, "resume_mode": "disable",
        "use_v1": True,
        "v1": {"trainer_mode": "redraft"},
    }  # fmt: skip
