"""The in-process engine as a sampler, by inverse CDF."""

import numpy as np

from redraft.certify.protocol import Sampled
from redraft.engines.torch.engine import TorchEngine
from redraft.rollout import streams
from redraft.rollout.engine import Inversion


class EngineSampler:
    """An engine with its model; the responses of a call are decoded in one batch.

    Args:
        engine: at the temperature of the certificate.
        seed: of the random numbers.
    """

    name = "redraft's engine"

    def __init__(self, engine: TorchEngine, seed: int = 0) -> None:
        self.engine, self.seed, self.calls = engine, seed, 0

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses."""

        async def one(prompt: int, sample: int, call: int) -> Sampled:
            noise = Inversion(streams.uniforms(self.seed, "certify", call, prompt, sample, count=max_tokens))
            async with self.engine.session(prompts[prompt]) as session:
                found = await session.decode(np.empty(0, np.int32), max_tokens, noise)
            return Sampled(found.tokens.tolist(), found.log_probs.tolist())

        self.calls += 1
        flat = self.engine.run(*(one(p, s, self.calls) for p in range(len(prompts)) for s in range(samples)))
        return [flat[i : i + samples] for i in range(0, len(flat), samples)]
