"""Rollouts of TRL's GRPOTrainer over a small model: by its own loop, or by redraft's rollout function.

`trainer_of` makes a trainer whose prompts and responses are texts of token ids. The module is also a process of TRL's
environment (`make trl`) that answers the requests of `benchmarks.certificates`:
`python -m benchmarks.trl_rollouts RULE CURRENT EARLIER ENGINE`, with the folders of two models. Each line of the
standard input is a request, and each line of the standard output its responses. The engine is `in-process`, or `vllm`
for TRL's vLLM.
"""

import functools
import json
import os
import sys
import tempfile
import warnings
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from redraft.integrations.trl import ReuseRollout
from redraft.integrations.trl_vllm import MAX_LOGPROBS, load_weights_on_cpu

OWN = "own"
"""In place of a rule: TRL's own loop."""
VLLM = {"use_vllm": True, "vllm_max_model_length": 64, "vllm_gpu_memory_utilization": 0.1}
"""Settings of a trainer with vLLM."""


def text_of(tokens: list[int]) -> str:
    """Token ids as a text, which the tokenizer of `trainer_of` reads."""
    return " ".join(map(word_of, tokens))


def word_of(token: int) -> str:
    """Unique word of a token; no word is part of another, since a tokenizer cuts its special tokens out of words."""
    return f"t{token}."


def trainer_of(
    model: PreTrainedModel, prompts: list[list[int]], rollout: ReuseRollout | None = None, **settings: Any
) -> GRPOTrainer:
    """A trainer on a processor in float32; without a rollout function it generates by itself.

    Args:
        model: token 0 ends a response.
        prompts: token ids of the prompts of the training.
        rollout: the rollout function, if any.
        settings: of its GRPOConfig.
    """
    vocabulary = Tokenizer(models.WordLevel({word_of(i): i for i in range(model.config.vocab_size)}))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    end = word_of(0)
    defaults = {"per_device_train_batch_size": 8, "num_generations": 2, "max_steps": 1, "logging_steps": 1}
    defaults |= {"bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `rollout_func` is experimental
        return GRPOTrainer(
            model,
            reward_funcs=length_reward,
            args=GRPOConfig(output_dir=tempfile.mkdtemp(), **defaults | settings),
            train_dataset=Dataset.from_dict({"prompt": list(map(text_of, prompts))}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token=end, eos_token=end),
            rollout_func=rollout,
        )


def length_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Reward of each response: its number of tokens."""
    return list(map(float, map(len, completion_ids)))


def responses(trainer: GRPOTrainer, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]] | None]:
    """Tokens, and log-probabilities if there are any, of a response to each prompt, as in a training step."""
    trainer.model.train()
    prompt_ids, tokens, _, _, log_probs, *_ = trainer._generate(list(map(text_of, prompts)))
    assert prompt_ids == prompts
    return tokens, log_probs


def with_vllm(model: PreTrainedModel, prompts: list[list[int]], **settings: Any) -> GRPOTrainer:
    """As `trainer_of`, with TRL's vLLM in float32 instead of bfloat16; once in a process, whose `LLM` it replaces.

    Args:
        model: read from a folder, which vLLM reads too.
    """
    from trl.generation import vllm_generation

    vllm_generation.LLM = functools.partial(vllm_generation.LLM, dtype="float32")
    trainer = trainer_of(model, prompts, **VLLM | settings)
    load_weights_on_cpu(trainer)
    return trainer


class Rollouts:
    """A trainer that answers requests.

    With a rule that has drafts, each answer is the second of two passes: the first one is by the earlier policy.

    Args:
        rule: of `ReuseRollout`, or `OWN`.
        current: folder of the policy.
        earlier: folder of the earlier policy.
        vllm: whether TRL's vLLM samples.
    """

    def __init__(self, rule: str, current: str, earlier: str, vllm: bool) -> None:
        self.rule, self.vllm, self.calls = rule, vllm, 0
        self.model = AutoModelForCausalLM.from_pretrained(current, trust_remote_code=False)
        self.weights = [
            AutoModelForCausalLM.from_pretrained(each, trust_remote_code=False).state_dict()
            for each in (earlier, current)
        ]
        self._with_vllm: GRPOTrainer | None = None
        torch.manual_seed(0)

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[Any]:
        """Tokens, and log-probabilities in nats or None, of `samples` responses to each prompt, in a row."""
        self.calls += 1
        settings = {"max_completion_length": max_tokens, "num_generations": samples}
        trainer = self._trainer(prompts, per_device_train_batch_size=samples, **settings)
        rows = [prompt for prompt in prompts for _ in range(samples)]
        for weights in self.weights[-1:] if self.rule in (OWN, "none") else self.weights:
            self.model.load_state_dict(weights)
            trainer._last_loaded_step = -1  # makes TRL copy the weights to vLLM
            found = responses(trainer, rows)
        return list(found)

    def _trainer(self, prompts: list[list[int]], **settings: Any) -> GRPOTrainer:
        """Trainer with a new seed and no drafts, so that calls are independent."""
        top = {"top": MAX_LOGPROBS} if self.vllm and self.rule in ("residual", "block") else {}
        rollout = None if self.rule == OWN else ReuseRollout(self.rule, **top)
        if not self.vllm:
            return trainer_of(self.model, prompts, rollout, seed=self.calls, **settings)
        # vLLM can be started once in a process, so its trainer is used again.
        self._with_vllm = self._with_vllm or with_vllm(self.model, prompts, **settings)
        assert all(getattr(self._with_vllm.args, name) == value for name, value in settings.items())
        self._with_vllm.args.seed, self._with_vllm.rollout_func = self.calls, rollout
        return self._with_vllm


def main(rule: str, current: str, earlier: str, engine: str) -> None:
    """Answer requests from standard input, one JSON object a line with the arguments of `Rollouts.__call__`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to file descriptor 1
    rollouts = Rollouts(rule, current, earlier, engine == "vllm")
    for line in sys.stdin:
        print(json.dumps(rollouts(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
