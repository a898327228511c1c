"""The in-process engine: continuous batching of sessions over one transformers model, on a CPU or a GPU.

Sessions ask, the engine answers in passes. A pass either prefills the prompts and drafts that wait for it (which
scores the drafts and leaves their keys and values in the cache) or decodes one token of every decoding session.
Decoding sessions occupy the first rows of the cache, so that a decoding pass works on views and copies nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from redraft.config.capability import Capability
from redraft.engines.attention import slot_attention
from redraft.engines.checks import checked, refuse_draws, refuse_others
from redraft.engines.clock import now
from redraft.engines.kv_cache import SlotCache
from redraft.engines.loop import run_to_end
from redraft.engines.sampling import log_probs_of, sample
from redraft.engines.support import refuse_unsupported
from redraft.engines.usage import Usage
from redraft.rollout.engine import Continuation, Draws, Inversion, Residual, Scores
from redraft.rollout.types import Finish

T = TypeVar("T")

LOGITS_AT_ONCE = 1 << 26
"""More logits than these are normalised row by row, since the vocabulary may be large."""


@dataclass(eq=False)
class _Row:
    """A session's place in the cache and what it waits for."""

    prompt: list[int]
    slot: int = -1
    filled: int = 0
    """Slots whose keys and values belong to the prompt and the draft."""
    draft: np.ndarray | None = None
    scored: asyncio.Future | None = None
    prefix: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    limit: int = 0
    uniforms: np.ndarray | None = None
    decoded: asyncio.Future | None = None
    cached: int = 0
    """Tokens before the continuation that were in the cache when it was asked for."""

    @property
    def prefill_length(self) -> int:
        """Prompt and draft together, tokens."""
        return len(self.prompt) + (0 if self.draft is None else len(self.draft))


