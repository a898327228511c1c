"""Rows of the cache: which session sits where, what its decoding needs on the device, and which one is computed next.

Decoding sessions occupy the first rows, so that a decoding pass works on views and copies nothing. A session keeps its
row until it is left: behind the decoding ones it costs nothing but its place, and a second request of it finds what
the first one computed. Prefill always fills a row from its first slot on; a prefix to decode behind that is only in
part in the cache is computed again.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from redraft.engines.torch.kv_cache import SlotCache
from redraft.rollout.engine import Continuation, Draws, Gumbel, Inversion, Residual, Scores
from redraft.rollout.streams import signed


@dataclass(eq=False)
class Scoring:
    """Request to score a draft, or a chunk of it; see `redraft.rollout.engine.Session.score`."""

    draft: np.ndarray
    at: np.ndarray | None
    """Of the chunk's places alone."""
    top: int
    draws: Gumbel | None
    answer: asyncio.Future[Scores]
    places: slice
    """Of the chunk in the draft."""

    @property
    def chunk(self) -> np.ndarray:
        """Tokens that are scored."""
        return self.draft[self.places]


@dataclass(eq=False)
class Decoding:
    """Request to decode behind a prefix; see `redraft.rollout.engine.Session.decode`."""

    prefix: np.ndarray
    limit: int
    draws: Draws
    first: Residual | None
    """Distribution of the first token; None when it has been drawn."""
    top: int
    answer: asyncio.Future[Continuation]
    cached: int = 0
    """Tokens before the continuation that were in the cache when it was asked for."""

    @property
    def key(self) -> int | None:
        """Key of Gumbel noise; None if it draws by inversion."""
        return self.draws.key if isinstance(self.draws, Gumbel) else None


@dataclass(eq=False)
class Row:
    """A session's place in the cache and what it waits for."""

    prompt: list[int]
    asked: Scoring | Decoding | None = None
    slot: int = -1
    held: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the cache, from its first slot on; while it decodes, those before."""
    decoded: bool = False
    """True if the row has decoded and may be given up for others."""

    @property
    def sequence(self) -> list[int]:
        """Tokens that a prefill for the request computes."""
        return self.prompt + self._behind.tolist()

    @property
    def length(self) -> int:
        """Number of these tokens."""
        return len(self.prompt) + len(self._behind)

    @property
    def _behind(self) -> np.ndarray:
        assert self.asked is not None
        return self.asked.draft[: self.asked.places.stop] if isinstance(self.asked, Scoring) else self.asked.prefix

    @property
    def expected(self) -> int:
        """Tokens that a session which waits may come to decode: a draft's length, or all that it has room for."""
        return len(self.asked.draft) if isinstance(self.asked, Scoring) else self.decoding.limit

    @property
    def scoring(self) -> Scoring:
        """The request of a row that scores."""
        assert isinstance(self.asked, Scoring)
        return self.asked

    @property
    def decoding(self) -> Decoding:
        """The request of a row that decodes."""
        assert isinstance(self.asked, Decoding)
        return self.asked


