"""What samples a policy on benchmarks.

All backends take the same requests and deliver responses as they come, so that they can be saved before all are there.
A request's draws depend on the seed, its benchmark, problem and sample; under transformers also on its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from redraft.config.data import Sampling


@dataclass(frozen=True)
class Request:
    """One sample that is asked for.

    Attributes:
        problem: index in its benchmark.
        sample: index among its problem's samples.
        prompt: tokens.
    """

    problem: int
    sample: int
    prompt: list[int]


@dataclass(frozen=True, eq=False)
class Response:
    """What came of a request.

    Attributes:
        tokens: int32, what ends the response included.
        finish: `stop`, or `length` if it was cut off.
    """

    problem: int
    sample: int
    tokens: np.ndarray
    finish: str


class Backend(Protocol):
    """A policy that can be sampled.

    Attributes:
        tokenizer: of transformers, the policy's.
    """

    tokenizer: Any

    def sample(
        self, name: str, requests: Sequence[Request], sampling: Sampling, seed: int, deliver: Callable[..., None]
    ) -> None:
        """Sample every request of the benchmark `name`.

        Each response is delivered once, in any order, one or more at a time.
        """

    def close(self) -> None:
        """Free what it holds."""
