"""Rows of the cache: the session of each row, its decoding state on the device, and the order of admission.

Decoding sessions occupy the first rows, so that a decoding pass works on views and copies nothing. A session keeps its
row until it is closed: after the decoding rows an idle one costs memory only, and a second request of the session
reuses its keys and values. A prefill always fills a row from its first slot on, so a prefix that is only partly in the
cache is computed again as a whole.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from redraft.engines.torch.kv_cache import SlotCache
from redraft.rollout.engine import Continuation, Gumbel, Residual, Scores
from redraft.rollout.streams import signed


@dataclass(eq=False)
class SessionState:
    """What the engine knows of a session.

    Attributes:
        request: the one that waits for its answer.
        row: index in the cache; -1 without a row.
        cached: tokens whose keys and values are in the row, from slot 0 on; during decoding those before the first new
            token.
        decoded: true once the session has decoded; its row may then be given to another session while it is idle.
    """

    prompt: list[int]
    request: "ScoreRequest | DecodeRequest | None" = None
    row: int = -1
    cached: list[int] = field(default_factory=list)
    decoded: bool = False


@dataclass(eq=False)
class ScoreRequest:
    """Request to score a draft, or a chunk of it; see `redraft.rollout.engine.Session.score`.

    Attributes:
        sequence: prompt and draft up to the chunk's end; the model must have seen these tokens for the answer.
        draft: int32 (n,), the whole draft.
        chunk: positions in the draft that are scored now.
        others: int32 (chunk, k), further tokens to score at the chunk's positions.
    """

    session: SessionState
    sequence: list[int]
    draft: np.ndarray
    chunk: slice
    others: np.ndarray | None
    top: int
    noise: Gumbel | None
    answer: asyncio.Future[Scores]


@dataclass(eq=False)
class DecodeRequest:
    """Request to decode after a prefix; see `redraft.rollout.engine.Session.decode`.

    Attributes:
        sequence: prompt and prefix.
        limit: most tokens to decode.
        uniforms: float64 (limit,), for inverse-CDF sampling; None for Gumbel noise.
        key: of Gumbel noise, 64 bits; None for inverse-CDF sampling.
        first: residual distribution of the first token; None once that token is sampled.
        cached: tokens of `sequence` that were in the cache when the request was made.
    """

    session: SessionState
    sequence: list[int]
    limit: int
    uniforms: np.ndarray | None
    key: int | None
    first: Residual | None
    top: int
    answer: asyncio.Future[Continuation]
    cached: int = 0


class RowTable:
    """Sessions and decoding state by row.

    The tensors have a fixed size and never move, so that a captured step can be replayed on them. R rows, L response
    positions, K top tokens; row r of each belongs to the session in row r of the cache.

    Args:
        count: number of rows, R.
        length: longest response, tokens, L.
        stops: tokens that end a response.

    Attributes:
        sessions: session of each row; None for a free row.
        decoding: rows 0 to this number, exclusive, decode.
        tokens: int64 (R,), token to feed in the next pass.
        positions: int64 (R,), its absolute position, which is the slot that it writes.
        counts: int64 (R,), tokens decoded so far.
        limits: int64 (R,), most tokens to decode; lowered to `counts` when a stop token ends a response.
        prompts: int64 (R,), length of the prompt.
        keys: int64 (R,), key of Gumbel noise of rows that are `noisy`.
        numbers: int64 (6, R), the six above in one tensor: positions, counts, limits, tokens, prompts, keys.
        noisy: bool (R,), true for sampling by Gumbel noise.
        uniforms: float64 (R, L), on (0, 1], for inverse-CDF sampling.
        out_tokens: int32 (R, L), decoded tokens.
        out_log_probs: float32 (R, L), their log-probabilities.
        top_tokens: int32 (R, L, K), most probable tokens; K is 0 until a session requests some.
        top_log_probs: float32 (R, L, K), their log-probabilities.
    """

    def __init__(
        self, cache: SlotCache, count: int, length: int, device: torch.device, stops: frozenset[int] = frozenset()
    ) -> None:
        self.cache, self.device = cache, device
        self.sessions: list[SessionState | None] = [None] * count
        self._ended: set[int] = set()
        self.decoding = 0
        # Views of one tensor, so that a single copy brings several of them to the host.
        self.numbers = torch.zeros(6, count, dtype=torch.long, device=device)
        self.positions, self.counts, self.limits, self.tokens, self.prompts, self.keys = self.numbers
        self.noisy = torch.zeros(count, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros((count, length), dtype=torch.float64, device=device)
        self.out_tokens = torch.zeros((count, length), dtype=torch.int32, device=device)
        self.out_log_probs = torch.zeros((count, length), dtype=torch.float32, device=device)
        self.top_tokens = torch.zeros((count, length, 0), dtype=torch.int32, device=device)
        self.top_log_probs = torch.zeros((count, length, 0), dtype=torch.float32, device=device)
        self._stops = torch.tensor(sorted(stops), dtype=torch.long, device=device)

    def clear(self) -> None:
        """Forget all sessions."""
        self.sessions = [None] * len(self.sessions)
        self._ended.clear()
        self.decoding = 0
        self.cache.clear()

    @property
    def live(self) -> list[DecodeRequest]:
        """Requests of the decoding sessions, in the order of their rows."""
        requests = [session.request for session in self.sessions[: self.decoding] if session is not None]
        return [request for request in requests if isinstance(request, DecodeRequest)]

    def pad(self, count: int, position: int) -> None:
        """Let the rows after the decoding ones, up to `count`, be computed without taking a token.

        Args:
            count: rows of a pass.
            position: the slot that they write; no session may read it.
        """
        padding = slice(self.decoding, count)
        self.positions[padding] = position
        # No tokens are left to a padding row, so `advance` keeps none.
        self.limits[padding] = self.counts[padding]

    def release(self, session: SessionState) -> None:
        """Free a session's row, if it has one."""
        if session.row >= 0 and self.sessions[session.row] is session:
            self.sessions[session.row] = None
            if session.row < self.decoding:
                self._ended.add(session.row)
        session.row, session.cached, session.decoded = -1, [], False

    def release_idle(self) -> None:
        """Free the rows of open sessions that have decoded and have no request."""
        for session in self.sessions:
            if session and session.decoded and session.request is None:
                self.release(session)

    def start(self, request: DecodeRequest) -> None:
        """Move a session whose prompt and prefix are in the cache to the end of the decoding rows."""
        session, row = request.session, self.decoding
        session.cached = request.sequence[:-1]
        if session.row != row:
            self._move(session.row, row, len(session.cached))
        self.decoding += 1
        # The next pass feeds the last token, after a prefill for the second time: only now its distribution is sampled.
        self.tokens[row], self.positions[row] = request.sequence[-1], len(session.cached)
        self.counts[row], self.limits[row] = 0, request.limit
        self.prompts[row], self.noisy[row] = len(session.prompt), request.key is not None
        if request.key is not None:
            self.keys[row] = signed(request.key)
        if request.uniforms is not None:
            self.uniforms[row, : request.limit] = torch.from_numpy(request.uniforms[: request.limit])
        if (more := request.top - self.top_tokens.shape[2]) > 0:
            self.top_tokens, self.top_log_probs = (
                torch.nn.functional.pad(top, (0, more)) for top in (self.top_tokens, self.top_log_probs)
            )

    def _move(self, source: int, target: int, length: int) -> None:
        """Move a session with `length` cached tokens to another row; a session there gets the old row in exchange."""
        moving, other = self.sessions[source], self.sessions[target]
        assert moving is not None
        if other is None:
            self.cache.move(source, target, length)
        else:
            # As many slots as either session has tokens.
            self.cache.swap(source, target, max(length, len(other.cached)))
            other.row = source
        self.sessions[source], self.sessions[target] = other, moving
        moving.row = target

    def advance(
        self, tokens_BT: torch.Tensor, log_probs_BTV: torch.Tensor, sampled_B: torch.Tensor, top: bool = False
    ) -> None:
        """Append sampled tokens to the first rows, up to a stop token or a row's limit.

        Part of a captured step: nothing here waits for the device or depends on values outside the arguments and
        the table.

        Args:
            tokens_BT: int64; of each row the first `sampled_B` count, the rest is padding.
            log_probs_BTV: float32, the policy's distribution at each token.
            sampled_B: int64, 1 to T.
            top: whether to store the top of the distributions.
        """
        B, T = tokens_BT.shape
        rows = slice(0, B)
        stops_BT = (tokens_BT[..., None] == self._stops).any(-1)  # `isin` sorts, and waits, if there are many
        # Tokens up to the first stop, or more than there are.
        until_stop_B = torch.where(stops_BT.any(1), stops_BT.to(torch.uint8).argmax(1) + 1, T + 1)
        left_B = self.limits[rows] - self.counts[rows]
        kept_B = torch.minimum(sampled_B, torch.minimum(until_stop_B, left_B))  # 0 for a row that has ended
        # All T tokens are written; the next pass overwrites those after the kept ones.
        index_BT = self.counts[rows, None] + torch.arange(T, device=self.device)
        self.out_tokens[rows].scatter_(1, index_BT, tokens_BT.to(torch.int32))
        self.out_log_probs[rows].scatter_(1, index_BT, log_probs_BTV.gather(2, tokens_BT[..., None])[..., 0])
        if top:
            largest = log_probs_BTV.topk(self.top_tokens.shape[2])
            at = (torch.arange(B, device=self.device)[:, None], index_BT)
            self.top_tokens[at], self.top_log_probs[at] = largest.indices.to(torch.int32), largest.values
        # The last kept token is fed next; for a row that has ended, any will do.
        self.tokens[rows] = tokens_BT.gather(1, kept_B[:, None].clamp(min=1) - 1)[:, 0]
        self.positions[rows] += kept_B
        self.counts[rows] += kept_B
        # A stop lowers the limit, so that the rest of a burst keeps nothing for this row.
        self.limits[rows] = torch.where(kept_B == until_stop_B, self.counts[rows], self.limits[rows])

    def finish(self, request: DecodeRequest, tokens: list[int]) -> None:
        """End a session's decoding with these tokens; it keeps its row.

        The last token was never fed, so its keys and values are not in the cache. `compact` closes the gap among the
        decoding rows one pass later: most sessions are closed by then, and their rows need not be preserved.
        """
        session = request.session
        session.cached = [*request.sequence, *tokens[:-1]]
        session.request, session.decoded = None, True
        self._ended.add(session.row)

    def compact(self) -> None:
        """Fill the gaps among the decoding rows with the last decoding row, from the last gap on."""
        # From the last gap on: the row that fills a gap then always decodes, and is no gap itself.
        for row in sorted(self._ended, reverse=True):
            self.decoding -= 1
            if row != (last := self.decoding):
                # A decoding row has as many tokens in the cache as its position says.
                self._move(last, row, int(self.positions[last]))
                outputs = (self.out_tokens, self.out_log_probs, self.top_tokens, self.top_log_probs)
                self.numbers[:, row] = self.numbers[:, last]
                for state in (self.noisy, self.uniforms, *outputs):
                    state[row] = state[last]
        self._ended.clear()


