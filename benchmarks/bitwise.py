"""Whether answers of an engine depend on the batch, to the last bit: one command for a GPU.

`python -m benchmarks.bitwise` scores drafts and decodes after a part of them, each session alone and then in random
batches: subsets in random order, with pauses, and with so small a cache that requests are preempted. Where vLLM's build
for GPUs is installed, it takes vLLM with batch-invariant kernels, as `engine.bitwise` does under verl; elsewhere the
in-process engine. The exit code is 1 if an answer differs.

`python -m benchmarks.bitwise --records FOLDER FOLDER` compares the records of two runs of one cell, for example with
other values of `engine.max_rows`, without what says how a step was computed.
"""

import argparse
import asyncio
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from benchmarks.gpu import SHAPES, Shape, device_name, model_of
from redraft.engines.torch.engine import TorchEngine
from redraft.files import read_json_lines
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import stream, uniforms

Answers = dict[int, list[np.ndarray]]
TINY = replace(SHAPES["tiny"], config=Qwen3Config(**SHAPES["tiny"].config.to_dict() | {"head_dim": 32}))
"""vLLM's build for processors has no heads of 16."""
HOW = {"seconds", "grading_seconds", "tokens_verified", "tokens_cached", "tail_share"}
"""Fields of a record that say how a step was computed."""
PAUSES = (0, 0, 3, 30)
"""Turns of the event loop that a session waits between its requests."""
CACHED_SESSIONS = 3
"""Sessions of full length whose keys and values fit into the smaller cache of vLLM."""


class Work:
    """The sessions of a shape: prompt, draft and uniforms by number."""

    def __init__(self, shape: Shape, sessions: int) -> None:
        self.shape, self.sessions = shape, sessions

    def parts(self, number: int) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Prompt, draft and uniforms of a session."""
        rng = stream(0, "bitwise", number)
        draft = rng.integers(2, self.shape.config.vocab_size, int(rng.integers(2, self.shape.tokens)))
        prompt = rng.integers(2, self.shape.config.vocab_size, int(rng.integers(1, self.shape.prompt_tokens)))
        return prompt.tolist(), draft.astype(np.int32), uniforms(0, "bitwise/u", number, count=self.shape.tokens)

    async def serve(self, engine: Any, number: int, pause: int) -> list[np.ndarray]:
        """Score a draft, and decode after a part of it."""
        prompt, draft, draws = self.parts(number)
        kept = draft[: number % len(draft)]
        async with engine.session(prompt) as session:
            scores = await session.score(draft)
            for _ in range(pause):
                await asyncio.sleep(0)
            answer = await session.decode(kept, self.shape.tokens - len(kept), Inversion(draws))
        return [scores.log_probs, answer.tokens, answer.log_probs]

    def answers(self, opened: tuple[Any, Any], numbers: Sequence[int], random: Random) -> Answers:
        """Answers of a batch of sessions."""
        engine, runner = opened
        return dict(
            zip(numbers, runner.run(*(self.serve(engine, n, random.choice(PAUSES)) for n in numbers)), strict=True)
        )


@contextmanager
def in_process(work: Work, model: Any, rows: int) -> Iterator[tuple[Any, Any]]:
    """The in-process engine, which also runs the sessions."""
    engine = TorchEngine(model, stops=(), max_length=_length(work.shape), max_rows=rows, bitwise=True)
    yield engine, engine


@contextmanager
def in_vllm(work: Work, model: Any, rows: int) -> Iterator[tuple[Any, Any]]:
    """vLLM in this process with the model; fewer rows have the smaller cache, in which requests are preempted."""
    os.environ["VLLM_BATCH_INVARIANT"] = str(int(torch.cuda.is_available()))
    from redraft.engines.vllm.engine import VLLMEngine
    from redraft.engines.vllm.local import LocalVLLM

    config, length = work.shape.config, _length(work.shape)
    token = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize // 2
    sessions = work.sessions if rows == work.sessions else CACHED_SESSIONS
    settings: dict[str, Any] = {
        "dtype": str(model.dtype).rpartition(".")[2],
        "cache_bytes": token * sessions * (length + 64),
    }
    if torch.cuda.is_available():
        settings |= {"enforce_eager": False, "enable_chunked_prefill": True, "block_size": None}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        vllm = LocalVLLM(folder, length, max_rows=rows, **settings)
        try:
            yield VLLMEngine(vllm, (), length), vllm
        finally:
            vllm.close()


def _length(shape: Shape) -> int:
    """Tokens of the longest sequence, with one to spare for scoring."""
    return shape.prompt_tokens + shape.tokens + 1


def different(found: Answers, alone: Answers) -> tuple[int, float]:
    """Number of sessions with another answer than alone, and the largest difference of their log-probabilities."""
    others = [n for n in found if not all(map(np.array_equal, found[n], alone[n]))]
    gaps = [
        float(np.abs(a - b).max())
        for n in others
        for a, b in zip(found[n], alone[n], strict=True)
        if a.dtype.kind == "f" and len(a) == len(b)
    ]
    return len(others), max(gaps, default=0.0)


def check(work: Work, open_engine: Any, batches: int) -> int:
    """Compare random batches with sessions alone, and print the result; the number of other answers."""
    random, alone, found, count, gap = Random(0), Answers(), 0, 0, 0.0
    for rows in (work.sessions, max(work.sessions // 2, 1)):
        with open_engine(rows=rows) as opened:
            for number in () if alone else range(work.sessions):
                alone |= work.answers(opened, [number], random)
            for _ in range(batches // 2):
                numbers = random.sample(range(work.sessions), random.randint(1, work.sessions))
                others, largest = different(work.answers(opened, numbers, random), alone)
                found, count, gap = found + others, count + len(numbers), max(gap, largest)
    print(
        f"{batches} batches of up to {work.sessions} sessions on {device_name()}: {found} of {count} answers differ",
        end="",
    )
    print(f", by {gap:.1e} nats at most" if found else " from those alone")
    return found


def compare_records(first: Path, second: Path) -> int:
    """Print the fields in which the records of two runs differ; the number of differing steps."""
    one, other = (read_json_lines(folder / "steps.jsonl") for folder in (first, second))
    found = 0
    for a, b in zip(one, other, strict=False):
        fields = [name for name in a.keys() | b.keys() if name not in HOW and a.get(name) != b.get(name)]
        found += bool(fields)
        if fields:
            print(f"step {a['step']}: {', '.join(sorted(fields))}")
    print(f"{found} of {min(len(one), len(other))} steps differ; {len(one)} and {len(other)} steps are recorded")
    return found + (len(one) != len(other))


def main() -> int:
    """Compare what the command line says; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bitwise", description=__doc__)
    gpu = torch.cuda.is_available() and any(importlib.metadata.distributions(name="vllm"))
    parser.add_argument("--engine", choices=["torch", "vllm"], default="vllm" if gpu else "torch")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b" if gpu else "tiny")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=32 if gpu else 8)
    parser.add_argument("--records", type=Path, nargs=2, metavar="FOLDER", help="compare two runs instead")
    arguments = parser.parse_args()
    if arguments.records:
        return int(compare_records(*arguments.records) > 0)
    work = Work((SHAPES | {"tiny": TINY})[arguments.shape], arguments.sessions)
    torch.set_num_threads(1)
    model = model_of(work.shape)
    open_engine = partial(in_vllm if arguments.engine == "vllm" else in_process, work, model)
    return int(check(work, open_engine, arguments.batches) > 0)


if __name__ == "__main__":
    sys.exit(main())
