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
from redraft.engines.torch_engine import TorchEngine
from redraft.rollout.engine import Inversion
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
    """The same work for each alternative: a batch of prompts, with a fixed number of tokens per response."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.model = tiny_model()
        self.prompts = [rng.integers(2, 44, int(length)) for length in rng.integers(PROMPTS[0], PROMPTS[1] + 1, ROWS)]
        self.drafts = rng.integers(2, 44, (ROWS, TOKENS)).astype(np.int32)
        self.engine = TorchEngine(
            self.model, stops=(), max_length=PROMPTS[1] + TOKENS, max_rows=ROWS, max_batched_tokens=2048
        )
        width = max(map(len, self.prompts))
        self.inputs = torch.tensor([[0] * (width - len(p)) + p.tolist() for p in self.prompts])
        self.mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in self.prompts])

    async def _decode(self, row: int) -> None:
        async with self.engine.session(self.prompts[row]) as session:
            draws = Inversion(uniforms(0, "benchmark", row, count=TOKENS))
            continuation = await session.decode(np.zeros(0, dtype=np.int32), TOKENS, draws)
        assert len(continuation.log_probs) == TOKENS

    async def _score(self, row: int) -> None:
        async with self.engine.session(self.prompts[row]) as session:
            await session.score(self.drafts[row])

    def decode(self) -> None:
        """Sample responses by the engine."""
        self.engine.run(*(self._decode(i) for i in range(ROWS)))

    def score(self) -> None:
        """Score drafts of the same length by the engine."""
        self.engine.run(*(self._score(i) for i in range(ROWS)))

    def generate(self, log_probs: bool) -> None:
        """Sample responses by transformers."""
        settings = GenerationConfig(
            do_sample=True,
            min_new_tokens=TOKENS,
            max_new_tokens=TOKENS,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=log_probs,
        )
        with torch.inference_mode():
            output = self.model.generate(self.inputs, attention_mask=self.mask, generation_config=settings)
            tokens = output.sequences[:, self.inputs.shape[1] :]
            assert tokens.shape == (ROWS, TOKENS)
            if log_probs:
                torch.stack(output.logits, 1).log_softmax(-1).gather(2, tokens[..., None])


def main() -> None:
    """Print tokens per second, and ratios."""
    torch.set_num_threads(1)
    work = Work()
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
