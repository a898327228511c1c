"""The in-process engine as an evaluation backend. What a request draws depends on nothing but its name."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from redraft.config.data import Sampling
from redraft.config.trainer import Engine
from redraft.engines.torch_engine import TorchEngine
from redraft.evaluate.backend import Request, Response
from redraft.rollout.streams import uniforms
from redraft.rollout.types import Finish
from redraft.train import models

_NOTHING = np.zeros(0, dtype=np.int32)


class TorchBackend:
    """A policy in this process; see `redraft.evaluate.backend.Backend`."""

    def __init__(self, policy: Path | str, settings: Engine) -> None:
        import torch

        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.model, self.tokenizer = models.load(policy)
        self.model.to(models.device_of(settings.device))

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, seed: int, deliver: Callable[[Response], None]
    ) -> None:
        """Sample every request; uniforms come from the streams `evaluate/<name>`."""
        limit = sampling.max_new_tokens
        engine = TorchEngine(
            self.model, stops=models.stop_tokens(self.model, self.tokenizer),
            max_length=max(len(request.prompt) for request in requests) + limit,
            max_rows=self.settings.max_rows, max_batched_tokens=self.settings.max_batched_tokens,
            temperature=sampling.temperature, top_p=sampling.top_p,
        )  # fmt: skip

        async def one(request: Request, turn: asyncio.Semaphore) -> None:
            async with turn, engine.session(request.prompt) as session:
                u = uniforms(seed, f"evaluate/{name}", request.problem, request.sample, count=limit)
                continuation = await session.decode(_NOTHING, limit, u)
            finish = "length" if continuation.finish is Finish.LENGTH else "stop"
            deliver(Response(request.problem, request.sample, continuation.tokens, finish))

        async def everything() -> None:
            turn = asyncio.Semaphore(2 * self.settings.max_rows)  # uniforms of all would fill the memory
            await asyncio.gather(*(one(request, turn) for request in requests))

        engine.run(everything())

    def close(self) -> None:
        """Nothing is held that would not go by itself."""
