"""Scoring of drafts by the in-process engine, against its limit and against logits of all positions.

`python -m benchmarks scoring`. The limit is the minimum work of any verification: the trunk over prompts and drafts,
and the head's product over the drafts' positions. Seconds are processor seconds of one thread; memory is the peak above
that of the model, of a process that does nothing else.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.head import LOGITS_AT_ONCE, hidden_states

PROMPT, DRAFT, DRAFTS, ROUNDS = 64, 192, 8, 5
CASES = tuple((size, dtype) for size in (32_768, 49_152, 151_936) for dtype in (torch.float32, torch.bfloat16))
"""Vocabulary and precision of each."""


class Work:
    """The same drafts for each alternative: their count, the length of their prompts, and their length in tokens."""

    def __init__(self, model: Any, drafts: int = DRAFTS, prompt: int = PROMPT, length: int = DRAFT) -> None:
        self.model, self.prompt, room = model, prompt, prompt + length
        self.engine = TorchEngine(model, stops=(), max_length=room, max_rows=drafts, max_batched_tokens=8 * room)
        numbers, vocabulary = np.random.default_rng(0), model.config.vocab_size
        self.prompts = numbers.integers(2, vocabulary, (drafts, prompt)).tolist()
        self.drafts = numbers.integers(2, vocabulary, (drafts, length)).astype(np.int32)
        tokens = [[*p, *d.tolist()] for p, d in zip(self.prompts, self.drafts, strict=True)]
        self.tokens = torch.tensor(tokens, device=model.device)

    def limit(self) -> None:
        """The trunk, and the head's product a chunk at a time."""
        with torch.inference_mode():
            size = max(1, LOGITS_AT_ONCE[self.model.device.type] // self.model.config.vocab_size)
            for tokens in self.tokens.split(8):  # as many as the engine takes into one pass
                hidden = hidden_states(self.model, input_ids=tokens)[:, self.prompt - 1 : -1].flatten(0, 1)
                for chunk in hidden.split(size):
                    self.model.lm_head(chunk)

    def score(self) -> None:
        """The engine."""

        async def one(number: int) -> None:
            async with self.engine.session(self.prompts[number]) as session:
                await session.score(self.drafts[number])

        self.engine.run(*map(one, range(len(self.drafts))))

    def all_logits(self) -> None:
        """The model's logits of all positions, and their log-softmax."""
        with torch.inference_mode():
            for tokens in self.tokens.split(8):
                logits = self.model(input_ids=tokens).logits[:, :-1].float()
                logits.log_softmax(-1).gather(2, tokens[:, 1:, None])

    @property
    def alternatives(self) -> dict[str, Callable[[], None]]:
        """By name, the limit first."""
        return {"limit: trunk and head's product": self.limit, "engine": self.score, "all logits": self.all_logits}


def made(vocabulary: int, dtype: torch.dtype) -> Work:
    """The work of one case, for one thread of a processor."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=1024,
        max_position_embeddings=512,
    )
    return Work(Qwen3ForCausalLM(config).to(dtype).eval())


def most_memory() -> float:
    """MiB that this process has held at most."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def peak(vocabulary: int, dtype: torch.dtype, name: str) -> float:
    """MiB above those of the model, of one alternative."""
    work = made(vocabulary, dtype)
    Path("/proc/self/clear_refs").write_text("5")  # the most from here on
    before = most_memory()
    work.alternatives[name]()
    return most_memory() - before


def main() -> None:
    """Print a table for each case."""
    for vocabulary, dtype in CASES:
        title = f"scoring, vocabulary {vocabulary:,}, {str(dtype).removeprefix('torch.')}"
        measured = seconds(title, made(vocabulary, dtype).alternatives, ROUNDS, time.process_time)
        print(f"{title}: {DRAFTS} drafts x {DRAFT} tokens after {PROMPT}, processor seconds")
        limit = next(iter(measured.values()))
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            for name, values in measured.items():
                memory = processes.submit(peak, vocabulary, dtype, name).result()
                rate = DRAFTS * DRAFT / np.median(values)
                print(f"{line(name, values)}  {rate:8,.0f} tok/s  {ratio(values, limit):5.2f} x  {memory:7,.0f} MiB")
