"""The interface of evaluation backends, which sample a policy's responses to a benchmark's prompts.

All backends take the same requests. They deliver each response when it is finished, so that it can be saved early. The
random numbers of a request depend on the seed, the benchmark, the problem and the sample; with transformers they also
depend on the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from redraft.config.data import Sampling


@dataclass(frozen=True)
class GenerationRequest:
    """Request for one sample of a response.

    Attributes:
        problem: index in the benchmark, from 0.
        sample: index among the problem's samples, from 0.
        prompt: token ids.
    """

    problem: int
    sample: int
    prompt: list[int]


@dataclass(frozen=True, eq=False)
class Response:
    """The response to the request with the same problem and sample.

    Attributes:
        tokens: token ids, int32, (length,); the stop token is included.
        finish: `stop`, or `length` if the response was cut off.
    """

    problem: int
    sample: int
    tokens: np.ndarray
    finish: str


class Backend(Protocol):
    """A policy that can be sampled.

    Attributes:
        tokenizer: the policy's tokenizer, from transformers.
    """

    tokenizer: Any

    def sample(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        seed: int,
        deliver: Callable[..., None],
    ) -> None:
        """Sample every request of the benchmark `name`.

        Args:
            name: the benchmark's name, which is part of the names of random streams.
            requests: one request per sample.
            sampling: temperature, top-p and length limit.
            seed: seed of the random streams.
            deliver: callback for one or more responses. Each response is delivered exactly once, in any order.
        """

    def close(self) -> None:
        """Free the memory of the policy."""
