"""Protocol of inference engines, as strategies use them.

A session generates one response. It scores a draft and decodes after any prefix of it; the engine reuses the KV cache
of the one for the other. Sessions run concurrently: an engine batches all requests that wait.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.config.capability import Capability
from redraft.rollout.types import Finish, TopLogProbs


@dataclass(frozen=True, eq=False)
class Inversion:
    """Inverse-CDF sampling, with uniforms float64 (n,) on (0, 1], one for each token that may be sampled."""

    uniforms: np.ndarray


@dataclass(frozen=True)
class Gumbel:
    """Sampling as argmax of log-probabilities plus Gumbel noise, which `redraft.rollout.streams` makes again from the
    key.

    Attributes:
        key: 64-bit key of the response; the noise of a token depends on key, position and token alone.
    """

    key: int


Noise = Inversion | Gumbel
"""Random numbers by which a response is sampled."""


@dataclass(frozen=True, eq=False)
class Residual:
    """The residual distribution: p less its accepted mass, normalised. The first token after a rejection has it.

    Attributes:
        tokens: int32 (k,), tokens of which something may have been accepted, each once.
        left: float64 (k,), share of each one's probability that is left, 0 to 1: 1 - m / p where m was accepted. The
            distribution is proportional to p times this, and to p elsewhere.
    """

    tokens: np.ndarray
    left: np.ndarray


@dataclass(frozen=True, eq=False)
class Scores:
    """Log-probabilities under the current policy.

    Attributes:
        log_probs: float32 (n,), of the draft's tokens. With `top`, an engine without `Capability.OTHER_SCORES` may have
            -inf for one that is not in it.
        others: float32 (n, k), of the requested other tokens at each position; None if none were requested.
        top: top-k log-probs at each position, if requested.
        sampled: int32 (n,), tokens that the policy samples at the draft's positions, if noise was given.
    """

    log_probs: np.ndarray
    others: np.ndarray | None = None
    top: TopLogProbs | None = None
    sampled: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Continuation:
    """Tokens decoded after a prompt and a prefix.

    Attributes:
        tokens: int32 (n,), the stop token included where there is one.
        log_probs: float32 (n,), of each token under the policy, also of one sampled from a residual.
        finish: why it ended.
        cached: tokens of prompt and prefix that were not computed again.
        top: top-k log-probs of the policy at each token, if requested.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    finish: Finish
    cached: int = 0
    top: TopLogProbs | None = None


class Session(Protocol):
    """Generates one response."""

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        noise: Gumbel | None = None,
        scored: int | None = None,
    ) -> Scores:
        """Score a draft under the current policy, or its next chunk, in one parallel pass.

        Args:
            draft: int32 (n,), at least one token.
            at: int32 (n, k), other tokens at each position, whose log-probabilities are requested too
                (`Capability.OTHER_SCORES`).
            top: most probable tokens to report at each position (`Capability.TOP_LOG_PROBS`).
            noise: noise with which the policy samples a token at each of the draft's positions (`Capability.GUMBEL`).
            scored: leading tokens that this session has scored, below n. Scores are then of the next chunk alone, which
                is as long as the engine likes, and nothing is computed after it. None for the whole draft.
        """
        ...

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample after prompt and prefix until a stop token or `max_new_tokens`.

        Tokens that were scored or decoded in this session before, and that the prefix begins with, are not computed
        again.

        Args:
            prefix: int32 (n,), a prefix of what was scored or decoded, or empty.
            max_new_tokens: at least 1.
            noise: random numbers (`Capability.GUMBEL` for Gumbel noise).
            first: distribution of the first token (`Capability.RESIDUAL`); the policy's if None.
            top: most probable tokens to report with each sampled one (`Capability.TOP_LOG_PROBS`).
        """
        ...


class Engine(Protocol):
    """A batching inference engine holding the current policy."""

    stops: frozenset[int]
    """Tokens that end a response."""
    capabilities: frozenset[Capability]
    """Abilities of its sessions, all exact, beyond scoring a draft's tokens and sampling."""

    def session(self, prompt: Sequence[int]) -> AbstractAsyncContextManager[Session]:
        """Open a session for one response to `prompt`; leaving it frees what the engine kept."""
        ...
