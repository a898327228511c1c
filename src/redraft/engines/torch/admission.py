"""Which sessions go into the next pass over the model that is none of decoding.

A session waits for a row of the cache, or has one and waits for its turn to decode, or for its next chunk to be scored.
"""

from collections import deque

from redraft.engines.torch.rows import Row, Rows, Scoring


class Admission:
    """Sessions that wait for a pass.

    Args:
        rows: of the cache.
        max_rows: number of them.
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
        return self._admit() or self._next_chunks()

    def _admit(self) -> list[Row]:
        """Those waiting that go into one prefill pass; while others decode, only if an eighth of the rows is free."""
        decoding = self._rows.decoding
        if self._waiting and not decoding and not self._rows.free:
            self._rows.give_up_idle()
        free = self._rows.free
        if decoding and len(free) < min(len(self._waiting), self._max_rows // 8):
            return []
        self._sort_waiting(len(free))
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

    def _sort_waiting(self, free: int) -> None:
        """Order those that wait by what they may decode, the longest first, if not all of them have room.

        Else the longest to prefill come first, so that rows of a pass need little padding.
        """
        if len(self._waiting) > free:
            self._waiting.sort(key=lambda row: (-row.expected, -row.length))
        else:
            self._waiting.sort(key=lambda row: (not isinstance(row.asked, Scoring), -row.length))

    def _next_chunks(self) -> list[Row]:
        """Those that go into one pass over further chunks."""
        self._further.sort(key=lambda row: -len(row.scoring.chunk))
        width = len(self._further[0].scoring.chunk) + 1 if self._further else 1
        batch = self._further[: max(1, self._max_batched_tokens // width)]
        del self._further[: len(batch)]
        return batch
