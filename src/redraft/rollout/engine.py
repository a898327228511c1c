"""What a strategy needs of an inference engine.

A session is one response in the making. It scores a draft and decodes behind any prefix of it; an engine keeps what
it computed for the one for use in the other. Sessions run concurrently: an engine batches whatever waits.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.rollout.types import Finish


@dataclass(frozen=True, eq=False)
class Continuation:
    """What was decoded behind a prompt and a prefix.

    Attributes:
        tokens: int32 (n,), the stop token included where there is one.
        log_probs: float32 (n,), of each token under the sampling policy.
        finish: why it ended.
        cached: tokens of prompt and prefix that were not computed again.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    finish: Finish
    cached: int = 0


class Session(Protocol):
    """One response in the making."""

    async def score(self, draft: np.ndarray) -> np.ndarray:
        """Log-probabilities, float32 (n,), of the draft's tokens under the current policy, in one parallel pass."""
        ...

    async def decode(self, prefix: np.ndarray, max_new_tokens: int, uniforms: np.ndarray) -> Continuation:
        """Sample behind prompt and prefix until a stop token or `max_new_tokens`.

        Args:
            prefix: int32 (n,), a prefix of what was scored, or empty.
            max_new_tokens: at least 1.
            uniforms: float64 (max_new_tokens,) on (0, 1], one for each token that may be sampled.
        """
        ...


class Engine(Protocol):
    """A batching inference engine holding the current policy."""

    stops: frozenset[int]
    """Tokens that end a response."""

    def session(self, prompt: Sequence[int]) -> AbstractAsyncContextManager[Session]:
        """Open a session for one response to `prompt`; leaving it frees what the engine kept."""
        ...
