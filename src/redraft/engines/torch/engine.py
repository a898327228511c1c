"""The in-process engine: continuous batching of sessions over one transformers model, on a CPU or a GPU.

Sessions ask, the engine answers in passes. A pass either prefills the prompts and drafts that wait for it (which
scores the drafts and leaves their keys and values in the cache), or scores further chunks of drafts whose beginning is
there, or decodes tokens of every decoding session: a burst of them on a GPU, each by a step with static shapes that is
captured as a CUDA graph (`redraft.engines.torch.graphs`), one on a processor.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.engines.requests import Usage, checked, chunk_end, refuse_draws, refuse_scores
from redraft.engines.torch.graphs import CudaCapture, Graphs, Shape, capturable
from redraft.engines.torch.head import Head, hidden_states, refuse_unsupported
from redraft.engines.torch.kv_cache import SlotCache, slot_attention
from redraft.engines.torch.loop import Activity, Outside, now, run_to_end
from redraft.engines.torch.rows import Admission, Decoding, Row, Rows, Scoring
from redraft.engines.torch.sampling import gumbel, log_probs_of, sample, sample_specially
from redraft.engines.torch.scoring import scores_of
from redraft.ops.locking.termination import sigterm_deferred
from redraft.rollout.engine import Continuation, Draws, Gumbel, Inversion, Residual, Scores
from redraft.rollout.types import Finish, TopLogProbs

T = TypeVar("T")

BURST = 16
"""Tokens of a burst on a GPU: the host looks once for each, and a response that ends waits half as many for it."""


class TorchEngine:
    """Batching engine over a transformers causal language model with standard attention.

    Args:
        model: the current policy; its weights may change between calls of `run`.
        max_length: longest prompt and response together, tokens.
        max_rows: sessions in the cache at once; further ones wait.
        max_batched_tokens: prompt and draft tokens in one prefill pass, padding included.
        temperature: of sampling and of scoring; 0 takes the most probable token.
        lookahead: tokens behind the last one of a response that a pass may compute and drop.
        chunk: draft tokens scored in a pass for who asks for chunks; None for whole drafts.
        burst: tokens of a session that are decoded before the host looks who has ended; None for `BURST`.
        static: whether passes that decode have few shapes, by padding, and replay CUDA graphs on a GPU; None for a
            model on a GPU that can be captured.

    Attributes:
        truncates: true at temperature 0 or under top-p. A truncated distribution has no ratio to another, so the engine
            then
            scores nothing and has no capabilities.
        activity: decoding passes of the last run.
        burst: as given; may be changed between runs.
        static: as given or found; may be set to false between runs.

    Raises:
        UserError: for a model that it would run wrongly, or that is too short for `max_length`.
    """

    capabilities: frozenset[Capability] = frozenset(
        {Capability.OTHER_SCORES, Capability.RESIDUAL, Capability.GUMBEL, Capability.TOP_LOG_PROBS}
    )

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stops: Collection[int],
        max_length: int,
        max_rows: int = 256,
        max_batched_tokens: int = 16384,
        temperature: float = 1.0,
        top_p: float = 1.0,
        lookahead: int = 0,
        chunk: int | None = None,
        burst: int | None = None,
        static: bool | None = None,
    ) -> None:
        refuse_unsupported(model, max_length)
        self.model, self.head = model, Head(model, temperature or 1.0)
        self.stops, self.max_rows, self.chunk = frozenset(stops), max_rows, chunk
        self.max_length = max_length
        self.temperature, self.top_p, self.truncates = temperature, top_p, top_p < 1 or temperature == 0
        if self.truncates:
            self.capabilities = frozenset()
        self.vocabulary = self.head.vocabulary
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        on_gpu = self.device.type == "cuda"
        self.burst = (BURST if on_gpu else 1) if burst is None else burst
        self.static = (on_gpu and capturable(model)) if static is None else static
        self._graphs = Graphs(model, partial(CudaCapture, self.device)) if self.static and on_gpu else None
        slots, grows = max_length + lookahead, not (on_gpu or self.static)
        self.cache = SlotCache(model.config, max_rows, slots, self.device, parameter.dtype, grows)
        self.rows = Rows(self.cache, max_rows, slots, self.device)
        self.usage, self.activity = Usage(), Activity()
        self._admission = Admission(self.rows, max_rows, max_batched_tokens)
        self._stops = torch.tensor(sorted(self.stops), dtype=torch.long, device=self.device)
        self._columns = torch.arange(self.cache.most, device=self.device)

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine to their ends, concurrently; return their results in order.

        Raises:
            RuntimeError: if they wait for each other, for rows of the cache, or for something unknown to `outside`.
            UserError: if the model's log-probabilities are NaN.
        """

        def standstill() -> str:
            if waiting := self._admission.waiting:
                return f"{waiting} sessions wait for rows of the cache, held by sessions that ask for nothing"
            return "no session asks for anything: they wait for each other, or for something outside the engine"

        training, self.activity = self.model.training, Activity()
        self.model.eval()
        if self._graphs:
            self._graphs.check()
        with torch.inference_mode(), slot_attention(self.model), sigterm_deferred():
            try:
                return asyncio.run(run_to_end(coroutines, self._pass, standstill, outside))
            finally:
                self._admission.clear()
                self.rows.clear()
                self.model.train(training)

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["TorchSession"]:
        """Open a session; it takes a row of the cache as soon as it asks for something."""
        session = TorchSession(self, list(prompt))
        try:
            yield session
        finally:
            session.close()

    def ask(self, row: Row) -> None:
        """Queue a session that set what it asks for.

        Raises:
            ValueError: for an empty prompt, or more tokens than `max_length`.
        """
        if not row.prompt:
            raise ValueError("a prompt has at least one token")
        room = 0 if isinstance(row.asked, Scoring) else row.decoding.limit
        if row.length + room > self.max_length:
            raise ValueError(f"prompt and response exceed the engine's {self.max_length} tokens")
        self._admission.add(row)

    def release(self, row: Row) -> None:
        """Give a session's row of the cache back, and forget what it asked for."""
        if row.asked is not None:
            row.asked = None
            self._admission.forget(row)
        self.rows.release(row)

    def _pass(self) -> bool:
        """One pass over the model: prefill if enough wait and have room, else decode; False if nothing is asked for."""
        self.rows.compact()
        began = now(self.device)
        self._admission.start_ready()
        if batch := self._admission.next_batch():
            scoring = isinstance(batch[0].asked, Scoring)
            (self._extend if batch[0].held else self._prefill)(batch)
            if scoring:
                self.usage.verification_seconds += now(self.device) - began
            return True
        if not self.rows.decoding:
            return False
        active = self._decode()
        seconds = (now(self.device) - began) / len(active)
        for number in active:
            self.activity.add(number, seconds)
        return True

    def _prefill(self, batch: list[Row]) -> None:
        """Fill the cache with prompts and drafts; answer those who wanted a draft scored, let the others decode."""
        sequences = [row.sequence for row in batch]
        width = max(map(len, sequences))
        padded = torch.tensor([s + [0] * (width - len(s)) for s in sequences], device=self.device)
        self.cache.prefill(torch.tensor([row.slot for row in batch], device=self.device), width)
        scoring = isinstance(batch[0].asked, Scoring)
        hidden = self._forward(padded, torch.arange(width, device=self.device)[None], None)
        for row, sequence in zip(batch, sequences, strict=True):
            row.held = sequence
        if scoring:
            self._answer_scores(batch, hidden, [0] * len(batch))
            return
        for row in batch:
            self.rows.start(row)

    def _extend(self, batch: list[Row]) -> None:
        """Score chunks behind what is in the cache, the longest first, and leave them there.

        Each row is fed as many tokens, its last ones: the token before its chunk, whose distribution is that of the
        first, and before a shorter chunk some more, so that none is written behind the end of its row.
        """
        width = len(batch[0].scoring.chunk) + 1
        starts = [max(row.length - width, 0) for row in batch]
        fed = [row.sequence[start : start + width] for row, start in zip(batch, starts, strict=True)]
        tokens = torch.tensor([part + [0] * (width - len(part)) for part in fed], device=self.device)
        rows, positions = (torch.tensor(n, device=self.device) for n in ([row.slot for row in batch], starts))
        span = self.cache.extend(rows, positions, max(starts) + width, width)
        hidden = self._behind(tokens, positions, span)
        for row in batch:
            row.held = row.sequence
        self._answer_scores(batch, hidden, starts)

    def _answer_scores(self, batch: list[Row], hidden: torch.Tensor, starts: list[int]) -> None:
        """Answer sessions, of whose tokens from `starts` on these are the hidden states."""
        for row, scores in zip(batch, scores_of(self.head, hidden, batch, starts), strict=True):
            self.usage.scored_tokens += len(scores.log_probs)
            assert isinstance(row.asked, Scoring)
            _answer(row.asked.answer, scores)
            row.asked = None

    def _decode(self) -> list[int]:
        """A burst: tokens of every decoding session without a look at who has ended.

        A first token out of a residual distribution, whose size differs from session to session, is drawn in a pass of
        its own.

        Returns:
            sessions that decoded each of the tokens.
        """
        positions, before, limits = self.rows.look()
        requests = [row.decoding for row in self.rows.live]
        first = any(request.first is not None for request in requests)
        left = [limit - had for had, limit in zip(before, limits, strict=True)]
        count = 1 if first else min(self.burst, max(left))
        # Who has no tokens left is computed all the same, and writes the slot behind its last one.
        longest = max(at + min(count, tokens + 1) for at, tokens in zip(positions, left, strict=True))
        noisy = any(request.key is not None for request in requests)
        top = self.rows.top_tokens.shape[2] if any(request.top for request in requests) else 0
        shape = Shape(len(requests), longest, noisy, top)
        if self.static and not first:
            # Rows that take nothing fill a larger shape. No session reads the last slot: a token there would be
            # followed by one that has no place.
            shape = shape.padded(self.max_rows, self.cache.most)
            self.rows.pad(shape.rows, self.max_length - 1)
        graphs, work = self._graphs if self.static and not first else None, partial(self._step, shape, first)
        for _ in range(count):
            if graphs:
                graphs.run(shape, work)
            else:
                work()
        after = self._answer_ended()
        return [sum(a + n < b for a, b in zip(before, after, strict=True)) for n in range(count)]

    def _step(self, shape: Shape, first: bool = False) -> None:
        """A token of each of the first rows; those that have ended take none.

        It is captured: it waits for nothing, and what it does follows from the shape and the tensors of the rows.

        Args:
            first: whether first tokens are to be drawn out of residual distributions; such a pass is not captured.
        """
        rows = slice(0, shape.rows)
        distributions = self._distributions(self.rows.tokens[rows, None], self.rows.positions[rows], shape.span)
        distribution, counts = distributions[:, 0], self.rows.counts[rows]
        uniforms = self.rows.uniforms[rows].gather(1, counts[:, None])[:, 0]
        tokens = sample(distribution, uniforms, self.temperature == 0, self.top_p)
        if shape.noisy:
            places = self.rows.positions[rows] + 1 - self.rows.prompts[rows]
            noise = gumbel(self.rows.keys[rows], places, distribution.shape[1])
            tokens = torch.where(self.rows.noisy[rows], (distribution.double() + noise).argmax(-1), tokens)
        if first:
            asking = [row for row in self.rows.live if row.decoding.first is not None]
            slots = torch.tensor([row.slot for row in asking], device=self.device)
            firsts, keys = [row.decoding.first for row in asking], [row.decoding.key for row in asking]
            positions, u = (self.rows.positions + 1 - self.rows.prompts)[slots], self.rows.uniforms[slots, 0]
            tokens[slots] = sample_specially(distribution[slots], firsts, u, keys, positions)
            for row in asking:
                row.decoding.first = None
        self._take(tokens[:, None], distributions, torch.ones_like(tokens), shape.top > 0)

    def _distributions(self, tokens: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Feed tokens to the first rows.

        Args:
            tokens: int64 (rows, n).
            positions: int64 (rows,), absolute position of the first of each.
            longest: slots that are in use when all have been fed, or more.

        Returns:
            log-probabilities of the next token behind each, float32 (rows, n, vocabulary).
        """
        span = self.cache.decode(positions, longest, tokens.shape[1])
        return log_probs_of(self.head(self._behind(tokens, positions, span)), self.head.temperature)

    def _behind(self, tokens: torch.Tensor, positions: torch.Tensor, span: int) -> torch.Tensor:
        """Hidden states, (rows, n, size), of tokens behind what the first `span` slots hold; others as of
        `_distributions`."""
        at = positions[:, None] + self._columns[: tokens.shape[1]]
        unseen = self._columns[:span] > at[..., None]
        mask = torch.zeros(unseen.shape, device=self.device, dtype=self.dtype).masked_fill_(unseen, -torch.inf)
        return self._forward(tokens, at, mask[:, None])

    def _take(self, tokens: torch.Tensor, distributions: torch.Tensor, drawn: torch.Tensor, top: bool) -> None:
        """Let the first rows take the tokens drawn for them, up to one that stops a response, or its limit.

        Args:
            tokens: int64 (rows, n).
            distributions: float32 (rows, n, vocabulary), the policy's distribution of each.
            drawn: int64 (rows,), number of tokens that were drawn for a session; the others are none of its own.
            top: whether any session wants the top of its distributions.
        """
        rows, width = slice(0, len(tokens)), tokens.shape[1]
        stops = (tokens[..., None] == self._stops).any(-1)  # `isin` sorts, and waits, where there are many
        until_stop = torch.where(stops.any(1), stops.to(torch.uint8).argmax(1) + 1, width + 1)
        left = self.rows.limits[rows] - self.rows.counts[rows]
        kept = torch.minimum(drawn, torch.minimum(until_stop, left))
        self.rows.advance(tokens, distributions, kept, top)
        # Who has ended has no tokens left, whatever is computed for its row in the rest of a burst.
        self.rows.limits[rows] = torch.where(kept == until_stop, self.rows.counts[rows], self.rows.limits[rows])

    def _answer_ended(self) -> list[int]:
        """Look who has ended, and answer them; return how many tokens each decoding session has."""
        _, counts, limits = self.rows.look()
        for row in reversed(self.rows.live):
            if (count := counts[row.slot]) < limits[row.slot]:
                continue
            request, place = row.decoding, (row.slot, slice(0, count))
            tokens = self.rows.out_tokens[place].cpu().numpy().copy()
            log_probs = checked(self.rows.out_log_probs[place].cpu().numpy())
            finish = Finish.EOS if int(tokens[-1]) in self.stops else Finish.LENGTH
            top = None
            if request.top:
                distributions = (self.rows.top_tokens, self.rows.top_log_probs)
                top = TopLogProbs(
                    *(distribution[place][:, : request.top].cpu().numpy().copy() for distribution in distributions)
                )
            self.rows.finish(row, tokens.tolist())
            _answer(request.answer, Continuation(tokens, log_probs, finish, request.cached, top))
        return counts

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Hidden states, (rows, width, size)."""
        return hidden_states(
            self.model,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        )


def _answer(answer: asyncio.Future[T], value: T) -> None:
    """Answer a session, unless it stopped waiting."""
    if not answer.done():
        answer.set_result(value)


class TorchSession:
    """One response in the making; see `redraft.rollout.engine.Session`."""

    def __init__(self, engine: TorchEngine, prompt: list[int]) -> None:
        self._engine, self._row = engine, Row(prompt)

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        draws: Gumbel | None = None,
        behind: int | None = None,
    ) -> Scores:
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
        residual without mass, which only rounding leaves, the policy's own distribution is drawn.

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
