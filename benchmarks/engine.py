"""Speed of the in-process engine against transformers' `generate`, and of its verification against its decoding.

A rollout needs the log-prob of each sampled token. The engine always returns them. `generate` is timed with log-probs
(its logits are kept and turned into log-probs at the end) and, for information, without.
"""

from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from benchmarks.side_by_side import line, ratio, seconds
from redraft.config import TinyModel
from redraft.engines.torch.engine import TorchEngine
from redraft.rollout.engine import Continuation, Inversion
from redraft.rollout.streams import uniforms
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

ROWS = TOKENS = 128
PROMPTS = (9, 21)
"""Tokens of the shortest and the longest prompt, as in the tiny task; `generate` needs them padded on the left."""


def tiny_model() -> Any:
    """The tiny preset's architecture with random weights, without an end of sequence at which `generate` would stop."""
    model = models.initialise(TinyModel(), make_tokenizer()).eval()
    model.generation_config.eos_token_id = None
    return model


class Work:
    """The same work for each alternative: `rows` prompts, and exactly `tokens` tokens a response of a model without
    an end of sequence. `passes` are the tokens of a prefill pass at most."""

    def __init__(
        self, model: Any, rows: int = ROWS, tokens: int = TOKENS, prompts: tuple[int, int] = PROMPTS, passes: int = 2048
    ) -> None:
        numbers, vocabulary = np.random.default_rng(0), model.config.vocab_size
        self.model, self.rows, self.count = model, rows, tokens
        lengths = numbers.integers(prompts[0], prompts[1] + 1, rows)
        self.prompts = [numbers.integers(2, vocabulary, int(length)) for length in lengths]
        self.drafts = numbers.integers(2, vocabulary, (rows, tokens)).astype(np.int32)
        self.engine = TorchEngine(
            model, stops=(), max_length=prompts[1] + tokens, max_rows=rows, max_batched_tokens=passes
        )
        width = max(map(len, self.prompts))
        padded = [([0] * (width - len(p)) + p.tolist(), [0] * (width - len(p)) + [1] * len(p)) for p in self.prompts]
        self.inputs, self.mask = torch.tensor(padded, device=model.device).unbind(1)

    async def _decode(self, row: int) -> Continuation:
        async with self.engine.session(self.prompts[row]) as session:
            draws = Inversion(uniforms(0, "benchmark", row, count=self.count))
            continuation = await session.decode(np.zeros(0, dtype=np.int32), self.count, draws)
        assert len(continuation.log_probs) == self.count
        return continuation

    async def _score(self, row: int) -> None:
        async with self.engine.session(self.prompts[row]) as session:
            await session.score(self.drafts[row])

    def decode(self) -> list[Continuation]:
        """Sample responses by the engine."""
        return self.engine.run(*(self._decode(i) for i in range(self.rows)))

    def score(self) -> None:
        """Score drafts of the same length by the engine."""
        self.engine.run(*(self._score(i) for i in range(self.rows)))

    def generate(self, log_probs: bool) -> None:
        """Sample responses by transformers."""
        settings = GenerationConfig(
            do_sample=True,
            min_new_tokens=self.count,
            max_new_tokens=self.count,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=log_probs,
        )
        with torch.inference_mode():
            output = self.model.generate(self.inputs, attention_mask=self.mask, generation_config=settings)
            tokens = output.sequences[:, self.inputs.shape[1] :]
            assert tokens.shape == (self.rows, self.count)
            if log_probs:
                torch.stack(output.logits, 1).log_softmax(-1).gather(2, tokens[..., None])


def main() -> None:
    """Print tokens per second, and ratios."""
    torch.set_num_threads(1)
    work = Work(tiny_model())
    measured = seconds(
        "engine",
        {
            "generate, tokens and log-probs": lambda: work.generate(log_probs=True),
            "generate, tokens only": lambda: work.generate(log_probs=False),
            "engine, decoding": work.decode,
            "engine, verification": work.score,
        },
    )
    print(f"engine: {ROWS} responses x {TOKENS} tokens, prompts of {PROMPTS[0]} to {PROMPTS[1]}, one thread")
    for name, values in measured.items():
        print(line(name, [ROWS * TOKENS / value for value in values], "tok/s"))
    decoding = measured["engine, decoding"]
    for name in ("generate, tokens and log-probs", "generate, tokens only"):
        print(f"  engine / {name}: {ratio(measured[name], decoding):.2f}x as fast")
    print(f"  verification / decoding: {ratio(decoding, measured['engine, verification']):.2f}x as fast")
