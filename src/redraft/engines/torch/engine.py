"""The in-process engine: continuous batching of sessions over one transformers model, on a CPU or a GPU.

How a request travels:

1. *Session.* A strategy opens a session for a prompt and awaits its `score` or `decode`. `TorchSession` checks the
   arguments and queues a `ScoreRequest` or `DecodeRequest` with a future for the answer.
2. *Admission.* The event loop (`loop.run_to_end`) lets every coroutine run until it waits, then calls `_pass`.
   `Admission.next_batch` decides what the pass computes: a prefill of sessions that get a row of the cache now, further
   chunks of drafts for sessions that have one, or else tokens for the decoding sessions.
3. *Prefill* (`_prefill`, `_extend`). Prompt and draft or prefix go through the model, which leaves their keys and
   values in the row; of a large model, a prompt that several sessions have goes through it once. The hidden states of
   a draft give its scores, which answer a score request. A decode request joins the decoding rows at the front of the
   `RowTable`.
4. *Decoding* (`_decode`). Each step feeds the last token of every decoding row and samples the next one on the device.
   The host checks for finished responses once per burst: after up to 16 tokens on a GPU, where each step has a static
   shape and is replayed as a CUDA graph (`redraft.engines.torch.graphs`), and after each token on a CPU.
5. *Answer* (`_answer_ended`). Tokens and log-probabilities of finished responses are copied to the host and resolve the
   futures. A session keeps its row until it is closed, so that a second request reuses what is cached.

Shapes: B rows of a pass, T tokens of a row in a pass, V vocabulary, K top tokens, H hidden size, S slots of a row
(absolute positions). A prefill feeds `tokens_BT` padded on the right. A decoding pass feeds one token of each row, or a
block of n + 1 in speculation, and gets `log_probs_BTV`. The tables of `RowTable` are (R,) and (R, L): R rows of
the cache, L response positions; a decoding pass works on their first B rows.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.engines.requests import Usage, check_capabilities, checked, chunk_end
from redraft.engines.torch.graphs import CudaCapture, Graphs, Shape, capturable
from redraft.engines.torch.head import Head, check_supported, distributions, hidden_states
from redraft.engines.torch.invariant import invariant_passes
from redraft.engines.torch.kv_cache import SlotCache, slot_attention
from redraft.engines.torch.loop import Activity, Outside, in_new_loop, now, run_to_end
from redraft.engines.torch.packed import large, packed_weights
from redraft.engines.torch.row_table import Admission, DecodeRequest, RowTable, ScoreRequest, SessionState
from redraft.engines.torch.sampling import gumbel, keys_of, log_probs_of, sample, sample_specially
from redraft.errors import UserError
from redraft.ops.locking.termination import exit_deferred
from redraft.rollout.engine import Continuation, Gumbel, Inversion, Noise, Residual, Scores
from redraft.rollout.types import Finish, TopLogProbs
from redraft.selfspec.controller import extend

T = TypeVar("T")

GPU_BURST_TOKENS = 16
"""Tokens per burst on a GPU: the host waits for the device once per burst, and a response that ends waits for half of
a burst on average."""


class TorchEngine:
    """Batching engine over a transformers causal language model with standard attention.

    Args:
        model: the current policy; its weights may change between calls of `run`.
        max_length: longest prompt and response together, tokens.
        max_rows: sessions in the cache at once; further ones wait.
        max_batched_tokens: prompt and draft tokens in one prefill pass, padding included.
        temperature: of sampling and of scoring; 0 takes the most probable token.
        lookahead: tokens after the last one of a response that a pass may compute and drop.
        chunk: draft tokens per scoring pass for sessions that score by chunks; None for whole drafts.
        burst: tokens of a session between two checks of the host for finished responses; None for 1 on a CPU and
            `GPU_BURST_TOKENS` on a GPU.
        bitwise: whether answers are bit by bit the same in any batch (`redraft.engines.torch.invariant`).
        static: whether decoding passes are padded to few shapes, and replayed as CUDA graphs on a GPU; None for true
            where a model on a GPU can be captured.
        autocast: type of PyTorch's automatic mixed precision, in which a trainer computes this model; None for passes
            in the precision of the weights. Weights are cast once a run, so passes are never captured.

    Attributes:
        truncates: true at temperature 0 or under top-p. A truncated distribution has no ratio to another, so the engine
            then scores nothing and has no capabilities.
        activity: decoding passes of the last run.
        burst: tokens per burst; may be changed between runs.
        static: may be set to false between runs.
        shares_prompts: whether a prompt that several sessions have is computed once and copied; true for a large model.
            A small one keeps the bits of its results, which depend on the shapes of passes.

    Raises:
        UserError: for a model that it would compute wrongly, or that has fewer positions than `max_length`.
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
        bitwise: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        check_supported(model, max_length, lookahead)
        # At temperature 0 the argmax is sampled, which no other temperature of the head would change.
        self.model, self.head = model, Head(model, temperature or 1.0)
        self.stops, self.max_rows, self.chunk = frozenset(stops), max_rows, chunk
        self.max_length = max_length
        self.temperature, self.top_p, self.truncates = temperature, top_p, top_p < 1 or temperature == 0
        if self.truncates:
            self.capabilities = frozenset()
        self.vocabulary = self.head.vocabulary
        parameter = next(model.parameters())
        self.device, self.dtype, self.autocast = parameter.device, autocast or parameter.dtype, autocast
        on_gpu = self.device.type == "cuda"
        self.bitwise = bitwise
        if bitwise and (on_gpu or self.dtype != torch.float32):
            raise UserError(
                "the in-process engine is bit-identical in float32 on a processor only",
                key="engine.bitwise",
                value=f"true, with {self.dtype} on {self.device.type}",
                allowed="device cpu and dtype float32; on GPUs engine.kind verl",
            )
        self.burst = (GPU_BURST_TOKENS if on_gpu else 1) if burst is None else burst
        self.static = (on_gpu and autocast is None and capturable(model)) if static is None else static
        self.shares_prompts = not bitwise and large(model)
        self._graphs = Graphs(model, partial(CudaCapture, self.device)) if self.static and on_gpu else None
        # A growing cache moves to another buffer; graphs need fixed addresses, and static passes a fixed size.
        slots, grows = max_length + lookahead, not (on_gpu or self.static)
        self.cache = SlotCache(model.config, max_rows, slots, self.device, self.dtype, grows)
        self.rows = RowTable(self.cache, max_rows, slots, self.device, self.stops)
        self.admission = Admission(self.rows, max_batched_tokens)
        self.usage, self.activity = Usage(), Activity()
        self._slots_S = torch.arange(self.cache.max_slots, device=self.device)

    def run(self, *coroutines: Coroutine[Any, Any, T], outside: Outside | None = None) -> list[T]:
        """Run coroutines that use this engine concurrently, to their ends; return their results in order.

        Raises:
            RuntimeError: if they wait for each other, for rows of the cache, or for something unknown to `outside`.
            UserError: if the model's log-probabilities are NaN.
        """

        def standstill() -> str:
            if waiting := len(self.admission.waiting):
                return f"{waiting} sessions wait for rows of the cache, all occupied by sessions without a request"
            return "no session has a request: they wait for each other, or for something outside the engine"

        async def everything() -> list[T]:
            # In the loop, since inference mode and autocast are those of a thread.
            with self.passes():
                return await run_to_end(coroutines, self._pass, standstill, outside)

        training, self.activity = self.model.training, Activity()
        self.model.eval()
        if self._graphs:
            # The weights may have moved since the last run.
            self._graphs.check()
        # The exit on a signal is deferred, since its exception inside the event loop could lose a task's callback and
        # hang the loop; `run_to_end` checks for it between passes.
        with exit_deferred():
            try:
                return in_new_loop(everything)
            finally:  # all sessions are closed, and have left the queues
                self.rows.clear()
                self.model.train(training)

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Let the model compute this engine's passes within the block; its weights must not change there."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.bitwise:
                stack.enter_context(invariant_passes(self.model, self.cache.max_slots))
            else:
                stack.enter_context(slot_attention(self.model))
                # Packed products have the weights' own precision.
                mixed = torch.autocast(self.device.type, self.autocast) if self.autocast else packed_weights(self.model)
                stack.enter_context(mixed)
            yield

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["TorchSession"]:
        """Open a session; its first request gets it a row of the cache."""
        state = SessionState(list(prompt))
        try:
            yield TorchSession(self, state)
        finally:
            self.release(state)

    def release(self, session: SessionState) -> None:
        """Drop a session's request and free its row."""
        if session.request is not None:
            self.admission.forget(session.request)
            session.request = None
        self.rows.release(session)

    def _pass(self) -> bool:
        """One pass over the model: prefill, further chunks of drafts, or decoding; False without any request."""
        # Before admission, which looks for free rows after the decoding ones only.
        self.rows.compact()
        began = now(self.device)
        if batch := self.admission.next_batch():
            chunks = [request for request in batch if isinstance(request, ScoreRequest)]
            # A batch has either further chunks, whose sessions have tokens in the cache, or prefills, whose sessions
            # have none.
            further = chunks and chunks[0].session.cached
            hidden_BTH, starts = self._extend(chunks) if further else self._prefill(batch)
            for request in batch:
                request.session.cached = request.sequence
                if isinstance(request, DecodeRequest):
                    self.rows.start(request)
            if chunks:
                self._answer_scores(chunks, hidden_BTH, starts)
                # A prefill for decoding is part of the rollout instead, as in the paper.
                self.usage.verification_seconds += now(self.device) - began
            return True
        if not self.rows.decoding:
            return False
        active = self._decode()
        seconds = (now(self.device) - began) / len(active)
        self.activity.passes += len(active)
        for count in active:
            self.activity.seconds[count] += seconds
        return True

    def _prefill(self, batch: Sequence[ScoreRequest | DecodeRequest]) -> tuple[torch.Tensor, list[int]]:
        """Compute prompts with their drafts or prefixes from slot 0 on.

        Returns:
            hidden states (B, T, H), and the position of each row's first one; of a batch with drafts only.
        """
        if self.shares_prompts and self._copy_prompts(batch):
            drafts = [request for request in batch if isinstance(request, ScoreRequest)]
            return self._extend(drafts) if drafts else (torch.empty(0), [])
        rows = [request.session.row for request in batch]
        return self._fill(rows, [request.sequence for request in batch]), [0] * len(batch)

    def _copy_prompts(self, batch: Sequence[ScoreRequest | DecodeRequest]) -> bool:
        """Leave in each row what comes before a draft, or before the first new token: computed once, then copied.

        Returns:
            whether it was done. Drafts then take a second pass, which pays if at least half of the batch is copied.
        """
        # Without the last token, which is fed again with the draft or by the first decoding pass.
        heads = [tuple((r.session.prompt if isinstance(r, ScoreRequest) else r.sequence)[:-1]) for r in batch]
        # Of other sessions, whose rows begin with all of their prompts but the last token.
        known = {tuple(one.prompt[:-1]): one.row for one in self.rows.sessions if one is not None and one.cached}
        new = {head: r.session.row for head, r in zip(heads, batch, strict=True) if head not in known}
        if not all(heads) or 2 * len(new) > len(batch):
            return False
        if new:
            self._fill(list(new.values()), [list(head) for head in new])
        sources = known | new
        for head, request in zip(heads, batch, strict=True):
            if (source := sources[head]) != request.session.row:
                self.cache.move(source, request.session.row, len(head))
        return True

    def _fill(self, rows: Sequence[int], sequences: Sequence[list[int]]) -> torch.Tensor:
        """Compute sequences from slot 0 of these rows on; hidden states (B, T, H)."""
        width = max(map(len, sequences))
        # Padding on the right is not seen by causal attention, and its slots are overwritten before they are attended
        # to.
        padded = [sequence + [0] * (width - len(sequence)) for sequence in sequences]
        self.cache.prefill(torch.tensor(rows, device=self.device), width)
        return self._forward(torch.tensor(padded, device=self.device), self._slots_S[None, :width], None)

    def _extend(self, batch: Sequence[ScoreRequest]) -> tuple[torch.Tensor, list[int]]:
        """Compute chunks of drafts after what their rows have, and leave their keys and values in the cache.

        Each row is fed the same number of tokens, its last ones: the chunk and the token before it, whose hidden state
        gives the distribution of the chunk's first token. A shorter chunk is fed more tokens before it instead of
        padding after it, so that nothing is written beyond the end of its row.

        Returns:
            hidden states (B, T, H), and the position of each row's first one.
        """
        width = 1 + max(request.chunk.stop - request.chunk.start for request in batch)
        starts = [max(len(request.sequence) - width, 0) for request in batch]
        fed = [request.sequence[start : start + width] for request, start in zip(batch, starts, strict=True)]
        # Padded only if prompt and draft together are shorter than the widest chunk; the row has slots for it.
        tokens_BT = torch.tensor([part + [0] * (width - len(part)) for part in fed], device=self.device)
        rows_B = torch.tensor([request.session.row for request in batch], device=self.device)
        positions_B = torch.tensor(starts, device=self.device)
        span = self.cache.decode(positions_B, max(starts) + width, width, rows_B)
        return self._hidden_after(tokens_BT, positions_B, span), starts

    def _answer_scores(self, batch: Sequence[ScoreRequest], hidden_BTH: torch.Tensor, starts: Sequence[int]) -> None:
        """Score drafts or chunks; only their own positions go through the head.

        The batch is scored together: each position for the most further tokens and top tokens of any request. Each
        answer has only what its request wants.

        Args:
            starts: position of each row's first hidden state, before its chunk.
        """
        lengths = [request.chunk.stop - request.chunk.start for request in batch]
        # The hidden state at a position has the distribution of the next token.
        firsts = [len(r.session.prompt) + r.chunk.start - 1 - start for r, start in zip(batch, starts, strict=True)]
        spans = [slice(first, first + length) for first, length in zip(firsts, lengths, strict=True)]
        # From here on the chunks of all rows follow each other in one dimension, N positions.
        hidden_NH = torch.cat([of_row[span] for of_row, span in zip(hidden_BTH, spans, strict=True)])
        tokens_N = torch.tensor(np.concatenate([r.draft[r.chunk] for r in batch]), dtype=torch.long, device=self.device)
        widths = [0 if r.others is None else r.others.shape[1] for r in batch]
        others_NK = torch.zeros((len(tokens_N), max(widths)), dtype=torch.long, device=self.device)
        for request, width, part in zip(batch, widths, others_NK.split(lengths), strict=True):
            if request.others is not None:
                part[:, :width] = torch.tensor(request.others)
        top, noisy = max(request.top for request in batch), any(request.noise for request in batch)
        if noisy:
            each = zip(batch, lengths, strict=True)
            keys_N = keys_of([r.noise.key if r.noise else 0 for r, n in each for _ in range(n)], self.device)
            positions_N = torch.cat([torch.arange(r.chunk.start, r.chunk.stop, device=self.device) for r in batch])
        columns = []
        for part, log_probs_NV in distributions(self.head, self.vocabulary, hidden_NH, self.head.temperature):
            own = log_probs_NV.gather(1, tokens_N[part, None])[:, 0]
            # With a large vocabulary a part is one position, where an empty result takes as long as a short one.
            none_N0 = log_probs_NV[:, :0]
            others = log_probs_NV.gather(1, others_NK[part]) if others_NK.shape[1] else none_N0
            values, ids = log_probs_NV.topk(top) if top else (none_N0, none_N0)
            sampled = tokens_N[part]  # without noise it fills a column that no answer takes
            if noisy:
                noise = gumbel(keys_N[part], positions_N[part], log_probs_NV.shape[1])
                # As in `_step`, so that a position is verified by the token that decoding would sample there.
                sampled = (log_probs_NV.double() + noise).argmax(-1)
            columns.append([own, others, ids.int(), values, sampled.int()])
        ends = np.cumsum(lengths)[:-1]
        parts = [np.split(torch.cat(column).cpu().numpy(), ends) for column in zip(*columns, strict=True)]
        for request, width, own, others, ids, tops, sampled in zip(batch, widths, *parts, strict=True):
            scores = Scores(
                checked(own),
                None if request.others is None else checked(others[:, :width]),
                TopLogProbs(ids[:, : request.top], tops[:, : request.top]) if request.top else None,
                None if request.noise is None else sampled,
            )
            self.usage.scored_tokens += len(own)
            request.session.request = None
            if not request.answer.done():  # cancelled
                request.answer.set_result(scores)

    def _decode(self) -> list[int]:
        """One burst: up to `burst` tokens of every decoding session, then answers to those that have ended.

        A first token from a residual distribution, whose size differs between sessions, is sampled in a burst of one
        token, which is neither padded nor captured.

        Returns:
            sessions that decoded each of the tokens.
        """
        # The one wait for the device before the burst.
        positions, before, limits = self.rows.numbers[:3, : self.rows.decoding].tolist()
        requests = self.rows.live
        residual = any(request.first is not None for request in requests)
        left = [limit - count for count, limit in zip(before, limits, strict=True)]
        count = 1 if residual else min(self.burst, max(left))
        # A row without tokens left is computed all the same, and writes the slot after its last one.
        span = max(at + min(count, tokens + 1) for at, tokens in zip(positions, left, strict=True))
        noisy = any(request.key is not None for request in requests)
        top = self.rows.top_tokens.shape[2] if any(request.top for request in requests) else 0
        shape = Shape(len(requests), span, noisy, top)
        if self.static and not residual:
            # Padding rows write the last slot. No session reads it: a token there would be followed by one beyond
            # `max_length`.
            shape = shape.padded(self.max_rows, self.cache.max_slots)
            self.rows.pad(shape.rows, self.max_length - 1)
        graphs, work = self._graphs if self.static and not residual else None, partial(self._step, shape, residual)
        for _ in range(count):
            if graphs:
                graphs.run(shape, work)
            else:
                work()
        after = self._answer_ended()
        active = [sum(a + n < b for a, b in zip(before, after, strict=True)) for n in range(count)]
        # Within a burst the length is that of all its sessions, also of those that have ended.
        length = sum(positions) / len(positions) + 1
        for n, sessions in enumerate(active):
            if sessions:
                extend(self.activity.trace, sessions, 0, length + n)
        return active

    def _step(self, shape: Shape, residual: bool = False) -> None:
        """Sample one token of each of the first rows; rows that have ended keep none.

        Captured as a CUDA graph unless `residual`: it waits for nothing, and its work depends on the shape and on
        tensors of the table alone.

        Args:
            residual: whether to sample first tokens of some sessions from residual distributions.
        """
        rows = slice(0, shape.rows)
        log_probs_BTV = self._distributions(self.rows.tokens[rows, None], self.rows.positions[rows], shape.span)
        log_probs_BV, counts_B = log_probs_BTV[:, 0], self.rows.counts[rows]
        # A row that has ended reads the entry after its last one. The table has it: it is as long as the cache, and a
        # prompt takes at least one position.
        uniforms_B = self.rows.uniforms[rows].gather(1, counts_B[:, None])[:, 0]
        tokens_B = sample(log_probs_BV, uniforms_B, self.temperature == 0, self.top_p)
        if shape.noisy:
            index_B = self.rows.positions[rows] + 1 - self.rows.prompts[rows]  # of the new token in the response
            noise_BV = gumbel(self.rows.keys[rows], index_B, log_probs_BV.shape[1])
            # Both ways are computed for every row: a captured step cannot branch on the table's content.
            tokens_B = torch.where(self.rows.noisy[rows], (log_probs_BV.double() + noise_BV).argmax(-1), tokens_B)
        if residual:
            requests = [request for request in self.rows.live if request.first is not None]
            rows_R = torch.tensor([request.session.row for request in requests], device=self.device)
            firsts, keys = [request.first for request in requests], [request.key for request in requests]
            index_R = (self.rows.positions + 1 - self.rows.prompts)[rows_R]
            uniforms_R = self.rows.uniforms[rows_R, 0]
            tokens_B[rows_R] = sample_specially(log_probs_BV[rows_R], firsts, uniforms_R, keys, index_R)
            for request in requests:
                request.first = None
        self.rows.advance(tokens_B[:, None], log_probs_BTV, torch.ones_like(tokens_B), shape.top > 0)

    def _distributions(self, tokens_BT: torch.Tensor, positions_B: torch.Tensor, longest: int) -> torch.Tensor:
        """Feed tokens to the first rows; log-probabilities (B, T, V), float32, of the token after each.

        Args:
            tokens_BT: int64.
            positions_B: int64, absolute position of each row's first token.
            longest: slots of the longest row after the pass, or more.
        """
        hidden_BTH = self._hidden_of_block(tokens_BT, positions_B, longest)
        return log_probs_of(self.head(hidden_BTH), self.head.temperature)

    def _hidden_of_block(self, tokens_BT: torch.Tensor, positions_B: torch.Tensor, longest: int) -> torch.Tensor:
        """Feed tokens to the first rows as `_distributions` does; hidden states (B, T, H)."""
        rows_B, count = None, len(tokens_BT)
        if self.dtype == torch.bfloat16 and self.device.type == "cpu" and tokens_BT.numel() == 1:
            # A single token is computed twice: the product of one vector adds in another order than that of two, and
            # than scoring does (`redraft.engines.torch.kv_cache`).
            tokens_BT, positions_B = tokens_BT.expand(2, 1), positions_B.expand(2)
            rows_B = torch.zeros(2, dtype=torch.long)
        span = self.cache.decode(positions_B, longest, tokens_BT.shape[1], rows_B)
        return self._hidden_after(tokens_BT, positions_B, span)[:count]

    def _hidden_after(self, tokens_BT: torch.Tensor, positions_B: torch.Tensor, span: int) -> torch.Tensor:
        """Hidden states (B, T, H) of tokens that attend to the first `span` slots, up to their own positions."""
        positions_BT = positions_B[:, None] + self._slots_S[: tokens_BT.shape[1]]
        later_BTS = self._slots_S[:span] > positions_BT[..., None]
        mask_BTS = torch.zeros(later_BTS.shape, device=self.device, dtype=self.dtype)
        mask_BTS.masked_fill_(later_BTS, -torch.inf)
        return self._forward(tokens_BT, positions_BT, mask_BTS[:, None])

    def _answer_ended(self) -> list[int]:
        """Answer the requests of finished responses; return the number of tokens of each decoding session."""
        _, counts, limits = self.rows.numbers[:3, : self.rows.decoding].tolist()
        for request in reversed(self.rows.live):
            row = request.session.row
            if (count := counts[row]) < limits[row]:
                continue
            # Copies: on a CPU these are views of the table, which the row's next session overwrites.
            tokens = self.rows.out_tokens[row, :count].cpu().numpy().copy()
            log_probs = checked(self.rows.out_log_probs[row, :count].cpu().numpy())
            finish = Finish.EOS if int(tokens[-1]) in self.stops else Finish.LENGTH
            top = None
            if request.top:
                tables = (self.rows.top_tokens, self.rows.top_log_probs)
                top = TopLogProbs(*(table[row, :count, : request.top].cpu().numpy().copy() for table in tables))
            self.rows.finish(request, tokens.tolist())
            if not request.answer.done():  # cancelled
                request.answer.set_result(Continuation(tokens, log_probs, finish, request.cached, top))
        return counts

    def _forward(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Hidden states (B, T, H); the mask is (B, 1, T, S), added to attention scores, or None for a prefill."""
        return hidden_states(
            self.model,
            input_ids=tokens_BT,
            position_ids=positions_BT,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        )


@dataclass(eq=False)
class TorchSession:
    """One response in progress; see `redraft.rollout.engine.Session`."""

    _engine: TorchEngine
    _state: SessionState

    async def score(
        self,
        draft: np.ndarray,
        at: np.ndarray | None = None,
        top: int = 0,
        noise: Gumbel | None = None,
        scored: int | None = None,
    ) -> Scores:
        """Score a draft or its next chunk; it replaces what the session had in the cache after the tokens before it.

        Raises:
            UserError: if a log-probability is NaN, or for more than the draft on an engine that truncates the policy.
            ValueError: if the engine truncates the policy, the sequence is too long, or shapes do not fit.
        """
        if self._engine.truncates:
            raise ValueError("a draft cannot be scored under top-p sampling or at temperature 0")
        check_capabilities(self._engine.capabilities, others=at is not None, noise=noise is not None, top=top)
        if at is not None and (at.ndim != 2 or len(at) != len(draft)):
            raise ValueError(f"shapes do not fit: {draft.shape}, {at.shape}")
        first, end = scored or 0, chunk_end(len(draft), scored, self._engine.chunk)
        sequence = self._state.prompt + draft[:end].tolist()
        # A further chunk needs all tokens in the cache but the one before it, which is fed again. A first chunk starts
        # from slot 0, and a session with a row would not get a prefill.
        self._keep(sequence[: len(self._state.prompt) + first - 1] if first else None)
        answer: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        top, others = min(top, self._engine.vocabulary), None if at is None else at[first:end]
        request = ScoreRequest(self._state, sequence, draft, slice(first, end), others, top, noise, answer)
        return await self._request(request, 0)

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, noise: Noise, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample after prompt and prefix.

        If all tokens but the last are in the cache, only the last one is computed. A residual without mass, which only
        rounding leaves, is replaced by the policy's own distribution.

        Raises:
            UserError: if a log-probability is NaN, or for what the engine lacks while it truncates the policy.
            ValueError: if there are too few uniforms, the sequence is too long, or shapes do not fit.
        """
        uniforms, key = (noise.uniforms, None) if isinstance(noise, Inversion) else (None, noise.key)
        check_capabilities(self._engine.capabilities, residual=first is not None, noise=key is not None, top=top)
        if max_new_tokens < 1 or (uniforms is not None and len(uniforms) < max_new_tokens):
            raise ValueError(f"decoding needs at least one token and as many uniforms, got {max_new_tokens}")
        if first is not None and first.tokens.shape != first.left.shape:
            raise ValueError(f"shapes do not fit: {first.tokens.shape}, {first.left.shape}")
        sequence = self._state.prompt + prefix.tolist()
        # The last token is fed by the first decoding pass, and need not be in the cache.
        self._keep(sequence[:-1])
        cached, top = len(sequence) - 1 if self._state.cached else 0, min(top, self._engine.vocabulary)
        answer: asyncio.Future[Continuation] = asyncio.get_running_loop().create_future()
        request = DecodeRequest(self._state, sequence, max_new_tokens, uniforms, key, first, top, answer, cached)
        return await self._request(request, max_new_tokens)

    def _keep(self, before: list[int] | None) -> None:
        """Keep the session's row if it begins with the tokens `before`, else free it; None always frees it."""
        if self._state.request is not None:
            raise ValueError("a session makes one request at a time")
        if before is None or before != self._state.cached[: len(before)]:
            self._engine.release(self._state)

    async def _request(self, request: Any, new_tokens: int) -> Any:
        """Queue a request and wait for its answer; a cancelled one gives the row back."""
        state, max_length = self._state, self._engine.max_length
        state.request = request
        try:
            if not state.prompt:
                raise ValueError("a prompt has at least one token")
            if len(request.sequence) + new_tokens > max_length:
                raise ValueError(f"prompt and response exceed the engine's {max_length} tokens")
            self._engine.admission.add(request)
            return await request.answer
        finally:
            # Still there only if the wait was cancelled, or no answer came because of an error.
            if state.request is request:
                self._engine.release(state)
