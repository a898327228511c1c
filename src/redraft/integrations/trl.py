"""A rollout function for TRL's GRPOTrainer that reuses the responses of the last epoch.

TRL (1.16, `GRPOTrainer._generate`) calls `rollout_func(prompts, trainer)` with the prompts of a whole generation batch,
each repeated `num_generations` times in a row (`RepeatSampler`), and takes one response for each. It calls once per
`steps_per_generation * num_iterations` micro-batches, so a response that is trained on several times is one rollout
here. In evaluation it calls once per batch, with `trainer.model` in evaluation mode.
"""

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, TrainerCallback

from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.integrations.prompt_memory import PromptMemory
from redraft.integrations.trl_vllm import ColocatedEngine, check_vllm
from redraft.methods.block import BlockReuse
from redraft.methods.one_hot import OneHotReuse
from redraft.methods.random import RandomReuse
from redraft.methods.residual import ResidualReuse
from redraft.methods.reuse import ReuseMethod
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.rollout.context import Meter, RolloutContext, Streams, no_reward
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Rollout, Task

RULES: dict[str, type[ReuseMethod]] = {
    "none": Vanilla,
    "one_hot": OneHotReuse,
    "block": BlockReuse,
    "residual": ResidualReuse,
    "published": Speculative,
    "random": RandomReuse,
}
FOLDER = "redraft"
"""Folder of the memory in a checkpoint."""
ALLOWED: Mapping[str, tuple[object, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, None),
    "min_p": (None, 0.0),
    "repetition_penalty": (1.0,),
    "generation_kwargs": (None, {}),
    "cache_implementation": (None,),
    "cast_lm_head_to_fp32": (False,),
    "use_transformers_continuous_batching": (False,),
}
"""Settings of a GRPOConfig that the engines do not support, and their neutral values."""
GENERATION: Mapping[str, tuple[object, ...]] = {
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "sequence_bias": ({},),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "num_beams": (1,),
}
"""The same for a model's generation config, where None is neutral too. TRL's own loop applies these: `generate`
takes settings from there that the GRPOConfig leaves out (transformers 5.10, `_prepare_generation_config`)."""

logger = logging.getLogger(__name__)


