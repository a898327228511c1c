"""Sampling a policy on a benchmark. Generations are saved with everything grading needs, and not graded here."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from redraft.config.data import Benchmark
from redraft.config.trainer import Engine
from redraft.engines.torch_engine import TorchEngine
from redraft.files import atomic
from redraft.rollout.engine import Continuation
from redraft.rollout.streams import uniforms
from redraft.tasks.problems import load_problems
from redraft.tasks.prompts import encode
from redraft.train import models

_NOTHING = np.zeros(0, dtype=np.int32)


def generate(
    policies: dict[int, Path], benchmarks: dict[str, Benchmark], seed: int, settings: Engine, file: Path
) -> None:
    """Sample policies on every benchmark and write one Parquet file.

    All of them draw from the same streams, so that their differences are not of sampling alone.

    Args:
        policies: steps of training to a folder in transformers' format.
        benchmarks: what to sample, by name.
        seed: of the sampling streams.
        settings: how to execute.
        file: where to write; one line a sample, columns as `redraft.evaluate.grade` reads them, tokens as a count.
    """
    import torch

    torch.set_num_threads(settings.threads)
    frames = []
    for step, policy in sorted(policies.items()):
        model, tokenizer = models.load(policy)
        model.to(models.device_of(settings.device))
        of_step = [_sample(name, b, model, tokenizer, seed, settings) for name, b in benchmarks.items()]
        frames += [frame.assign(step=step) for frame in of_step]
    with atomic(file) as temporary:
        pd.concat(frames).to_parquet(temporary, index=False)


def _sample(name: str, benchmark: Benchmark, model: Any, tokenizer: Any, seed: int, settings: Engine) -> pd.DataFrame:
    problems = load_problems(benchmark.data)
    prompts = encode(tokenizer, [problem.prompt for problem in problems])
    engine = TorchEngine(
        model, stops=models.stop_tokens(model, tokenizer),
        max_length=max(map(len, prompts)) + benchmark.max_new_tokens,
        max_rows=settings.max_rows, max_batched_tokens=settings.max_batched_tokens,
        temperature=benchmark.temperature, top_p=benchmark.top_p,
    )  # fmt: skip

    async def one(problem: int, sample: int) -> Continuation:
        u = uniforms(seed, f"evaluate/{name}", problem, sample, count=benchmark.max_new_tokens)
        async with engine.session(prompts[problem]) as session:
            return await session.decode(_NOTHING, benchmark.max_new_tokens, u)

    async def everything(problem: int) -> list[Continuation]:
        return list(await asyncio.gather(*(one(problem, s) for s in range(benchmark.samples))))

    began = time.perf_counter()
    groups = engine.run(*(everything(i) for i in range(len(problems))))
    seconds = time.perf_counter() - began
    rows = [(i, s, c) for i, group in enumerate(groups) for s, c in enumerate(group)]
    return pd.DataFrame(
        {
            "benchmark": name,
            "problem": [i for i, _, _ in rows],
            "sample": [s for _, s, _ in rows],
            "prompt": [problems[i].prompt for i, _, _ in rows],
            "answer": [problems[i].answer for i, _, _ in rows],
            "text": tokenizer.batch_decode([c.tokens for _, _, c in rows], skip_special_tokens=True),
            "tokens": [len(c.tokens) for _, _, c in rows],
            "finish": [str(c.finish) for _, _, c in rows],
            "seconds": seconds / len(rows),
        }
    )
