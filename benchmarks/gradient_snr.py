"""Signal-to-noise ratio of RLOO's gradient of single prompts, beside SPEED-RL's bound at their pass rates.

The gradient is equation 7 of arXiv 2506.09016 by all parameters of a tiny model on the arithmetic task. Prompts are
chosen by rates from a few responses; the rates in the table are from fresh ones, and the gradients from others again.

`python -m benchmarks.gradient_snr [model folder]`; without a folder it warm-starts a smaller model.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from redraft.config.data import ArithmeticProblems
from redraft.config.model import TinyModel, WarmStart
from redraft.engines.torch.engine import TorchEngine
from redraft.lab.theory import estimated_snr, leave_one_out_advantages, snr_bound
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Rollout
from redraft.tasks.arithmetic import Sum, draw
from redraft.tasks.rewards import rewards_of
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.local.batch import Batch
from redraft.train.warm_start import warm_start

SIZE = 8
"""Responses in a group."""
GROUPS = 256
"""Independent groups of a prompt, each with a gradient."""
RESPONSES = 2048
"""Responses that a pass rate is estimated from."""
CANDIDATES, SCREENED = 256, 32
"""Prompts that are chosen from, and responses to each of them."""
TARGETS = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Pass rates that prompts are chosen for."""
LIMIT = 64
"""Longest response, tokens."""
SMALLER = TinyModel(
    hidden_size=64, heads=2, intermediate_size=192,
    warm_start=WarmStart(
        steps=550, guess_share=0.05, error_share=0.02, final_steps=0,
        data=ArithmeticProblems(min_terms=2, max_terms=4),
    ),
)  # fmt: skip
DATA = ArithmeticProblems(size=CANDIDATES, min_terms=2, max_terms=7, split="held-out")


class Policy:
    """A model that answers problems."""

    def __init__(self, model: Any, tokenizer: Any, problems: Sequence[Sum]) -> None:
        self.model, self.tokenizer, self.problems = model.eval(), tokenizer, problems
        self.prompts = tokenizer([problem.prompt for problem in problems])["input_ids"]
        longest = max(map(len, self.prompts)) + LIMIT
        stops = models.stop_tokens(model, tokenizer)
        self.engine = TorchEngine(model, stops=stops, max_length=longest, max_batched_tokens=2048)

    def responses(self, prompt: int, purpose: str, count: int) -> list[Rollout]:
        """Independent responses to a prompt; those of different purposes are too."""
        return self.engine.run(*(self._response(prompt, purpose, sample) for sample in range(count)))

    async def _response(self, prompt: int, purpose: str, sample: int) -> Rollout:
        draws = Inversion(uniforms(0, f"gradient snr/{purpose}", prompt, sample, count=LIMIT))
        async with self.engine.session(self.prompts[prompt]) as session:
            new = await session.decode(np.zeros(0, np.int32), LIMIT, draws)
        return Rollout(prompt, sample, new.tokens, new.log_probs, np.zeros(len(new.tokens), np.int32), new.finish)

    def rewards(self, responses: Sequence[Rollout]) -> np.ndarray:
        """1 for each right response to one prompt, else 0: float64 (responses,)."""
        texts = self.tokenizer.batch_decode([r.tokens for r in responses], skip_special_tokens=True)
        return np.array(rewards_of(texts, str(self.problems[responses[0].prompt].answer), "last_box")[0])

    def pass_rate(self, prompt: int, purpose: str, count: int) -> float:
        """Share of right responses."""
        return float(self.rewards(self.responses(prompt, purpose, count)).mean())

    def gradient(self, group: Sequence[Rollout], rewards: np.ndarray) -> torch.Tensor:
        """RLOO's gradient of a group (equation 7) by all parameters, float32 (parameters,)."""
        prompt = self.prompts[group[0].prompt]
        batch = Batch.of([prompt] * len(group), group, self.tokenizer.pad_token_id, torch.device("cpu"))
        log_probs, _ = batch.log_probs(self.model)
        objective = (torch.from_numpy(leave_one_out_advantages(rewards)) * log_probs.sum(1)).mean()
        return torch.cat([part.flatten() for part in torch.autograd.grad(objective, list(self.model.parameters()))])


def warm_started() -> tuple[Any, Any]:
    """The smaller model and its tokenizer."""
    tokenizer = make_tokenizer()
    model = models.initialise(SMALLER, tokenizer)
    warm_start(model, tokenizer, SMALLER.warm_start, SMALLER.warm_start.data, lambda *_: None)
    return model, tokenizer


def chosen(policy: Policy) -> list[int]:
    """The prompt nearest to each target, each prompt once, of those whose rate is neither 0 nor 1."""
    every = {prompt: policy.pass_rate(prompt, "screening", SCREENED) for prompt in range(len(policy.prompts))}
    rates = {prompt: rate for prompt, rate in every.items() if 0 < rate < 1}
    nearest = []
    for target in TARGETS:
        nearest.append(min(rates, key=lambda prompt: abs(rates[prompt] - target)))
        del rates[nearest[-1]]
    return nearest


def measured(policy: Policy, prompt: int) -> dict[str, object]:
    """A prompt's line of the table."""
    rate = policy.pass_rate(prompt, "pass rate", RESPONSES)
    responses = policy.responses(prompt, "gradients", GROUPS * SIZE)
    rewards = policy.rewards(responses)
    groups = [slice(start, start + SIZE) for start in range(0, len(responses), SIZE)]
    gradients = torch.stack([policy.gradient(responses[group], rewards[group]) for group in groups])
    snr, error = estimated_snr(products(gradients).numpy())
    bound = snr_bound(rate, SIZE)
    return {
        "problem": policy.problems[prompt].prompt,
        "pass rate": f"{rate:.3f} ± {(rate * (1 - rate) / RESPONSES) ** 0.5:.3f}",
        "SNR": f"{snr:.3f} ± {error:.3f}",
        "bound": bound,
        "SNR / bound": snr / bound if bound else float("nan"),
    }


def products(gradients: torch.Tensor) -> torch.Tensor:
    """Inner products of the rows, float64, from slices of the columns, which take less memory in float64."""
    return sum((part.double() @ part.double().T for part in gradients.split(4096, dim=1)), torch.zeros(()))


def main(folder: str | None = None) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    model, tokenizer = models.load(Path(folder)) if folder else warm_started()
    problems = draw(DATA.size, DATA.min_terms, DATA.max_terms, DATA.signs, DATA.split, DATA.seed)
    policy = Policy(model, tokenizer, problems)
    lines = [measured(policy, prompt) for prompt in chosen(policy)]
    print(f"\n## Signal-to-noise ratio of RLOO's gradient: {GROUPS} groups of {SIZE} responses a prompt\n")
    print(pd.DataFrame(lines).sort_values("pass rate").to_markdown(index=False, floatfmt=".3f"))


if __name__ == "__main__":
    main(*sys.argv[1:2])