class TorchEngine:
    """Batching engine over a transformers causal language model with standard attention.

    Args:
        model: the current policy; its weights may change between calls of `run`.
        stops: tokens that end a response.
        max_length: longest prompt and response together, tokens.
        max_rows: sessions in the cache at once; further ones wait.
        max_batched_tokens: prompt and draft tokens in one prefill pass, padding included.
        temperature: of sampling and of scoring; 0 takes the most probable token and scores nothing.
        top_p: of sampling; scoring refuses anything but 1, since a truncated law has no ratio to another.

    Raises:
        UserError: for a model that it would run wrongly, or that is too short for `max_length`.
    """

    capabilities: frozenset[Capability] = frozenset()

    def __init__(
        self, model: PreTrainedModel, *, stops: Collection[int], max_length: int, max_rows: int = 256,
        max_batched_tokens: int = 16384, temperature: float = 1.0, top_p: float = 1.0,
    ) -> None:  # fmt: skip
        refuse_unsupported(model, max_length)
        self.model, self.stops, self.max_rows = model, frozenset(stops), max_rows
        self.max_length, self.max_batched_tokens = max_length, max_batched_tokens
        self.temperature, self.top_p = temperature, top_p
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.cache = SlotCache(model.config, max_rows, max_length, self.device, parameter.dtype)
        self.usage = Usage()
        self._waiting: list[_Row] = []
        self._ready: deque[_Row] = deque()
        self._slots: list[_Row | None] = [None] * max_rows
        self._decoding = 0
        """Rows 0 to this number, exclusive, are decoding."""
        self._stops = torch.tensor(sorted(self.stops), dtype=torch.long, device=self.device)
        self._tokens = torch.zeros(max_rows, dtype=torch.long, device=self.device)
        self._positions = torch.zeros(max_rows, dtype=torch.long, device=self.device)
        self._uniforms = torch.zeros((max_rows, max_length), dtype=torch.float64, device=self.device)
        self._out_tokens = torch.zeros((max_rows, max_length), dtype=torch.int32, device=self.device)
        self._out_log_probs = torch.zeros((max_rows, max_length), dtype=torch.float32, device=self.device)
        self._counts = torch.zeros(max_rows, dtype=torch.long, device=self.device)
        self._limits = torch.zeros(max_rows, dtype=torch.long, device=self.device)
        self._columns = torch.arange(self.cache.most, device=self.device)

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines that use this engine to their ends, concurrently; return their results in order.

        Raises:
            RuntimeError: if they wait for each other, for rows of the cache, or for something outside the engine.
            UserError: if the model's log-probabilities are NaN.
        """
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), slot_attention(self.model):
                return asyncio.run(self._serve(coroutines))
        finally:
            self.model.train(training)

    async def _serve(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        try:
            return await run_to_end(coroutines, self._pass, self._standstill)
        finally:
            self._reset()

    def _standstill(self) -> str:
        if self._waiting:
            return f"{len(self._waiting)} sessions wait for rows of the cache, held by sessions that ask for nothing"
        return "no session asks for anything: they wait for each other, or for something outside the engine"

    def _reset(self) -> None:
        self._waiting.clear()
        self._ready.clear()
        self._slots = [None] * self.max_rows
        self._decoding = 0
        self.cache.clear()

    @asynccontextmanager
    async def session(self, prompt: Sequence[int]) -> AsyncIterator["TorchSession"]:
        """Open a session; it takes a row of the cache as soon as it asks for something."""
        row = _Row(list(prompt))
        try:
            yield TorchSession(self, row)
        finally:
            self.release(row)

    def ask(self, row: _Row) -> None:
        """Queue a session that set what it wants."""
        if not row.prompt:
            raise ValueError("a prompt has at least one token")
        if max(row.prefill_length, len(row.prompt) + len(row.prefix) + row.limit) > self.max_length:
            raise ValueError(f"prompt and response exceed the engine's {self.max_length} tokens")
        (self._ready if row.filled else self._waiting).append(row)

    def release(self, row: _Row) -> None:
        """Give a session's row of the cache back; nothing happens if it has none."""
        if row.slot >= 0 and self._slots[row.slot] is row:
            self._slots[row.slot] = None
            row.slot = -1

    def _pass(self) -> bool:
        """One pass over the model: prefill if enough wait for it and have room, else decode one token each.

        Returns:
            whether there was anything to do.
        """
        began = now(self.device)
        while self._ready:
            self._start(self._ready.popleft())
        if batch := self._admit():
            scoring = batch[0].scored is not None
            self._prefill(batch)
            if scoring:
                self.usage.verification_seconds += now(self.device) - began
            return True
        if not self._decoding:
            return False
        self._decode()
        return True

    def _admit(self) -> list[_Row]:
        """Those waiting that go into one prefill pass; while others decode, only if an eighth of the rows is free."""
        free = [slot for slot in range(self._decoding, self.max_rows) if self._slots[slot] is None]
        if self._decoding and len(free) < min(len(self._waiting), self.max_rows // 8):
            return []
        # Longest first: rows of a pass need little padding, and those that may decode longest start earliest.
        self._waiting.sort(key=lambda row: (row.scored is None, -row.prefill_length))
        batch: list[_Row] = []
        for slot, row in zip(free, self._waiting, strict=False):
            full = (len(batch) + 1) * self._waiting[0].prefill_length > self.max_batched_tokens
            if batch and (full or (row.scored is None) != (batch[0].scored is None)):
                break
            row.slot, self._slots[slot] = slot, row
            batch.append(row)
        del self._waiting[: len(batch)]
        return batch

    def _prefill(self, batch: list[_Row]) -> None:
        """Fill the cache with prompts and drafts; answer whoever wanted a draft scored."""
        sequences = [row.prompt + (row.draft.tolist() if row.draft is not None else []) for row in batch]
        width = max(map(len, sequences))
        padded = torch.tensor([s + [0] * (width - len(s)) for s in sequences], device=self.device)
        self.cache.prefill(torch.tensor([row.slot for row in batch], device=self.device), width)
        scoring = batch[0].scored is not None
        logits = self._forward(padded, torch.arange(width, device=self.device)[None], None, keep=0 if scoring else 1)
        for row, sequence in zip(batch, sequences, strict=True):
            row.filled = len(sequence)
        if not scoring:
            for row in batch:
                self._start(row)
            return
        chosen = self._chosen(logits, padded).cpu().numpy()
        for row, log_probs in zip(batch, chosen, strict=True):
            first = len(row.prompt) - 1
            assert row.draft is not None
            assert row.scored is not None
            self.usage.scored_tokens += len(row.draft)
            row.scored.set_result(checked(log_probs[first : first + len(row.draft)]))
            row.scored = None

    def _chosen(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probability of each next token, (rows, width - 1)."""
        following = tokens[:, 1:, None]
        if logits.numel() <= LOGITS_AT_ONCE:
            return log_probs_of(logits[:, :-1], self.temperature).gather(2, following)[..., 0]
        rows = zip(logits, following, strict=True)
        return torch.stack([log_probs_of(row[:-1], self.temperature).gather(1, f)[:, 0] for row, f in rows])

    def _start(self, row: _Row) -> None:
        """Let a filled session decode: it moves to the end of the decoding rows."""
        assert row.uniforms is not None
        self._place(row, self._decoding)
        self._decoding += 1
        slot, known = row.slot, row.prompt + row.prefix.tolist()
        self._tokens[slot], self._positions[slot] = known[-1], len(known) - 1
        self._counts[slot], self._limits[slot] = 0, row.limit
        self._uniforms[slot, : row.limit] = torch.from_numpy(row.uniforms[: row.limit])
        row.filled = len(known)

    def _place(self, row: _Row, target: int) -> None:
        """Bring a session to a slot; whoever sits there takes its old one."""
        if row.slot == target:
            return
        other = self._slots[target]
        if other is None:
            self.cache.move(row.slot, target, row.filled)
        else:
            self.cache.swap(row.slot, target, max(row.filled, other.filled))
            other.slot = row.slot
        self._slots[row.slot], self._slots[target] = other, row
        row.slot = target

    def _decode(self) -> None:
        """One token of every decoding session."""
        rows = slice(0, self._decoding)
        positions = self._positions[rows]
        span = self.cache.decode(positions, int(positions.max()) + 1)
        unseen = self._columns[None, :span] > positions[:, None]
        mask = torch.zeros(unseen.shape, device=self.device, dtype=self.dtype).masked_fill_(unseen, -torch.inf)
        logits = self._forward(self._tokens[rows, None], positions[:, None], mask[:, None, None], keep=1)[:, 0]
        counts = self._counts[rows, None]
        u = self._uniforms[rows].gather(1, counts)[:, 0]
        tokens, log_probs = sample(logits, u, self.temperature, self.top_p)
        self._out_tokens[rows].scatter_(1, counts, tokens[:, None].to(torch.int32))
        self._out_log_probs[rows].scatter_(1, counts, log_probs[:, None])
        self._tokens[rows] = tokens
        self._positions[rows] += 1
        self._counts[rows] += 1
        stopped = torch.isin(tokens, self._stops)
        finished = (stopped | (self._counts[rows] >= self._limits[rows])).nonzero()[:, 0].tolist()
        for slot in reversed(finished):
            self._finish(slot)

    def _finish(self, slot: int) -> None:
        """Answer a session; the last decoding row takes its place."""
        row = self._slots[slot]
        assert row is not None
        assert row.decoded is not None
        count = int(self._counts[slot])
        tokens = self._out_tokens[slot, :count].cpu().numpy().copy()
        log_probs = checked(self._out_log_probs[slot, :count].cpu().numpy())
        finish = Finish.EOS if int(tokens[-1]) in self.stops else Finish.LENGTH
        row.decoded.set_result(Continuation(tokens, log_probs, finish, row.cached))
        row.decoded = None
        self._slots[slot] = None
        row.slot, row.filled = -1, 0  # asked again, the session starts over
        self._decoding -= 1
        last = self._slots[self._decoding]
        if slot == self._decoding or last is None:
            return
        self.cache.move(self._decoding, slot, int(self._positions[self._decoding]))
        one_number = (self._tokens, self._positions, self._counts, self._limits)
        for state in (*one_number, self._uniforms, self._out_tokens, self._out_log_probs):
            state[slot] = state[self._decoding]
        self._slots[slot], self._slots[self._decoding] = last, None
        last.slot = slot

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, keep: int
    ) -> torch.Tensor:
        output = self.model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=self.cache,
            use_cache=True, logits_to_keep=keep,
        )  # fmt: skip
        return output.logits


class TorchSession:
    """One response in the making on a `TorchEngine`."""

    def __init__(self, engine: TorchEngine, row: _Row) -> None:
        self._engine, self._row = engine, row

    async def score(self, draft: np.ndarray, at: np.ndarray | None = None) -> Scores:
        """Score a draft under the current policy; see `redraft.rollout.engine.Session`."""
        refuse_others(self._engine.capabilities, at)
        if self._engine.top_p < 1 or self._engine.temperature == 0:
            raise ValueError("a draft cannot be scored under top-p sampling or at temperature 0")
        row = self._row
        row.draft, row.filled = draft, 0
        self._engine.release(row)
        row.scored = asyncio.get_running_loop().create_future()
        self._engine.ask(row)
        return Scores(await row.scored)

    async def decode(
        self, prefix: np.ndarray, max_new_tokens: int, draws: Draws, first: Residual | None = None, top: int = 0
    ) -> Continuation:
        """Sample behind prompt and prefix; see `redraft.rollout.engine.Session`."""
        refuse_draws(self._engine.capabilities, draws, first, top)
        assert isinstance(draws, Inversion)
        uniforms = draws.uniforms
        if max_new_tokens < 1 or len(uniforms) < max_new_tokens:
            raise ValueError(f"decoding needs at least one token and as many uniforms, got {max_new_tokens}")
        row = self._row
        if len(prefix) and (row.draft is None or not np.array_equal(prefix, row.draft[: len(prefix)])):
            row.draft, row.filled = prefix, 0  # not what was scored: prefill it
            self._engine.release(row)
        row.prefix, row.limit, row.uniforms = prefix, max_new_tokens, uniforms
        # The last token before the continuation is computed again: what comes behind it depends on its logits.
        row.cached = len(row.prompt) + len(prefix) - 1 if row.filled else 0
        row.decoded = asyncio.get_running_loop().create_future()
        self._engine.ask(row)
        return await row.decoded
