"""Transformers' `generate` as an evaluation backend: slow, but independent of this project's engines."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig

from redraft.config.data import Sampling
from redraft.config.trainer import EngineSettings
from redraft.evaluate.backend import Request, Response
from redraft.rollout.streams import stream
from redraft.train import models
from redraft.train.pretrained.precision import dtype_of


class TransformersBackend:
    """A policy under `generate`; see `redraft.evaluate.backend.Backend`. A batch shares one random generator."""

    def __init__(self, policy: Path | str, settings: EngineSettings) -> None:
        torch.set_num_threads(settings.threads)
        self.rows = settings.max_rows
        self.model, self.tokenizer = models.load(policy, dtype=dtype_of(settings))
        self.model.to(models.device_of(settings.device)).eval()
        self.stops = models.stop_tokens(self.model, self.tokenizer)
        self.model.generation_config = GenerationConfig()  # drops the model's own penalties and top-k

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, seed: int, deliver: Callable[..., None]
    ) -> None:
        """Sample in batches of prompts of similar length; each batch is seeded by its first request."""
        ordered = sorted(requests, key=lambda request: len(request.prompt))
        for start in range(0, len(ordered), self.rows):
            batch = ordered[start : start + self.rows]
            draw = stream(seed, f"evaluate/{name}/transformers", batch[0].problem, batch[0].sample)
            with torch.random.fork_rng(), torch.inference_mode():
                torch.manual_seed(int(draw.integers(2**31)))
                rows = self._generate(batch, sampling)
            deliver(*(self._response(request, row) for request, row in zip(batch, rows, strict=True)))

    def _generate(self, batch: list[Request], sampling: Sampling) -> np.ndarray:
        """The tokens that `generate` appends, int64, (rows, tokens), padded after the stop token."""
        width = max(len(request.prompt) for request in batch)
        pad = min(self.stops, default=0)
        prompts = torch.tensor([[pad] * (width - len(r.prompt)) + r.prompt for r in batch], device=self.model.device)
        seen = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in batch])
        drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        how = drawn if sampling.temperature else {"do_sample": False}
        output = self.model.generate(
            prompts, attention_mask=seen.to(self.model.device), max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(self.stops) or None, pad_token_id=pad, **how,
        )  # fmt: skip
        return output[:, width:].cpu().numpy()

    def _response(self, request: Request, row: np.ndarray) -> Response:
        ends = np.flatnonzero(np.isin(row, list(self.stops)))
        length = int(ends[0]) + 1 if len(ends) else len(row)
        finish = "stop" if len(ends) else "length"
        return Response(request.problem, request.sample, row[:length].astype(np.int32), finish)

    def close(self) -> None:
        """Do nothing: the memory is freed with this object."""
