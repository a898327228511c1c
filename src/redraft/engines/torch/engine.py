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

import torch
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.engines.checks import checked
from redraft.engines.torch.admission import Admission
from redraft.engines.torch.attention import slot_attention
from redraft.engines.torch.clock import now
from redraft.engines.torch.graphs import CudaCapture, Graphs, Shape, capturable
from redraft.engines.torch.head import Head, hidden_states, refuse_other_heads
from redraft.engines.torch.kv_cache import SlotCache
from redraft.engines.torch.loop import Outside, run_to_end
from redraft.engines.torch.rows import Row, Rows, Scoring
from redraft.engines.torch.sampling import gumbel, log_probs_of, sample, sample_specially
from redraft.engines.torch.scoring import scores_of
from redraft.engines.torch.session import TorchSession
from redraft.engines.torch.support import refuse_unsupported
from redraft.engines.torch.tail import Activity
from redraft.engines.usage import Usage
from redraft.ops.locking.termination import unbroken
from redraft.rollout.engine import Continuation
from redraft.rollout.types import Finish, TopLaw

T = TypeVar("T")

BURST = 16
"""Tokens of a burst on a GPU: the host looks once for each, and a response that ends waits half as many for it."""


class TorchEngine:
    """Batching engine over a transformers causal language model with standard attention.

    Args:
        model: the current policy; its weights may change between calls of `run`.
        stops: tokens that end a response.
        max_length: longest prompt and response together, tokens.
        max_rows: sessions in the cache at once; further ones wait.
        max_batched_tokens: prompt and draft tokens in one prefill pass, padding included.
        temperature: of sampling and of scoring; 0 takes the most probable token.
        top_p: of sampling.
        lookahead: tokens behind the last one of a response that a pass may compute and drop.
        chunk: draft tokens scored in a pass for who asks for chunks; None for whole drafts.
        burst: tokens of a session that are decoded before the host looks who has ended; None for `BURST`.
        static: whether passes that decode have few shapes, by padding, and replay CUDA graphs on a GPU; None for a
            model on a GPU that can be captured.

    Attributes:
        truncates: true at temperature 0 or under top-p. A truncated law has no ratio to another, so the engine then
            scores nothing and has no capabilities.
        vocabulary: number of tokens.
        activity: decoding passes of the last run.
        burst: as given; may be changed between runs.
        static: as given or found; may be set to false between runs.

    Raises:
        UserError: for a model that it would run wrongly, or that is too short for `max_length`.
    """

    capabilities: frozenset[Capability] = frozenset(
        {Capability.OTHER_SCORES, Capability.RESIDUAL, Capability.GUMBEL, Capability.TOP_LAW}
    )

    def __init__(
        self, model: PreTrainedModel, *, stops: Collection[int], max_length: int, max_rows: int = 256,
        max_batched_tokens: int = 16384, temperature: float = 1.0, top_p: float = 1.0, lookahead: int = 0,
        chunk: int | None = None, burst: int | None = None, static: bool | None = None,
    ) -> None:  # fmt: skip
        refuse_unsupported(model, max_length)
        refuse_other_heads(model)
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

        Args:
            coroutines: sessions, and what is made of them.
            outside: what they may wait for beside the engine.

        Raises:
            RuntimeError: if they wait for each other, for rows of the cache, or for something unknown to `outside`.
            UserError: if the model's log-probabilities are NaN.
        """
        training, self.activity = self.model.training, Activity()
        self.model.eval()
        if self._graphs:
            self._graphs.check()
        try:
            with torch.inference_mode(), slot_attention(self.model), unbroken():
                return asyncio.run(self._serve(coroutines, outside))
        finally:
            self.model.train(training)

    async def _serve(self, coroutines: Sequence[Coroutine[Any, Any, T]], outside: Outside | None) -> list[T]:
        try:
            return await run_to_end(coroutines, self._pass, self._standstill, outside)
        finally:
            self._admission.clear()
            self.rows.clear()

    def _standstill(self) -> str:
        if waiting := self._admission.waiting:
            return f"{waiting} sessions wait for rows of the cache, held by sessions that ask for nothing"
        return "no session asks for anything: they wait for each other, or for something outside the engine"

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator[TorchSession]:
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
        """One pass over the model: prefill if enough wait for it and have room, else decode.

        Returns:
            whether there was anything to do.
        """
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

        Each row is fed as many tokens, its last ones: the token before its chunk, whose law is that of the first, and
        before a shorter chunk some more, so that none is written behind the end of its row.
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

        A first token out of a residual law, whose size differs from session to session, is drawn in a pass of its own.

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
        if first:
            self._step(Shape(len(requests), longest, noisy, top), first=True)
        else:
            self._burst(count, self._shape(Shape(len(requests), longest, noisy, top)))
        after = self._answer_ended()
        return [sum(a + n < b for a, b in zip(before, after, strict=True)) for n in range(count)]

    def _shape(self, needed: Shape) -> Shape:
        """Shape of the passes of a burst; where it is larger than needed, rows that take nothing fill it."""
        if not self.static:
            return needed
        shape = needed.padded(self.max_rows, self.cache.most)
        # No session reads the last slot: a token there would be followed by one that has no place.
        self.rows.pad(shape.rows, self.max_length - 1)
        return shape

    def _burst(self, count: int, shape: Shape) -> None:
        """So many tokens of every decoding session."""
        work = partial(self._step, shape)
        for _ in range(count):
            if self._graphs and self.static:
                self._graphs.run(shape, work)
            else:
                work()

    def _step(self, shape: Shape, first: bool = False) -> None:
        """A token of each of the first rows; those that have ended take none.

        It is captured: it waits for nothing, and what it does follows from the shape and the tensors of the rows.

        Args:
            shape: of the pass.
            first: whether first tokens are to be drawn out of residual laws; such a pass is not captured.
        """
        rows = slice(0, shape.rows)
        laws = self._laws(self.rows.tokens[rows, None], self.rows.positions[rows], shape.span)
        tokens = self._draw(laws[:, 0], shape.noisy)
        if first:
            self._draw_firsts(tokens, laws[:, 0])
        self._take(tokens[:, None], laws, torch.ones_like(tokens), shape.top > 0)

    def _laws(self, tokens: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
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
        """Hidden states, (rows, n, size), of tokens behind what the first `span` slots hold; others as of `_laws`."""
        at = positions[:, None] + self._columns[: tokens.shape[1]]
        unseen = self._columns[:span] > at[..., None]
        mask = torch.zeros(unseen.shape, device=self.device, dtype=self.dtype).masked_fill_(unseen, -torch.inf)
        return self._forward(tokens, at, mask[:, None])

    def _take(self, tokens: torch.Tensor, laws: torch.Tensor, drawn: torch.Tensor, top: bool) -> None:
        """Let the first rows take the tokens drawn for them, up to one that stops a response, or its limit.

        Args:
            tokens: int64 (rows, n).
            laws: float32 (rows, n, vocabulary), the policy's law of each.
            drawn: int64 (rows,), number of tokens that were drawn for a session; the others are none of its own.
            top: whether any session wants the top of its laws.
        """
        rows, width = slice(0, len(tokens)), tokens.shape[1]
        stops = (tokens[..., None] == self._stops).any(-1)  # `isin` sorts, and waits, where there are many
        until_stop = torch.where(stops.any(1), stops.to(torch.uint8).argmax(1) + 1, width + 1)
        left = self.rows.limits[rows] - self.rows.counts[rows]
        kept = torch.minimum(drawn, torch.minimum(until_stop, left))
        self.rows.advance(tokens, laws, kept, top)
        # Who has ended has no tokens left, whatever is computed for its row in the rest of a burst.
        self.rows.limits[rows] = torch.where(kept == until_stop, self.rows.counts[rows], self.rows.limits[rows])

    def _draw(self, log_probs: torch.Tensor, noisy: bool) -> torch.Tensor:
        """The next token of each of the first rows, int64 (rows,); `noisy` where any draws by Gumbel noise."""
        rows = slice(0, len(log_probs))
        u = self.rows.uniforms[rows].gather(1, self.rows.counts[rows, None])[:, 0]
        tokens = sample(log_probs, u, self.temperature == 0, self.top_p)
        if not noisy:
            return tokens
        places = self.rows.positions[rows] + 1 - self.rows.prompts[rows]
        noise = gumbel(self.rows.keys[rows], places, log_probs.shape[1])
        return torch.where(self.rows.noisy[rows], (log_probs.double() + noise).argmax(-1), tokens)

    def _draw_firsts(self, tokens: torch.Tensor, log_probs: torch.Tensor) -> None:
        """Replace the tokens of sessions that draw their first one out of a residual law."""
        asking = [row for row in self.rows.live if row.decoding.first is not None]
        slots = torch.tensor([row.slot for row in asking], device=self.device)
        firsts, keys = [row.decoding.first for row in asking], [row.decoding.key for row in asking]
        positions, u = (self.rows.positions + 1 - self.rows.prompts)[slots], self.rows.uniforms[slots, 0]
        tokens[slots] = sample_specially(log_probs[slots], firsts, u, keys, positions)
        for row in asking:
            row.decoding.first = None

    def _answer_ended(self) -> list[int]:
        """Look who has ended, and answer them; return how many tokens each decoding session has."""
        _, counts, limits = self.rows.look()
        live = self.rows.live
        for slot in reversed(range(len(live))):
            if counts[slot] == limits[slot]:
                self._finish(live[slot], counts[slot])
        return counts

    def _finish(self, row: Row, count: int) -> None:
        """Answer a session that ends with so many tokens."""
        request, place = row.decoding, (row.slot, slice(0, count))
        tokens = self.rows.out_tokens[place].cpu().numpy().copy()
        log_probs = checked(self.rows.out_log_probs[place].cpu().numpy())
        finish = Finish.EOS if int(tokens[-1]) in self.stops else Finish.LENGTH
        top = None
        if request.top:
            laws = (self.rows.top_tokens, self.rows.top_log_probs)
            top = TopLaw(*(law[place][:, : request.top].cpu().numpy().copy() for law in laws))
        self.rows.finish(row, tokens.tolist())
        _answer(request.answer, Continuation(tokens, log_probs, finish, request.cached, top))

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Hidden states, (rows, width, size)."""
        return hidden_states(
            self.model, input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=self.cache,
            use_cache=True,
        )  # fmt: skip


def _answer(answer: asyncio.Future[T], value: T) -> None:
    """Answer a session, unless it stopped waiting."""
    if not answer.done():
        answer.set_result(value)
