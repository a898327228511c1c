"""The in-process engine as an evaluation backend. What a request draws depends on nothing but its name."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from redraft.config.data import Sampling
from redraft.config.trainer import EngineSettings
from redraft.engines.torch_engine import TorchEngine
from redraft.errors import UserError
from redraft.evaluate.backend import Request, Response
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish
from redraft.train import models

_NOTHING = np.zeros(0, dtype=np.int32)


@contextmanager
def _enough_memory(rows: int, length: int) -> Iterator[None]:
    """The engine's cache is made for all its rows at their longest.

    Raises:
        UserError: if there is no room for it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise UserError("there is no memory for the in-process engine's cache", key="max_rows",
                        value=f"{rows} rows of {length:,} tokens", allowed="fewer rows, or vllm") from None  # fmt: skip


class TorchBackend:
    """A policy in this process; see `redraft.evaluate.backend.Backend`."""

    def __init__(self, policy: Path | str, settings: EngineSettings) -> None:
        import torch

        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.model, self.tokenizer = models.load(policy)
        self.model.to(models.device_of(settings.device))

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, seed: int, deliver: Callable[..., None]
    ) -> None:
        """Sample every request; uniforms come from the streams `evaluate/<name>`."""
        limit = sampling.max_new_tokens
        rows = min(self.settings.max_rows, len(requests))
        length = max(len(request.prompt) for request in requests) + limit
        with _enough_memory(rows, length):
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
            turn = asyncio.Semaphore(2 * self.settings.max_rows)  # uniforms of all would fill the memory
            await asyncio.gather(*(one(request, turn) for request in requests))

        engine.run(everything())

    def close(self) -> None:
        """Nothing is held that would not go by itself."""
