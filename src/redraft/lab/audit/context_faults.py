"""Planted faults of context: an engine continues from something else than the prompt and the kept tokens.

A fault acts in the last epoch pass alone. The drafts of that pass then have the distribution that is stored with them,
so the rules' own functions enumerate the distribution of the faulty responses exactly.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from redraft.engines.torch.engine import TorchEngine
from redraft.lab.audit.enumeration import ContinuedBy, Policy, Response
from redraft.lab.audit.tiny_models import ModelPolicy
from redraft.methods.acceptance.rule import Distributions, FromTheLeft
from redraft.rollout.engine import Continuation, Engine, Gumbel, Inversion, Noise, Residual, Scores, Session
from redraft.rollout.types import Finish, TopLogProbs

T = TypeVar("T")


class RunnableEngine(Engine, Protocol):
    """An engine that also runs the coroutines which use it."""

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines to completion; return their results in order."""
        ...


class FaultySession:
    """A session that passes all requests on to another one; subclasses change the requests to decode."""

    def __init__(self, session: Session) -> None:
        self._session, self._draft = session, np.zeros(0, np.int32)

    async def score(self, draft: np.ndarray, *arguments: Any, **named: Any) -> Scores:
        """The scores, which are right."""
        self._draft = draft
        return await self._session.score(draft, *arguments, **named)

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """The continuation of a prefix."""
        return await self._session.decode(prefix, max_new_tokens, noise, first, top)


class _FedTwice(FaultySession):
    async def decode(self, prefix: np.ndarray, *arguments: Any, **named: Any) -> Continuation:
        return await super().decode(np.append(prefix, prefix[-1:]), *arguments, **named)


class _LeftOut(FaultySession):
    async def decode(self, prefix: np.ndarray, *arguments: Any, **named: Any) -> Continuation:
        # The draft's scores stay right: the fault is in what the continuation sees.
        return await super().decode(prefix[:-1], *arguments, **named)


class _OtherNoise(FaultySession):
    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        assert isinstance(noise, Gumbel)
        return await super().decode(prefix, max_new_tokens, Gumbel(noise.key ^ 1), first, top)


class _Stale(FaultySession):
    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        if len(prefix) >= len(self._draft) or max_new_tokens == 1:  # nothing was rejected, or nothing follows
            return await super().decode(prefix, max_new_tokens, noise, first, top)
        assert isinstance(noise, Inversion)
        one = await super().decode(prefix, 1, noise, first, top)
        if one.finish == Finish.EOS:
            return one
        # The first new token used the first uniform.
        stale, left = np.append(prefix, self._draft[len(prefix)]), Inversion(noise.uniforms[1:])
        return _joined(one, await super().decode(stale, max_new_tokens - 1, left, None, top))


def _joined(one: Continuation, other: Continuation) -> Continuation:
    tokens, log_probs = (np.concatenate([getattr(c, name) for c in (one, other)]) for name in ("tokens", "log_probs"))
    top = None
    if one.top and other.top:
        parts = (np.concatenate([getattr(c.top, name) for c in (one, other)]) for name in ("tokens", "log_probs"))
        top = TopLogProbs(*parts)
    return Continuation(tokens, log_probs, other.finish, one.cached, top)


class _LatePositions(TorchEngine):
    """Tokens that are fed with a mask, as after a prefill, have positions that are one too high."""

    def _forward(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super()._forward(tokens_BT, positions_BT if mask is None else positions_BT + 1, mask)


class FaultyEngine:
    """An engine whose sessions have a fault."""

    def __init__(self, engine: RunnableEngine, session: type[FaultySession]) -> None:
        self.stops, self.capabilities, self.run = engine.stops, engine.capabilities, engine.run
        self._engine, self._session = engine, session

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator[FaultySession]:
        """Open a session with the fault."""
        async with self._engine.session(prompt) as session:
            yield self._session(session)


@dataclass(frozen=True)
class ContextFault:
    """A fault of context.

    Attributes:
        name: in tables.
        seen: function of a draft, its number of kept tokens and a prefix of the response: the tokens that the engine
            conditions the token after the prefix on.
        session: sessions with the fault.
        late: whether positions are one too high from the last kept token on (of `TorchEngine` alone).
    """

    name: str
    seen: Callable[[Response, int, Response], Response]
    session: type[FaultySession] = FaultySession
    late: bool = False

    def plant(self, engine: RunnableEngine) -> RunnableEngine:
        """The engine with the fault."""
        return FaultyEngine(engine, self.session)

    @property
    def engine(self) -> type[TorchEngine]:
        """In-process engine to plant it in."""
        return _LatePositions if self.late else TorchEngine

    def continued_by(self, policy: ModelPolicy) -> ContinuedBy:
        """Distributions from which the engine samples after the kept tokens of a draft."""
        # Cached, since each policy computes its distributions once and cases repeat.
        return lru_cache(maxsize=None)(lambda draft, kept: _SeenPolicy(policy, self, draft, kept))


class _SeenPolicy(Policy):
    """A policy that sees what a fault leaves of a response's prefix."""

    def __init__(self, policy: ModelPolicy, fault: ContextFault, draft: Response, kept: int) -> None:
        super().__init__(policy.space)
        self._policy, self._fault, self._draft, self._kept = policy, fault, draft, kept

    def distribution(self, prefix: Response) -> np.ndarray:
        """Distribution of the token after a prefix of the response, float64 (V,)."""
        seen = self._fault.seen(self._draft, self._kept, prefix)
        return self._policy.after(seen, self._kept if self._fault.late else None)


def _fed_twice(draft: Response, kept: int, prefix: Response) -> Response:
    return (*prefix[:kept], *prefix[kept - 1 :]) if kept else prefix


def _left_out(draft: Response, kept: int, prefix: Response) -> Response:
    return (*prefix[: kept - 1], *prefix[kept:]) if kept else prefix


def _stale(draft: Response, kept: int, prefix: Response) -> Response:
    return (*prefix[:kept], draft[kept], *prefix[kept + 1 :]) if kept < min(len(draft), len(prefix)) else prefix


def _whole(draft: Response, kept: int, prefix: Response) -> Response:
    return prefix


FED_TWICE = ContextFault("the last kept token fed twice", _fed_twice, _FedTwice)
LEFT_OUT = ContextFault("the last kept token left out", _left_out, _LeftOut)
STALE = ContextFault("the rejected token stays in the cache", _stale, _Stale)
LATE = ContextFault("positions off by one after the prefill", _whole, late=True)
OTHER_NOISE = ContextFault("other noise after the kept tokens", _whole, _OtherNoise)
"""Of Gumbel coupling, with `CoupledRule`."""


class CoupledRule(FromTheLeft):
    """Gumbel coupling whose noise does not continue after the kept tokens, as a rule.

    A token is kept with the probability that both policies sample it with the same noise, given that the draft's did.
    The response continues with new noise, that is from the policy and not from what the coupling leaves of it.
    """

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """1 / sum over w of max(q_v p_w / p_v, q_w) of each token v; S must be the whole vocabulary."""
        ratio_T = drafts.log_q_T - drafts.log_p_T
        return 1 / np.exp(np.maximum(drafts.log_p_TK + ratio_T[:, None], drafts.log_q_TK)).sum(axis=1)
