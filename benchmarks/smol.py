"""Throughput of the preset smol's model in the in-process engine, by precision and threads, and cost of rounding.

`python -m benchmarks.smol [--tokens N]`. Two processes of one thread each take half of the responses each; one process
of two threads takes all. Rounding is measured by verification: the policy scores responses that it has just decoded, so
any acceptance other than 1 is due to the precision alone. Skipped if the model is not available.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.side_by_side import line, seconds
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.layout import Layout
from redraft.rollout.engine import Continuation, Inversion, Scores
from redraft.rollout.streams import uniforms
from redraft.tasks.prompts import encode
from redraft.train import models
from redraft.train.initial_policy import make_model
from redraft.train.pretrained.precision import DTYPES

PRESET, ROLE = "smol", "qwen3-1.7b-base"
ROWS, PROMPT, TOKENS, ROUNDS = 32, 64, 32, 2
PROCESSES = {"two processes": 2, "one process, two threads": 1}
KINDS = ("prefill", "score", "decode")


class Work:
    """A process's part of the work: rows of prompts and drafts, over the model in one precision."""

    def __init__(self, folder: Path, dtype: str, threads: int, tokens: int) -> None:
        torch.set_num_threads(threads)
        self.model, self.tokenizer = models.load(folder, dtype=DTYPES[dtype])
        self.tokens, rng = tokens, np.random.default_rng(0)
        self.prompts = rng.integers(20, len(self.tokenizer), (ROWS, PROMPT)).tolist()
        self.drafts = rng.integers(20, len(self.tokenizer), (ROWS, tokens)).astype(np.int32)
        self.engine = TorchEngine(self.model, stops=(), max_length=2 * PROMPT + tokens, max_rows=ROWS)

    def prefill(self, rows: range) -> int:
        """Score one token after each prompt; returns the number of tokens of the pass."""
        self.engine.run(*(self._score(self.prompts[row], self.drafts[row, :1]) for row in rows))
        return len(rows) * (PROMPT + 1)

    def score(self, rows: range) -> int:
        """Score drafts after their prompts; returns the number of draft tokens."""
        self.engine.run(*(self._score(self.prompts[row], self.drafts[row]) for row in rows))
        return len(rows) * self.tokens

    def decode(self, rows: range) -> int:
        """Sample responses; returns their tokens."""
        self.engine.run(*(self._decode(self.prompts[row], row) for row in rows))
        return len(rows) * self.tokens

    def rounding(self, rows: range) -> np.ndarray:
        """Log-probabilities of responses as they are scored less those of decoding, float32 (tokens,), nats."""
        prompts = encode(self.tokenizer, [f"Write a short story about the number {row}." for row in rows])
        found = self.engine.run(*(self._decode(prompt, row) for row, prompt in zip(rows, prompts, strict=True)))
        scored = self.engine.run(*(self._score(p, d.tokens) for p, d in zip(prompts, found, strict=True)))
        return np.concatenate([s.log_probs - d.log_probs for s, d in zip(scored, found, strict=True)])

    async def _score(self, prompt: Sequence[int], draft: np.ndarray) -> Scores:
        async with self.engine.session(prompt) as session:
            return await session.score(draft)

    async def _decode(self, prompt: Sequence[int], row: int) -> Continuation:
        async with self.engine.session(prompt) as session:
            draws = Inversion(uniforms(0, "smol", row, count=self.tokens))
            return await session.decode(np.zeros(0, np.int32), self.tokens, draws)


WORK: list[Work] = []
"""The work of this process, if it is a worker."""


def open_work(*arguments: Any) -> None:
    """Load a process's part of the work."""
    WORK.append(Work(*arguments))


def do(kind: str, rows: range) -> Any:
    """Do one kind of work in a worker."""
    return getattr(WORK[0], kind)(rows)


@contextmanager
def workers(folder: Path, dtype: str, count: int, tokens: int) -> Iterator[list[ProcessPoolExecutor]]:
    """Processes that have loaded the model."""
    with ExitStack() as stack:
        arguments = (folder, dtype, 2 // count, tokens)
        pools = [ProcessPoolExecutor(1, get_context("spawn"), open_work, arguments) for _ in range(count)]
        yield [stack.enter_context(pool) for pool in pools]


def together(pools: Sequence[ProcessPoolExecutor], kind: str) -> int:
    """Tokens of one kind of work, its rows dealt to all processes."""
    each = ROWS // len(pools)
    futures = [pool.submit(do, kind, range(i * each, (i + 1) * each)) for i, pool in enumerate(pools)]
    return sum(future.result() for future in futures)


def report(folder: Path, tokens: int) -> None:
    """Print tokens a second of each kind, precision and number of processes, and what rounding does."""
    with ExitStack() as stack:
        of = {
            f"{dtype}, {name}": stack.enter_context(workers(folder, dtype, count, tokens))
            for dtype in ("float32", "bfloat16")
            for name, count in PROCESSES.items()
        }
        for kind in KINDS:
            done = {name: together(pools, kind) for name, pools in of.items()}
            work = {name: lambda pools=pools, kind=kind: together(pools, kind) for name, pools in of.items()}
            print(f"smol, {kind}: {ROWS} responses, prompts of {PROMPT}, {tokens} tokens each")
            for name, values in seconds(f"smol, {kind}", work, ROUNDS).items():
                print(line(name, [done[name] / value for value in values], "tok/s"))
        for dtype in ("float32", "bfloat16"):
            gaps = of[f"{dtype}, two processes"][0].submit(do, "rounding", range(8)).result()
            accepted = float(np.minimum(1, np.exp(gaps)).mean())
            print(
                f"  {dtype}: scores and decoding differ by {statistics.mean(map(abs, gaps)):.1e} nats a token; "
                f"at ℓ = 1 an unchanged policy accepts {accepted:.4f} of its tokens"
            )


def main() -> None:
    """Make the model if the preset has not, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a response")
    tokens = parser.parse_args().tokens
    made = Layout(PRESET).model(ROLE)
    if made.is_dir():
        report(made, tokens)
        return
    with TemporaryDirectory() as folder:
        try:
            make_model(PRESET, ROLE, Path(folder) / "model")
        except UserError as error:
            print(f"smol: skipped, since the model cannot be had ({error.message})")
            return
        report(Path(folder) / "model", tokens)


if __name__ == "__main__":
    main()
