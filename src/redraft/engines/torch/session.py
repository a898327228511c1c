"""A session on the in-process engine: it checks what is asked for and waits for the answer."""

import asyncio
from typing import Any, Protocol

import numpy as np

from redraft.config.capability import Capability
from redraft.engines.checks import refuse_draws, refuse_scores
from redraft.engines.chunks import chunk_end
from redraft.engines.torch.rows import Decoding, Row, Scoring
from redraft.rollout.engine import Continuation, Draws, Gumbel, Inversion, Residual, Scores


class Queue(Protocol):
    """The part of the engine that a session sees."""

    capabilities: frozenset[Capability]
    truncates: bool
    vocabulary: int
    chunk: int | None

    def ask(self, row: Row) -> None:
        """Queue a session that set what it asks for."""
        ...

    def release(self, row: Row) -> None:
        """Give a session's row of the cache back, and forget what it asked for."""
        ...


class TorchSession:
    """One response in the making; see `redraft.rollout.engine.Session`."""

    def __init__(self, engine: Queue, prompt: list[int]) -> None:
        self._engine, self._row = engine, Row(prompt)

    async def score(
        self, draft: np.ndarray, at: np.ndarray | None = None, top: int = 0, draws: Gumbel | None = None,
        behind: int | None = None,
    ) -> Scores:  # fmt: skip
        """Score a draft or its next chunk; what the session had in the cache beside what is before it is replaced.

        Raises:
            UserError: if a log-probability is NaN, or for more than the draft on an engine that truncates the policy.
            ValueError: if the engine truncates the policy, the sequence is too long, or shapes do not fit.
        """
        self._check_idle()
        if self._engine.truncates:
            raise ValueError("a draft cannot be scored under top-p sampling or at temperature 0")
        refuse_scores(self._engine.capabilities, at, top, draws)
        if at is not None and (at.ndim != 2 or len(at) != len(draft)):
            raise ValueError(f"shapes do not fit: {draft.shape}, {at.shape}")
        first, end = behind or 0, chunk_end(len(draft), behind, self._engine.chunk)
        if first:
            self._keep(self._row.prompt + draft[: first - 1].tolist())
        else:
            self._engine.release(self._row)
        answer: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        top, others = min(top, self._engine.vocabulary), None if at is None else at[first:end]
        return await self._ask(Scoring(draft, others, top, draws, answer, slice(first, end)))

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample behind prompt and prefix.

        Prompt and prefix are not computed again, but for the last token, if all before it is in the cache. From a
        residual without mass, which only rounding leaves, the policy's own law is drawn.

        Raises:
            UserError: if a log-probability is NaN, or for what the engine has not while it truncates the policy.
            ValueError: if there are too few uniforms, the sequence is too long, or shapes do not fit.
        """
        self._check_idle()
        refuse_draws(self._engine.capabilities, draws, first, top)
        enough = not isinstance(draws, Inversion) or len(draws.uniforms) >= max_new_tokens
        if max_new_tokens < 1 or not enough:
            raise ValueError(f"decoding needs at least one token and as many uniforms, got {max_new_tokens}")
        if first is not None and first.tokens.shape != first.left.shape:
            raise ValueError(f"shapes do not fit: {first.tokens.shape}, {first.left.shape}")
        before = (self._row.prompt + prefix.tolist())[:-1]
        self._keep(before)
        cached, top = len(before) if self._row.held else 0, min(top, self._engine.vocabulary)
        answer: asyncio.Future[Continuation] = asyncio.get_running_loop().create_future()
        return await self._ask(Decoding(prefix, max_new_tokens, draws, first, top, answer, cached))

    def _keep(self, before: list[int]) -> None:
        """Give the row back unless these tokens are at its beginning."""
        if before != self._row.held[: len(before)]:
            self._engine.release(self._row)

    def _check_idle(self) -> None:
        if self._row.asked is not None:
            raise ValueError("a session asks for one thing at a time")

    async def _ask(self, request: Scoring | Decoding) -> Any:
        """Queue a request and wait for its answer; one that is given up is forgotten."""
        self._row.asked = request
        try:
            self._engine.ask(self._row)
            return await request.answer
        finally:
            if self._row.asked is request:
                self.close()

    def close(self) -> None:
        """Leave the engine."""
        self._engine.release(self._row)
