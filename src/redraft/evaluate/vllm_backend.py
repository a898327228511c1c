"""vLLM in this process as an evaluation backend, on GPUs or on a CPU."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redraft.config.data import Sampling
from redraft.config.trainer import EngineSettings
from redraft.engines.vllm.local import LocalVLLM
from redraft.evaluate.backend import GenerationRequest, Response
from redraft.rollout.streams import stream
from redraft.train import models


class VLLMBackend:
    """A policy in vLLM; see `redraft.evaluate.backend.Backend`.

    The engine starts with the first request, for sequences of `length` tokens or of the longest request, if longer.
    """

    def __init__(self, policy: Path | str, settings: EngineSettings, length: int = 0) -> None:
        self.policy, self.settings, self.length = policy, settings, length
        self.tokenizer = models.load_tokenizer(policy)
        models.check_weights_of(policy)
        self.stops = sorted(models.ends(policy, self.tokenizer))
        self.device = models.device_of(settings.device).type
        self._engine: LocalVLLM | None = None

    def sample(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        seed: int,
        deliver: Callable[..., None],
    ) -> None:
        """Sample every request; each has its own seed, from the random stream `evaluate/<name>/vllm`."""
        length = max(len(request.prompt) for request in requests) + sampling.max_new_tokens
        if self._engine is None or length > self.length:  # an engine for shorter sequences is replaced
            self.close()
            self.length = max(length, self.length)
            self._engine = LocalVLLM(self.policy, self.length, self.settings.max_rows, **self._site())
        engine = self._engine

        async def one(request: GenerationRequest, turn: asyncio.Semaphore) -> None:
            rng = stream(seed, f"evaluate/{name}/vllm", request.problem, request.sample)
            params = {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "ignore_eos": True,  # vLLM's own reading of the model's files; `stops` has all ends
                "stop_token_ids": self.stops,
                "seed": int(rng.integers(2**31)),
                # `generate` decodes the tokens, as it does for all backends.
                "detokenize": False,
            }
            async with turn:
                identity = f"{name}-{request.problem}-{request.sample}"
                output = await engine.generate(identity, prompt_ids=request.prompt, sampling_params=params)
            tokens = np.asarray(output.token_ids, dtype=np.int32)
            finish = "stop" if len(tokens) and int(tokens[-1]) in self.stops else "length"
            deliver(Response(request.problem, request.sample, tokens, finish))

        async def everything() -> None:
            # Enough requests that vLLM never waits for one, and not all at once.
            turn = asyncio.Semaphore(4 * self.settings.max_rows)
            await asyncio.gather(*(one(request, turn) for request in requests))

        engine.run(everything())

    def _site(self) -> dict[str, Any]:
        """Arguments of vLLM's engine on GPUs; on a CPU the defaults of `LocalVLLM` except for the precision."""
        dtype = self.settings.dtype
        if self.device == "cpu":
            return {} if dtype == "auto" else {"dtype": dtype}
        return {
            "dtype": dtype,
            # `LocalVLLM` has 0.5 GiB by default; on a GPU vLLM takes what is left of its share.
            "kv_cache_memory_bytes": None,
            "block_size": None,
            "enable_chunked_prefill": True,
            "gpu_memory_utilization": self.settings.gpu_memory_utilization,
            "enforce_eager": self.settings.eager,
            "max_num_batched_tokens": self.settings.max_batched_tokens,
        }

    def close(self) -> None:
        """Stop the engine and free its memory, so that another policy fits."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
