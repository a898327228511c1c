"""Verification of drafts in chunks by the in-process engine, compared with that of whole drafts, for several cuts.

`python -m benchmarks chunks`. The cut of a draft is sampled near a share of its length, or is its end if it is kept
whole. A session requests chunks up to the one with the cut, as strategies do; nothing is decoded. The gain is tokens
that are not computed, the loss is passes over fewer tokens. Seconds are processor seconds of one thread.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.engine import tiny_model
from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.engine import TorchEngine

ROUNDS, PROMPT = 3, 24
SHARES: dict[str, tuple[float, ...]] = {
    "cut at 10 %": (0.1,),
    "cut at 50 %": (0.5,),
    "cut at 90 %": (0.9,),
    "mixed": (0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
    "most kept whole": (1.0, 1.0, 1.0, 1.0, 0.5),
    "all kept whole": (1.0,),
}
"""Kept shares that drafts take in turn."""
SPREAD = 0.08
"""Standard deviation of a cut, as a share of the draft; 1.0 is the whole."""


def larger_model() -> Qwen3ForCausalLM:
    """A model whose head and trunk weigh about the same, as those of small language models do."""
    config = Qwen3Config(
        vocab_size=16_384,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        max_position_embeddings=1024,
    )
    return Qwen3ForCausalLM(config).eval()


CASES: dict[str, tuple[Callable[[], torch.nn.Module], int, int, tuple[int, ...]]] = {
    "tiny preset": (tiny_model, 32, 64, (16, 32)),
    "larger model": (larger_model, 8, 512, (32, 64, 128, 256)),
}
"""Model, drafts, tokens of each, and chunks that are tried."""


class Work:
    """The same drafts and cuts for all lengths of chunks."""

    def __init__(self, model: torch.nn.Module, drafts: int, length: int, kept: tuple[float, ...]) -> None:
        numbers, vocabulary = np.random.default_rng(0), model.config.vocab_size
        self.prompts = numbers.integers(2, vocabulary, (drafts, PROMPT)).tolist()
        self.drafts = numbers.integers(2, vocabulary, (drafts, length)).astype(np.int32)
        shares = np.resize(kept, drafts)
        near = np.clip(shares + SPREAD * numbers.normal(size=drafts), 0, 1 - 1 / length)
        self.cuts = np.where(shares == 1, length, (near * length).astype(int)).tolist()
        self.engine = TorchEngine(model, stops=(), max_length=PROMPT + length, max_rows=drafts)

    def verify(self, chunk: int | None) -> None:
        """Score all drafts up to their cuts."""
        self.engine.chunk = chunk
        self.engine.run(*(self._one(number) for number in range(len(self.drafts))))

    async def _one(self, number: int) -> None:
        draft, known = self.drafts[number], 0
        async with self.engine.session(self.prompts[number]) as session:
            while known <= self.cuts[number] and known < len(draft):
                known += len((await session.score(draft, scored=known)).log_probs)

    def by(self, lengths: dict[str, int | None]) -> dict[str, Callable[[], None]]:
        """Verification in chunks of these lengths, by name."""
        return {name: partial(self.verify, chunk) for name, chunk in lengths.items()}

    def scored(self, chunk: int | None) -> float:
        """Scored tokens over those of the drafts."""
        before = self.engine.usage.scored_tokens
        self.verify(chunk)
        return (self.engine.usage.scored_tokens - before) / self.drafts.size


def main() -> None:
    """Print a table for each model and place of the cut."""
    torch.set_num_threads(1)
    for case, (make, drafts, length, chunks) in CASES.items():
        torch.manual_seed(0)
        model = make()
        for where, kept in SHARES.items():
            work, title = Work(model, drafts, length, kept), f"chunks, {case}, {where}"
            lengths = {"whole drafts": None, **{f"chunks of {chunk}": chunk for chunk in chunks}}
            measured = seconds(title, work.by(lengths), ROUNDS, time.process_time)
            print(f"{title}: {drafts} drafts x {length} tokens after {PROMPT}, processor seconds")
            for name, values in measured.items():
                share = work.scored(lengths[name])
                print(f"{line(name, values)}  {ratio(values, measured['whole drafts']):5.2f} x  {share:5.0%} scored")
