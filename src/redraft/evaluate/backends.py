"""The choice of an evaluation backend, and those that run a policy by PyTorch: our engine and transformers' `generate`.

`generate` is slow, but independent of this project's engines. `redraft.evaluate.vllm_backend` is imported where chosen.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from redraft.config.data import Sampling
from redraft.config.trainer import EngineSettings
from redraft.engines.torch.engine import TorchEngine
from redraft.errors import UserError
from redraft.evaluate.backend import Backend, GenerationRequest, Response
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import stream, uniforms
from redraft.rollout.types import Finish
from redraft.train import models
from redraft.train.pretrained.memory_check import available, cache_row, gib
from redraft.train.pretrained.precision import dtype_of

_NOTHING = np.zeros(0, dtype=np.int32)


def check_cache_memory(model: Any, rows: int, length: int) -> None:
    """Check that the key-value cache fits into memory.

    Linux would grant the allocation and kill the process once the cache fills.

    Args:
        rows: rows of the cache.
        length: tokens of the longest row.

    Raises:
        UserError: if it does not fit; the message names the number of rows that do.
    """
    row, free = cache_row(model.config, length, model.dtype.itemsize, model.device), available(model.device)
    if rows * row > free:
        raise UserError(
            "the in-process engine's cache does not fit into memory",
            key="max_rows",
            value=f"{rows} rows of {length:,} tokens, {gib(rows * row)} of {gib(free)}",
            allowed=f"at most {int(free // row)} rows",
            hint="take fewer rows, or vllm",
        )


class _Loaded:
    """A policy in transformers' format, loaded to the settings' device in the settings' precision."""

    def __init__(self, policy: Path | str, settings: EngineSettings) -> None:
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.model, self.tokenizer = models.load(policy, dtype=dtype_of(settings))
        self.model.to(models.device_of(settings.device))
        self.stops = models.stop_tokens(self.model)

    def close(self) -> None:
        """Do nothing: the memory is freed with this object."""


class TorchBackend(_Loaded):
    """A policy in the in-process engine; samples depend only on seed, benchmark, problem and sample."""

    def sample(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        seed: int,
        deliver: Callable[..., None],
    ) -> None:
        """Sample every request; uniforms come from the random streams `evaluate/<name>`."""
        limit = sampling.max_new_tokens
        rows = min(self.settings.max_rows, len(requests))
        # As little as these requests need: the cache has `rows` x `length` positions from the start.
        length = max(len(request.prompt) for request in requests) + limit
        check_cache_memory(self.model, rows, length)
        engine = TorchEngine(
            self.model,
            stops=self.stops,
            max_length=length,
            max_rows=rows,
            max_batched_tokens=self.settings.max_batched_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            bitwise=self.settings.bitwise,
        )

        async def one(request: GenerationRequest, turn: asyncio.Semaphore) -> None:
            async with turn, engine.session(request.prompt) as session:
                u = uniforms(seed, f"evaluate/{name}", request.problem, request.sample, count=limit)
                continuation = await session.decode(_NOTHING, limit, Inversion(u))
            finish = "length" if continuation.finish is Finish.LENGTH else "stop"
            deliver(Response(request.problem, request.sample, continuation.tokens, finish))

        async def everything() -> None:
            turn = asyncio.Semaphore(
                2 * self.settings.max_rows
            )  # bounds the memory of the uniforms, which each request holds for its whole length
            await asyncio.gather(*(one(request, turn) for request in requests))

        engine.run(everything())


class TransformersBackend(_Loaded):
    """A policy under transformers' `generate`; a batch shares one random generator."""

    def __init__(self, policy: Path | str, settings: EngineSettings) -> None:
        super().__init__(policy, settings)
        self.model.eval().generation_config = GenerationConfig()  # drops the model's own penalties and top-k

    def sample(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        seed: int,
        deliver: Callable[..., None],
    ) -> None:
        """Sample in batches of prompts of similar length; each batch is seeded by its first request."""
        ordered = sorted(requests, key=lambda request: len(request.prompt))
        rows = self.settings.max_rows
        for start in range(0, len(ordered), rows):
            batch = ordered[start : start + rows]
            rng = stream(seed, f"evaluate/{name}/transformers", batch[0].problem, batch[0].sample)
            # `generate` uses PyTorch's global generator, which is restored afterwards.
            with torch.random.fork_rng(), torch.inference_mode():
                torch.manual_seed(int(rng.integers(2**31)))
                output = self._generate(batch, sampling)
            responses = []
            for request, row in zip(batch, output, strict=True):
                # Whatever follows the first stop is padding.
                ends = np.flatnonzero(np.isin(row, list(self.stops)))
                length, finish = (int(ends[0]) + 1, "stop") if len(ends) else (len(row), "length")
                responses.append(Response(request.problem, request.sample, row[:length].astype(np.int32), finish))
            deliver(*responses)

    def _generate(self, batch: list[GenerationRequest], sampling: Sampling) -> np.ndarray:
        """The tokens that `generate` appends, int64, (rows, tokens), padded after the stop token."""
        width = max(len(request.prompt) for request in batch)
        # Any token will do, since padding is masked on the left and cut off after the stop.
        pad = min(self.stops, default=0)
        prompts = torch.tensor([[pad] * (width - len(r.prompt)) + r.prompt for r in batch], device=self.model.device)
        # Prompts are padded on the left, so that all responses start at the same position.
        attended = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in batch])
        how: dict[str, Any] = {"do_sample": False}
        if sampling.temperature:
            # `top_k` is 0, since transformers samples from the 50 most probable tokens by default.
            how = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        output = self.model.generate(
            prompts,
            attention_mask=attended.to(self.model.device),
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(self.stops) or None,
            pad_token_id=pad,
            **how,
        )
        return output[:, width:].cpu().numpy()


def open_backend(kind: str, policy: Path | str, settings: EngineSettings, length: int = 0) -> Backend:
    """Open a backend of a kind of `Evaluation.backend` for a policy in transformers' format.

    `length` is the longest prompt plus response, in tokens; 0 if unknown. Knowing it saves vLLM a restart.
    """
    if kind == "vllm":
        from redraft.evaluate.vllm_backend import VLLMBackend

        return VLLMBackend(policy, settings, length)
    return (TransformersBackend if kind == "transformers" else TorchBackend)(policy, settings)
