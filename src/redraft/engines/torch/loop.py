"""The event loop of an engine in this process: sessions' coroutines and the engine's passes take turns."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from redraft.ops.locking.termination import exit_if_requested

T = TypeVar("T")

SLEEP_SECONDS = 0.5
"""Longest sleep of an idle loop, after which it checks whether SIGTERM came."""
IDLE_TURNS = 100
"""Turns of the event loop without a request after which the engine is idle; an await through several layers takes a
few turns."""
TAIL_SHARE = 0.1
"""A pass belongs to the tail if fewer than this share of the largest number of responses decode in it."""


def now(device: torch.device) -> float:
    """A clock in seconds, for differences.

    On a GPU, wall time after the queued kernels have ended. On a CPU, this process's processor time: runs share cores
    with each other and with other programs, and wall time would measure the machine's load.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


@dataclass(eq=False)
class Outside:
    """Sessions' waits for something outside the engine, such as rewards from worker processes.

    The engine goes on decoding other sessions meanwhile. When it has nothing to do, the loop sleeps until one of the
    waits ends; that time does not count as the engine's.

    Attributes:
        clock: seconds; the clock of the stage from which `seconds` is subtracted.
        seconds: time in which the engine had nothing to do because of these waits.
        ended: number of waits that have ended.
    """

    clock: Callable[[], float] = time.perf_counter
    seconds: float = field(default=0.0, init=False)
    ended: int = field(default=0, init=False)
    _pending: set[asyncio.Future] = field(default_factory=set, init=False)

    def __bool__(self) -> bool:
        """True while a session waits."""
        return bool(self._pending)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Result of something outside the engine; raises its exception."""
        pending = asyncio.ensure_future(awaitable)
        self._pending.add(pending)
        try:
            return await pending
        finally:
            self._pending.discard(pending)
            self.ended += 1

    async def sleep(self, everything: asyncio.Future) -> None:
        """Sleep until one of the waits or everything has ended, or for `SLEEP_SECONDS`."""
        began = self.clock()
        await asyncio.wait({*self._pending, everything}, timeout=SLEEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self.seconds += self.clock() - began


async def run_to_end(
    coroutines: Sequence[Coroutine[Any, Any, T]],
    work: Callable[[], bool],
    standstill: Callable[[], str],
    outside: Outside | None = None,
) -> list[T]:
    """Run coroutines concurrently to their ends; return their results in order.

    Args:
        work: serves the engine's requests, or a part of them; returns false if there were none.
        standstill: message of the error when neither the engine nor `outside` can go on.

    Raises:
        RuntimeError: if the coroutines wait for something unknown to the engine and to `outside`.
    """
    everything = asyncio.gather(*coroutines)
    outside = Outside() if outside is None else outside
    idle = 0
    try:
        while not everything.done():
            if idle > IDLE_TURNS:
                if not outside:
                    raise RuntimeError(standstill())
                await outside.sleep(everything)
                idle = 0
            ended = outside.ended
            await asyncio.sleep(0)  # sessions with answers go on to their next requests
            exit_if_requested()
            idle = 0 if work() or outside.ended > ended else idle + 1
        return await everything
    finally:
        if not everything.done():
            everything.cancel()
            await asyncio.gather(everything, return_exceptions=True)


@dataclass
class Activity:
    """Decoding passes of a rollout; in its tail few responses still decode and most of the engine idles.

    Attributes:
        seconds: time of all passes by the number of responses that decoded in them.
    """

    seconds: dict[int, float] = field(default_factory=dict)

    def add(self, active: int, seconds: float) -> None:
        """Count a pass."""
        self.seconds[active] = self.seconds.get(active, 0.0) + seconds

    @property
    def tail_share(self) -> float | None:
        """Share of the time in passes with fewer than a tenth of the most active responses; None without a pass."""
        total, most = sum(self.seconds.values()), max(self.seconds, default=0)
        if not total:
            return None
        return sum(seconds for active, seconds in self.seconds.items() if active < TAIL_SHARE * most) / total