class Admission:
    """Queues of requests, and the choice of those that the next pass computes.

    Args:
        max_batched_tokens: prompt and draft tokens in one pass, padding included.

    Attributes:
        waiting: requests of sessions without a row.
    """

    def __init__(self, table: RowTable, max_batched_tokens: int) -> None:
        self._table, self._max_batched_tokens = table, max_batched_tokens
        self.waiting: list[ScoreRequest | DecodeRequest] = []
        self._ready: list[DecodeRequest] = []  # their rows hold all that is before the first new token
        self._chunks: list[ScoreRequest] = []  # their rows hold all that is before the chunk

    def add(self, request: ScoreRequest | DecodeRequest) -> None:
        """Queue a request."""
        if not request.session.cached:
            self.waiting.append(request)
        elif isinstance(request, ScoreRequest):
            self._chunks.append(request)
        else:
            self._ready.append(request)

    def forget(self, request: ScoreRequest | DecodeRequest) -> None:
        """Remove a request from its queue, if it is in one."""
        for queue in (self.waiting, self._ready, self._chunks):
            if request in queue:
                queue.remove(request)  # type: ignore[arg-type]

    def next_batch(self) -> Sequence[ScoreRequest | DecodeRequest]:
        """Requests of one kind for the next pass, which all have rows; empty for a pass that decodes.

        While sessions decode, a prefill waits until an eighth of the rows is free, or enough for all that wait.
        """
        table = self._table
        for ready in self._ready:
            table.start(ready)
        self._ready.clear()
        if self.waiting and not table.decoding and None not in table.sessions:
            table.release_idle()
        free = [row for row in range(table.decoding, len(table.sessions)) if table.sessions[row] is None]
        batch: list[ScoreRequest | DecodeRequest] = []
        # A prefill interrupts all decoding sessions, so a few large ones are better than many small ones.
        if not table.decoding or len(free) >= min(len(self.waiting), len(table.sessions) // 8):
            if len(self.waiting) > len(free):  # long continuations first: started late, they would decode alone
                self.waiting.sort(key=lambda r: (-_expected_tokens(r), -len(r.sequence)))
            else:  # long prefills first, so that the rows of a pass need little padding
                self.waiting.sort(key=lambda r: (not isinstance(r, ScoreRequest), -len(r.sequence)))
            width = 0
            for row, request in zip(free, self.waiting, strict=False):
                width = max(width, len(request.sequence))
                full = (len(batch) + 1) * width > self._max_batched_tokens
                if batch and (full or type(request) is not type(batch[0])):
                    break
                request.session.row, table.sessions[row] = row, request.session
                batch.append(request)
            del self.waiting[: len(batch)]
        if batch or not self._chunks:
            return batch
        self._chunks.sort(key=lambda r: r.chunk.start - r.chunk.stop)  # the longest first
        width = self._chunks[0].chunk.stop - self._chunks[0].chunk.start + 1
        count = max(1, self._max_batched_tokens // width)
        chunks, self._chunks = self._chunks[:count], self._chunks[count:]
        return chunks


def _expected_tokens(request: ScoreRequest | DecodeRequest) -> int:
    """Length of a continuation as far as it can be foreseen: that of its draft, or else its limit."""
    return len(request.draft) if isinstance(request, ScoreRequest) else request.limit
