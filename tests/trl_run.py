"""Trainings by TRL, in its environment, with the rollout function; prints one line of JSON for test_trl.py."""

import hashlib
import json
import sys
from contextlib import redirect_stdout

import numpy as np
import torch
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trl_rollouts import responses
from benchmarks.trl_rollouts import trainer_of as small_trainer_of
from redraft.integrations.trl import ReuseRollout, tokens_of
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.tiny_models import PROMPT, drifting
from redraft.tasks.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer()
PROMPTS = ["1a+2=", "3b-4=", "55c+1=", "7="]
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}


def digits(completions, **kwargs):
    return [sum(map(str.isdigit, text)) / (len(text) + 1) for text in completions]


def trainer_of(rollout, folder, **settings):
    """A trainer of a random model whose tokens are nearly certain; an epoch is one step."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(TOKENIZER), **SHAPE, **HEADS, eos_token_id=1, pad_token_id=0, initializer_range=1.0)
    )
    defaults = {"num_train_epochs": 3, "num_generations": 2, "per_device_train_batch_size": 8, "logging_steps": 1}
    defaults |= {"max_completion_length": 10, "learning_rate": 1e-3, "bf16": False, "shuffle_dataset": False}
    defaults |= {"use_cpu": True, "report_to": "none", "save_steps": 1, "disable_tqdm": True, "temperature": 0.7}
    args = GRPOConfig(output_dir=folder, **defaults | settings)
    dataset = Dataset.from_dict({"prompt": PROMPTS})
    return GRPOTrainer(
        model,
        reward_funcs=digits,
        args=args,
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=TOKENIZER,
        rollout_func=rollout,
    )


def result_of(trainer):
    """Hash of the weights, and what was logged of each step."""
    weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.state_dict().values())
    keys = ("reward", "loss", "entropy", "completions/mean_length", "reuse/saved_tokens", "reuse/drafts")
    logs = [{key: each[key] for key in keys} for each in trainer.state.log_history if "reuse/drafts" in each]
    return {"weights": hashlib.sha256(weights).hexdigest(), "logs": logs}


class Observed(ReuseRollout):
    """Keeps the size of each call, and the largest difference from TRL's own log-probabilities."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.calls, self.gap = [], 0.0

    def __call__(self, prompts, trainer):
        found = super().__call__(prompts, trainer)
        self.calls.append(len(prompts))
        if not trainer.args.bf16:
            for prompt, tokens, log_probs in zip(*found.values(), strict=True):
                ids = torch.tensor([prompt + tokens])
                arguments = (trainer.model, ids, torch.ones_like(ids), len(tokens))
                with torch.no_grad():
                    own, *_ = trainer._get_per_token_logps_and_entropies(*arguments)
                self.gap = max(self.gap, float((own[0] - torch.tensor(log_probs)).abs().max()))
        return found


def counts_of(rollout):
    """Counts of the responses of `Space(3, 3)` to `PROMPT`, next to a longer prompt, which pads it."""
    space = Space(3, 3)
    trainer = small_trainer_of(*drifting(space, 1, 0, scale=0.6), [PROMPT], rollout, **AT)
    tokens, _ = responses(trainer, [PROMPT] * 3000 + [[*PROMPT, 2, 2, 1]] * 100)
    return np.bincount([space.index[tuple(each)] for each in tokens[:3000]], minlength=len(space.responses)).tolist()


AT = {"max_completion_length": 3, "temperature": 0.8}


class Kept(ReuseRollout):
    """Keeps what it returns."""

    def __call__(self, prompts, trainer):
        self.found = super().__call__(prompts, trainer)
        torch.manual_seed(1)  # TRL shuffles responses
        return self.found


def step_of(kept, own):
    """Advantages, logs and weights of two optimizer steps in each of two iterations over the same responses."""
    model = drifting(Space(16, 1), 1, 0)[0]
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    settings = {"per_device_train_batch_size": 8, "num_generations": 4, "steps_per_generation": 2, "num_iterations": 2}
    settings |= {"gradient_accumulation_steps": 1, "max_steps": 4, "learning_rate": 1e-2, "seed": 3}
    trainer = small_trainer_of(model, prompts, None if own else kept, max_completion_length=12, **settings)
    advantages, score = [], trainer._generate_and_score_completions

    def generate(prompt_ids, *_):
        assert prompt_ids == kept.found["prompt_ids"]
        torch.manual_seed(1)
        return kept.found["completion_ids"], None

    def scored(inputs):
        advantages.append((found := score(inputs))["advantages"].tolist())
        return found

    trainer._generate_and_score_completions = scored
    if own:
        trainer._generate_single_turn = generate
    trainer.train()
    keys = ("loss", "grad_norm", "entropy", "clip_ratio/region_mean")
    logs = [{key: each[key] for key in keys} for each in trainer.state.log_history if "loss" in each]
    weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.state_dict().values())
    return {"advantages": advantages, "logs": logs, "weights": hashlib.sha256(weights).hexdigest()}


def main():
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    whole = trainer_of(ReuseRollout(), "run", **evaluated)
    whole.train()
    resumed = trainer_of(ReuseRollout(), "run", **evaluated)
    resumed.train(resume_from_checkpoint="run/checkpoint-1")
    none = trainer_of(observed := Observed("none"), "none", save_strategy="no")
    none.train()
    iterations = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "bf16": True}
    still = trainer_of(rollout := Observed("residual"), "still", learning_rate=0.0, save_strategy="no", **iterations)
    still.train()
    kept = [each.get("reuse/kept_share") for each in still.state.log_history if "reuse/drafts" in each]
    TOKENIZER.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    talks = [[{"role": "user", "content": text}] for text in PROMPTS]
    equal = [tokens_of(each, whole) == whole._tokenize_prompts(each)[0] for each in (PROMPTS, talks)]
    try:
        trainer_of(ReuseRollout(), "error", top_k=5).train()
        error = ""
    except Exception as raised:
        error = str(raised)
    same = Kept("none")
    return {
        "counts": {"own": counts_of(None), "function": counts_of(ReuseRollout("none"))},
        "steps": {"function": step_of(same, own=False), "own": step_of(same, own=True)},
        "whole": result_of(whole),
        "resumed": result_of(resumed),
        "none": result_of(none),
        "still": {"kept": kept, "calls": rollout.calls},
        "log_prob_gap": observed.gap,
        "prompts_equal": equal,
        "error": error,
    }


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        results = main()
    print(json.dumps(results))
