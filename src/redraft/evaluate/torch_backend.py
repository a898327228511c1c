"""The in-process engine as an evaluation backend; draws depend only on seed, benchmark, problem and sample."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redraft.config.data import Sampling
from redraft.config.trainer import EngineSettings
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.evaluate.backend import Request, Response
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish
from redraft.train import models
from redraft.train.pretrained.memory import available, cache_row, gib
from redraft.train.pretrained.precision import dtype_of

_NOTHING = np.zeros(0, dtype=np.int32)


def refuse_too_little(model: Any, rows: int, length: int) -> None:
    """Refuse a cache that does not fit into memory; Linux would give it, and end a process once it is filled.

    Args:
        model: whose keys and values it holds.
        rows: of the cache.
        length: tokens of the longest.

    Raises:
        UserError: with the number of rows that fit.
    """
    buffers = 2 if model.device.type == "cpu" else 1
    row, there = cache_row(model.config, length, model.dtype.itemsize, buffers), available(model.device)
    if rows * row > there:
        raise UserError("the in-process engine's cache does not fit into memory", key="max_rows",
                        value=f"{rows} rows of {length:,} tokens, {gib(rows * row)} of {gib(there)}",
                        allowed=f"at most {int(there // row)} rows", hint="take fewer rows, or vllm")  # fmt: skip


class TorchBackend:
    """A policy in the in-process engine; see `redraft.evaluate.backend.Backend`."""

    def __init__(self, policy: Path | str, settings: EngineSettings) -> None:
        import torch

        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.model, self.tokenizer = models.load(policy, dtype=dtype_of(settings))
        self.model.to(models.device_of(settings.device))

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, seed: int, deliver: Callable[..., None]
    ) -> None:
        """Sample every request; uniforms come from the random streams `evaluate/<name>`."""
        limit = sampling.max_new_tokens
        rows = min(self.settings.max_rows, len(requests))
        length = max(len(request.prompt) for request in requests) + limit
        refuse_too_little(self.model, rows, length)
        engine = TorchEngine(
            self.model, stops=models.stop_tokens(self.model, self.tokenizer), max_length=length, max_rows=rows,
            max_batched_tokens=self.settings.max_batched_tokens, temperature=sampling.temperature,
            top_p=sampling.top_p,
        )  # fmt: skip

        async def one(request: Request, turn: asyncio.Semaphore) -> None:
            async with turn, engine.session(request.prompt) as session:
                u = uniforms(seed, f"evaluate/{name}", request.problem, request.sample, count=limit)
                continuation = await session.decode(_NOTHING, limit, Inversion(u))
            finish = "length" if continuation.finish is Finish.LENGTH else "stop"
            deliver(Response(request.problem, request.sample, continuation.tokens, finish))

        async def everything() -> None:
            turn = asyncio.Semaphore(2 * self.settings.max_rows)  # the uniforms of all requests would fill the memory
            await asyncio.gather(*(one(request, turn) for request in requests))

        engine.run(everything())

    def close(self) -> None:
        """Do nothing: the memory is freed with this object."""
