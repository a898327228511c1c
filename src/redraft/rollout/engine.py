"""Protocol of inference engines, as strategies use them.

A session is one response in the making. It scores a draft and decodes behind any prefix of it; an engine keeps what
it computed for the one for use in the other. Sessions run concurrently: an engine batches whatever waits.
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
    """Draws by inversion of the cumulative distribution, by float64 (n,) on (0, 1], one for each token that may be
    sampled."""

    uniforms: np.ndarray


@dataclass(frozen=True)
class Gumbel:
    """Draws as argmax of log-probabilities plus Gumbel noise, which `redraft.rollout.streams` makes again from the key.

    Attributes:
        key: 64 bits that name the response; the noise of a token depends on key, position and token alone.
    """

    key: int


Draws = Inversion | Gumbel


@dataclass(frozen=True, eq=False)
class Residual:
    """The distribution p less what was accepted of it, normalised: the first token behind a rejection.

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
        others: float32 (n, k), of the tokens asked for at each position; None if none were.
        top: top of the distribution at each position, if asked for.
        drawn: int32 (n,), tokens that the policy draws in the draft's places, if noise was given.
    """

    log_probs: np.ndarray
    others: np.ndarray | None = None
    top: TopLogProbs | None = None
    drawn: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Continuation:
    """Tokens decoded behind a prompt and a prefix.

    Attributes:
        tokens: int32 (n,), the stop token included where there is one.
        log_probs: float32 (n,), of each token under the policy, also of one drawn from a residual.
        finish: why it ended.
        cached: tokens of prompt and prefix that were not computed again.
        top: top of the policy's distribution at each token, if asked for.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    finish: Finish
    cached: int = 0
    top: TopLogProbs | None = None


class Session(Protocol):
    """One response in the making."""

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        draws: Gumbel | None = None,
        behind: int | None = None,
    ) -> Scores:
        """Score a draft under the current policy, or its next chunk, in one parallel pass.

        Args:
            draft: int32 (n,), at least one token.
            at: int32 (n, k), tokens whose log-probabilities are wanted too, in place of the draft's at each position
                (`Capability.OTHER_SCORES`).
            top: most probable tokens to report at each position (`Capability.TOP_LOG_PROBS`).
            draws: noise by which the policy draws a token in each of the draft's places (`Capability.GUMBEL`).
            behind: leading tokens that this session has scored, below n. Scores are then of the next chunk alone, which
                is as long as the engine likes, and nothing is computed behind it. None for the whole draft.
        """
        ...

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample behind prompt and prefix until a stop token or `max_new_tokens`.

        Tokens that were scored or decoded in this session before, and that the prefix begins with, are not computed
        again.

        Args:
            prefix: int32 (n,), a prefix of what was scored or decoded, or empty.
            max_new_tokens: at least 1.
            draws: random numbers (`Capability.GUMBEL` for Gumbel noise).
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