class Rows:
    """All rows of a cache.

    Args:
        length: longest response, tokens.

    Attributes:
        decoding: rows 0 to this number, exclusive, decode.
        tokens: int64 (count,), the token that a row feeds in the next pass.
        positions: int64 (count,), its absolute position.
        counts: int64 (count,), tokens decoded so far.
        limits: int64 (count,), tokens that may be decoded; those that were, when a row has ended.
        prompts: int64 (count,), tokens of the prompt.
        keys: int64 (count,), key of Gumbel noise, for rows that are `noisy`.
        noisy: bool (count,), true where tokens are drawn by Gumbel noise.
        uniforms: float64 (count, length).
        out_tokens: int32 (count, length).
        out_log_probs: float32 (count, length).
        top_tokens: int32 (count, length, k), the top of each distribution; k is 0 until it is asked for.
        top_log_probs: float32, the same shape.
    """

    def __init__(self, cache: SlotCache, count: int, length: int, device: torch.device) -> None:
        self.cache, self.device = cache, device
        self._rows: list[Row | None] = [None] * count
        self._done: set[int] = set()
        self.decoding = 0
        self._numbers = torch.zeros(6, count, dtype=torch.long, device=device)
        self.positions, self.counts, self.limits, self.tokens, self.prompts, self.keys = self._numbers
        self.noisy = torch.zeros(count, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros((count, length), dtype=torch.float64, device=device)
        self.out_tokens = torch.zeros((count, length), dtype=torch.int32, device=device)
        self.out_log_probs = torch.zeros((count, length), dtype=torch.float32, device=device)
        self.top_tokens = torch.zeros((count, length, 0), dtype=torch.int32, device=device)
        self.top_log_probs = torch.zeros((count, length, 0), dtype=torch.float32, device=device)

    def clear(self) -> None:
        """Forget all sessions."""
        self._rows = [None] * len(self._rows)
        self._done.clear()
        self.decoding = 0
        self.cache.clear()

    @property
    def free(self) -> list[int]:
        """Slots behind the decoding rows that no session holds."""
        return [slot for slot in range(self.decoding, len(self._rows)) if self._rows[slot] is None]

    @property
    def live(self) -> list[Row]:
        """Sessions that decode, in the order of their slots."""
        return [row for row in self._rows[: self.decoding] if row is not None]

    def look(self) -> tuple[list[int], list[int], list[int]]:
        """Positions, counts and limits of the decoding rows; the host waits for the device."""
        positions, counts, limits = self._numbers[:3, : self.decoding].tolist()
        return positions, counts, limits

    def pad(self, count: int, position: int) -> None:
        """Let rows behind the decoding ones, up to `count`, be computed without taking a token.

        Args:
            count: rows of a pass.
            position: the slot that they write, which must be one that no session will read.
        """
        behind = slice(self.decoding, count)
        self.positions[behind] = position
        self.limits[behind] = self.counts[behind]

    def take(self, row: Row, slot: int) -> None:
        """Give a free slot to a session."""
        row.slot, self._rows[slot] = slot, row

    def release(self, row: Row) -> None:
        """Give a session's row back; nothing happens if it has none."""
        if row.slot >= 0 and self._rows[row.slot] is row:
            self._rows[row.slot] = None
            if row.slot < self.decoding:
                self._done.add(row.slot)
        row.slot, row.held, row.decoded = -1, [], False

    def give_up_idle(self) -> None:
        """Release the rows of open sessions that have decoded and ask for nothing."""
        for row in self._rows:
            if row and row.decoded and row.asked is None:
                self.release(row)

    def start(self, row: Row) -> None:
        """Let a session decode whose prompt and prefix are in the cache; it moves to the end of the decoding rows."""
        request, known = row.decoding, row.sequence
        row.held = known[:-1]
        slot = self.decoding
        if row.slot != slot:
            self._move(row.slot, slot, len(row.held))
        self.decoding += 1
        self.tokens[slot], self.positions[slot] = known[-1], len(known) - 1
        self.counts[slot], self.limits[slot] = 0, request.limit
        self.prompts[slot], self.noisy[slot] = len(row.prompt), request.key is not None
        if request.key is not None:
            self.keys[slot] = signed(request.key)
        if isinstance(request.draws, Inversion):
            self.uniforms[slot, : request.limit] = torch.from_numpy(request.draws.uniforms[: request.limit])
        if (more := request.top - self.top_tokens.shape[2]) > 0:
            self.top_tokens, self.top_log_probs = (
                torch.nn.functional.pad(top, (0, more)) for top in (self.top_tokens, self.top_log_probs)
            )

    def _move(self, source: int, target: int, length: int) -> None:
        """Bring a session with so many tokens in the cache to another slot; whoever sits there takes its old one."""
        moving, other = self._rows[source], self._rows[target]
        assert moving is not None
        if other is None:
            self.cache.move(source, target, length)
        else:
            self.cache.swap(source, target, max(length, len(other.held)))
            other.slot = source
        self._rows[source], self._rows[target] = other, moving
        moving.slot = target

    def advance(self, tokens: torch.Tensor, log_probs: torch.Tensor, kept: torch.Tensor, top: bool = False) -> None:
        """Note tokens of the first rows; those behind `kept` are overwritten by the next ones.

        Nothing here waits for the device, and nothing depends on what is not in the arguments or on the device.

        Args:
            tokens: int64 (rows, n).
            log_probs: float32 (rows, n, vocabulary), the policy's distribution of each.
            kept: int64 (rows,), number of tokens that count, 0 to n; a row that keeps none has ended.
        """
        rows = slice(0, len(tokens))
        places = self.counts[rows, None] + torch.arange(tokens.shape[1], device=self.device)
        self.out_tokens[rows].scatter_(1, places, tokens.to(torch.int32))
        self.out_log_probs[rows].scatter_(1, places, log_probs.gather(2, tokens[..., None])[..., 0])
        if top:
            largest = log_probs.topk(self.top_tokens.shape[2])
            at = (torch.arange(len(tokens), device=self.device)[:, None], places)
            self.top_tokens[at], self.top_log_probs[at] = largest.indices.to(torch.int32), largest.values
        self.tokens[rows] = tokens.gather(1, kept[:, None].clamp(min=1) - 1)[:, 0]
        self.positions[rows] += kept
        self.counts[rows] += kept

    def finish(self, row: Row, tokens: list[int]) -> None:
        """Let a session that decoded these tokens stop; it keeps its row.

        The last token was never fed, so its keys and values are not in the cache. The gap among the decoding rows is
        closed by `compact`, when sessions had their turn to leave: most have by then, and nobody's row has to be kept.
        """
        row.held = [*row.prompt, *row.decoding.prefix.tolist(), *tokens[:-1]]
        row.asked, row.decoded = None, True
        self._done.add(row.slot)

    def compact(self) -> None:
        """Close the gaps among the decoding rows: the last decoding row moves to each, from the last gap on."""
        for slot in sorted(self._done, reverse=True):
            self.decoding -= 1
            if slot != (last := self.decoding):
                self._move(last, slot, int(self.positions[last]))
                outputs = (self.out_tokens, self.out_log_probs, self.top_tokens, self.top_log_probs)
                self._numbers[:, slot] = self._numbers[:, last]
                for state in (self.noisy, self.uniforms, *outputs):
                    state[slot] = state[last]
        self._done.clear()


class Admission:
    """Which sessions go into the next pass over the model that is none of decoding.

    A session waits for a row of the cache, or has one and waits for its turn to decode, or for its next chunk to be
    scored.

    Args:
        max_batched_tokens: prompt and draft tokens in one pass, padding included.
    """

    def __init__(self, rows: Rows, max_rows: int, max_batched_tokens: int) -> None:
        self._rows, self._max_rows, self._max_batched_tokens = rows, max_rows, max_batched_tokens
        self._waiting: list[Row] = []
        self._ready: deque[Row] = deque()
        self._further: list[Row] = []

    @property
    def waiting(self) -> int:
        """Sessions that wait for a row of the cache."""
        return len(self._waiting)

    def clear(self) -> None:
        """Forget all sessions."""
        for queue in (self._waiting, self._ready, self._further):
            queue.clear()

    def add(self, row: Row) -> None:
        """Queue a session that set what it asks for."""
        if not row.held:
            self._waiting.append(row)
        elif isinstance(row.asked, Scoring):
            self._further.append(row)
        else:
            self._ready.append(row)

    def forget(self, row: Row) -> None:
        """Take a session out of its queue, if it is in one."""
        for queue in (self._waiting, self._ready, self._further):
            if row in queue:
                queue.remove(row)

    def start_ready(self) -> None:
        """Let those decode that have a row with all that is before."""
        while self._ready:
            self._rows.start(self._ready.popleft())

    def next_batch(self) -> list[Row]:
        """Those that go into the next pass, which have rows now; none if it is one of decoding."""
        if batch := self._admit():
            return batch
        self._further.sort(key=lambda row: -len(row.scoring.chunk))
        width = len(self._further[0].scoring.chunk) + 1 if self._further else 1
        batch = self._further[: max(1, self._max_batched_tokens // width)]
        del self._further[: len(batch)]
        return batch

    def _admit(self) -> list[Row]:
        """Those waiting that go into one prefill pass; while others decode, only if an eighth of the rows is free."""
        decoding = self._rows.decoding
        if self._waiting and not decoding and not self._rows.free:
            self._rows.give_up_idle()
        free = self._rows.free
        if decoding and len(free) < min(len(self._waiting), self._max_rows // 8):
            return []
        if len(self._waiting) > len(free):  # who may decode the longest comes first
            self._waiting.sort(key=lambda row: (-row.expected, -row.length))
        else:  # the longest to prefill come first, so that rows of a pass need little padding
            self._waiting.sort(key=lambda row: (not isinstance(row.asked, Scoring), -row.length))
        batch: list[Row] = []
        width = 0
        for slot, row in zip(free, self._waiting, strict=False):
            width = max(width, row.length)
            full = (len(batch) + 1) * width > self._max_batched_tokens
            if batch and (full or type(row.asked) is not type(batch[0].asked)):
                break
            self._rows.take(row, slot)
            batch.append(row)
        del self._waiting[: len(batch)]
        return batch