class ReuseRollout(TrainerCallback):
    """Rollout function of a GRPOTrainer: `GRPOTrainer(..., rollout_func=ReuseRollout("one_hot"))`.

    The in-process engine samples responses from `trainer.model`, at the configuration's temperature; with `use_vllm`
    TRL's own vLLM does, in colocate mode. In training, the draft of a prompt's i-th response is its i-th response in
    the last call with the same prompt tokens; evaluation has no drafts. The function adds itself to the trainer's
    callbacks, writes its memory into each checkpoint, and reads it when training resumes.

    Args:
        rule: With `one_hot` responses have the policy's distribution; with `block` and `residual` they have it for
            drafts that the policy was not trained on. `published` (SPEC-RL) and `random` are not exact. `none` has no
            drafts.
        most_tokens: a prompt is dropped once as many response tokens of more recently sampled prompts are stored. A
            token takes 12 bytes, and 8 more for each of the
            rule's `top`.
        most_rows: largest number of responses that decode at once in the in-process engine.
        resume_from: the checkpoint that training resumes from, if it is not `checkpoint-STEP` in `output_dir`.
        settings: the rule's settings, such as `fresh_every`, `top` or `lenience`.

    Raises:
        UserError: for an unknown rule or setting. In the first call: for a setting of the trainer that the engine does
            not support, and for a memory of another model, tokenizer or rule.
    """

    def __init__(
        self,
        rule: str = "one_hot",
        *,
        most_tokens: int = 50_000_000,
        most_rows: int = 128,
        resume_from: Path | str | None = None,
        **settings: Any,
    ) -> None:
        self.rule = _rule(rule, settings)
        for key, value in (("most_tokens", most_tokens), ("most_rows", most_rows)):
            if value < 1:
                raise UserError("nothing could be stored or decoded", key=key, value=value, allowed="at least 1")
        self.most_tokens, self.most_rows = most_tokens, most_rows
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.memory = PromptMemory(self.rule.retention, most_tokens)
        self._engine: TorchEngine | None = None
        self._owner: dict[str, Any] = {}
        self._trainer: Any = None  # whose rollouts the memory has
        self._began: int | None = None  # step at which the call of `trainer.train` began, if known

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list]:
        """Sample a response to each prompt.

        Args:
            prompts: texts or conversations, one per response.
            trainer: a GRPOTrainer.

        Returns:
            `prompt_ids` and `completion_ids`, lists of token ids, and `logprobs`, the log-probability of each token
            under the policy at the configuration's temperature; with `published` and `random`, that of a kept token
            under the policy that sampled it, nats.

        Raises:
            UserError: for a setting of the trainer or a prompt that the engine does not support.
        """
        check_trainer(trainer)
        if trainer.use_vllm:
            check_vllm(trainer, self.rule)
        tokens = tokens_of(prompts, trainer)
        _check_tokens(tokens, trainer.model)
        engine = self._engine_for(trainer, tokens)
        if trainer.model.training:
            rollouts = self._train(tokens, engine, trainer)
        else:
            rollouts = self._evaluate(tokens, engine, trainer)
        return {
            "prompt_ids": tokens,
            "completion_ids": [rollout.tokens.tolist() for rollout in rollouts],
            "logprobs": [rollout.log_probs.tolist() for rollout in rollouts],
        }

    def _train(self, prompts: list[list[int]], engine: TorchEngine | ColocatedEngine, trainer: Any) -> list[Rollout]:
        """Rollouts with drafts; they are stored in the memory."""
        self._begin(trainer)
        step = self.memory.counters["rollouts"]
        tasks = self.memory.tasks(prompts)
        groups = self._groups(tasks, prompts, engine, trainer, self.rule, self.memory.memory, "rollout", step)
        dropped = self.memory.put(groups)
        self.memory.counters["rollouts"] += 1
        rollouts = _in_rows(groups, tasks, len(prompts))
        for name, value in (metrics(rollouts) | {"dropped": float(dropped)}).items():
            # As the `log_metric` of reward functions; TRL averages over the generations of a logging step.
            trainer._log_metric(f"reuse/{name}", value)
        return rollouts

    def _evaluate(self, prompts: list[list[int]], engine: TorchEngine | ColocatedEngine, trainer: Any) -> list[Rollout]:
        """Rollouts without drafts; they are not stored."""
        counters = self.memory.counters
        step = counters["evaluations"] = counters.get("evaluations", -1) + 1
        tasks = PromptMemory(Retention(), 1).tasks(prompts)
        groups = self._groups(tasks, prompts, engine, trainer, Vanilla(), Memory(Retention()), "evaluation", step)
        return _in_rows(groups, tasks, len(prompts))

    def _groups(
        self,
        tasks: Mapping[int, tuple[Task, list[int]]],
        prompts: list[list[int]],
        engine: TorchEngine | ColocatedEngine,
        trainer: Any,
        rule: ReuseMethod,
        memory: Memory,
        purpose: str,
        step: int,
    ) -> list[Group]:
        """Roll out all tasks concurrently.

        Args:
            tasks: by prompt number, a task and the rows of its samples in `prompts`.
            prompts: tokens of each requested response's prompt.
            rule: of reuse.
            memory: earlier rollouts by prompt number.
            purpose: of the random streams.
            step: of the random streams.
        """
        context = RolloutContext(
            engine,
            no_reward,  # TRL computes rewards after the rollouts
            memory,
            Meter(),
            Streams(trainer.args.seed, step, purpose),
            {number: prompts[rows[0]] for number, (_, rows) in tasks.items()},
            trainer.args.max_completion_length,
        )
        strategy = rule.strategy()
        return engine.run(*(strategy(task, context) for task, _ in tasks.values()))

    def _engine_for(self, trainer: Any, prompts: list[list[int]]) -> TorchEngine | ColocatedEngine:
        """The engine; in process, a new one for another model, temperature or end token, longer prompts or more rows.

        Raises:
            UserError: if the rule or the engine does not fit the model, or vLLM has no room.
        """
        model, args, engine = trainer.model, trainer.args, self._engine
        # `args.temperature` may be changed later; the loss uses the trainer's.
        known = range(model.get_input_embeddings().num_embeddings)
        temperature, stops = trainer.temperature, frozenset(token for token in trainer.eos_token_ids if token in known)
        longest, rows = max(map(len, prompts)) + args.max_completion_length, min(self.most_rows, len(prompts))
        if trainer.use_vllm:
            self.rule.check_vocabulary(model.config.vocab_size)
            return ColocatedEngine(trainer, stops, longest)
        if engine is not None and (engine.model, engine.temperature, engine.stops) == (model, temperature, stops):
            if longest <= engine.max_length and rows <= engine.max_rows:
                return engine
            longest, rows = max(longest, engine.max_length), max(rows, engine.max_rows)
        self._engine = None  # frees its cache first
        self.rule.check_vocabulary(model.config.vocab_size)
        # Autocast applies to float32 weights; others are used in their own type.
        mixed = trainer.accelerator.mixed_precision == "bf16" and model.dtype == torch.float32
        self._engine = TorchEngine(
            model,
            stops=stops,
            max_length=longest,
            max_rows=rows,
            temperature=temperature,
            autocast=torch.bfloat16 if mixed else None,
        )
        return self._engine

    def _begin(self, trainer: Any) -> None:
        """Before the first rollout of a call of `trainer.train`: read the memory of the checkpoint, if there is one."""
        if self._trainer is trainer:
            return
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
            self._began = None
        self._owner = {"model": _shape_of(trainer.model), "tokenizer": _hash_of(trainer.processing_class)}
        # In a trainer's first call, the function becomes a callback at the first rollout: TRL has done no step then.
        done = trainer.state.global_step if self._began is None else self._began
        checkpoint = self.resume_from or _checkpoint(trainer.args, done)
        evaluations = self.memory.counters.get("evaluations", -1)
        if done and (self.resume_from or (checkpoint / FOLDER).exists()):
            arguments = (self._owner, self.rule.retention, self.most_tokens)
            self.memory = PromptMemory.load(checkpoint / FOLDER, *arguments)
            logger.info("redraft: %d response tokens were read from %s", len(self.memory), checkpoint)
        else:
            self.memory = PromptMemory(self.rule.retention, self.most_tokens)
            # Above the number of rollouts before, so that no random numbers occur twice.
            self.memory.counters["rollouts"] = done * trainer.args.gradient_accumulation_steps
            self.memory.counters["evaluations"] = evaluations
            if done:
                logger.warning("redraft: %s has no memory of rollouts, so this pass has no drafts", checkpoint)
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the next rollout read the memory of the trainer's step."""
        self._let_sync()
        self._trainer, self._began = None, state.global_step

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """After `load_best_model_at_end`: an evaluation is by the weights that were loaded."""
        self._let_sync()

    def _let_sync(self) -> None:
        """Make TRL copy the weights to its vLLM, also if the step is that of the last copy."""
        if self._trainer is not None and self._trainer.use_vllm:
            self._trainer._last_loaded_step = -1

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the memory into the checkpoint that the trainer has just written."""
        if self._trainer is not None:
            self.memory.save(_checkpoint(args, state.global_step) / FOLDER, self._owner)


def check_trainer(trainer: Any) -> None:
    """Reject trainers with settings that the engine does not support.

    Raises:
        UserError: with the first such setting.
    """
    args, model, accelerator = trainer.args, trainer.model, trainer.accelerator
    for key, allowed in ALLOWED.items():
        if getattr(args, key, allowed[0]) not in allowed:
            raise _unsupported(key, getattr(args, key), str(allowed[0]))
    for key, allowed in GENERATION.items():
        value = getattr(getattr(model, "generation_config", None), key, None)
        if value is not None and value not in allowed:
            raise _unsupported(f"generation_config.{key}", value, "None in the model's generation_config")
    if not trainer.temperature > 0:
        raise _unsupported("temperature", trainer.temperature, "above 0")
    if not isinstance(args.max_completion_length, int) or args.max_completion_length < 1:
        raise _unsupported("max_completion_length", args.max_completion_length, "at least 1")
    if trainer.state.is_hyper_param_search:  # its checkpoints are in folders of their own
        raise _unsupported("hyperparameter_search", "running", "single trainings")
    if accelerator.num_processes > 1:
        raise _unsupported("num_processes", accelerator.num_processes, "1")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise _unsupported("distributed", "DeepSpeed or FSDP", "whole weights in one process")
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise _unsupported("mixed_precision", accelerator.mixed_precision, "no, bf16")
    if trainer.tools or trainer.environment_factories:
        raise _unsupported("tools", "tools or environments", "none: responses of one turn")
    if not isinstance(model, PreTrainedModel) or model.config.get_text_config() is not model.config:
        raise _unsupported("model", type(model).__name__, "a causal language model of transformers, without PEFT")


def tokens_of(prompts: Sequence[Any], trainer: Any) -> list[list[int]]:
    """Tokens of texts or conversations, as TRL makes them (`GRPOTrainer._tokenize_prompts`).

    Raises:
        UserError: if the content of a message is not a string.
    """
    tokenizer = trainer.processing_class
    if isinstance(prompts[0], str):
        return tokenizer(text=list(prompts))["input_ids"]
    if any(not isinstance(message.get("content"), str) for prompt in prompts for message in prompt):
        raise _unsupported("prompt", "content that is no text", "text")
    return tokenizer.apply_chat_template(
        conversation=list(prompts),
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )["input_ids"]


def _check_tokens(prompts: list[list[int]], model: PreTrainedModel) -> None:
    """Reject prompts that the model cannot read.

    Raises:
        UserError: for a prompt without tokens, or with a token that the model does not know.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise UserError("a prompt has no tokens", key="prompt", value=f"number {row} of the batch")
        if max(prompt) >= vocabulary:
            raise UserError(
                "a prompt has a token that the model does not know",
                key="prompt",
                value=max(prompt),
                allowed=f"0 to {vocabulary - 1}",
                hint="tokenizer and model need to belong together",
            )


def metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of a batch.

    Returns:
        `saved_tokens`: kept tokens of drafts; `decoded_tokens`: sampled tokens; `verified_tokens`: scored tokens of
        drafts; `drafts`: share of responses with a draft. If there are drafts, also `kept_share`: share of the drafts'
        tokens that was kept, and `mean_cut`: kept tokens per draft.
    """
    kept, drafted = (sum(getattr(r, name) for r in rollouts) for name in ("prefix_length", "draft_length"))
    drafts = sum(r.draft_length > 0 for r in rollouts)
    found = {
        "saved_tokens": float(kept),
        "decoded_tokens": float(sum(r.decoded for r in rollouts)),
        "verified_tokens": float(sum(r.verified for r in rollouts)),
        "drafts": drafts / len(rollouts),
    }
    return found | ({"kept_share": kept / drafted, "mean_cut": kept / drafts} if drafts else {})


def _rule(rule: str, settings: dict[str, Any]) -> ReuseMethod:
    if rule not in RULES:
        raise UserError("there is no such rule of reuse", key="rule", value=rule, allowed=RULES)
    try:
        return RULES[rule](**settings)
    except ValidationError as error:
        first = error.errors()[0]
        names = {*RULES[rule].model_fields} - {"kind"}
        raise UserError(
            f"the rule {rule} does not take this setting: {first['msg']}",
            key=".".join(map(str, first["loc"])),
            value=first["input"],
            allowed=names or "none",
        ) from None


def _unsupported(key: str, value: object, allowed: str) -> UserError:
    return UserError(
        "redraft's rollout function does not support this setting of the trainer", key=key, value=value, allowed=allowed
    )


def _in_rows(groups: Sequence[Group], tasks: Mapping[int, tuple[Task, list[int]]], size: int) -> list[Rollout]:
    """Rollouts of groups in the order of the prompts that TRL passed."""
    by_row = {
        row: rollout for group in groups for row, rollout in zip(tasks[group.prompt][1], group.rollouts, strict=True)
    }
    return [by_row[row] for row in range(size)]


def _checkpoint(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _shape_of(model: PreTrainedModel) -> dict[str, Any]:
    """Kind and size of a model, which training does not change."""
    return {
        "type": model.config.model_type,
        "vocabulary": model.config.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _hash_of(tokenizer: Any) -> str:
    """Hash of a tokenizer's vocabulary."""
    return sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
