"""Running sessions on an engine in this process: their coroutines and the engine's work take turns, and are timed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from redraft.ops.locking.termination import exit_if_requested

T = TypeVar("T")

NAP = 0.5
"""Seconds after which a loop that sleeps looks whether the process was told to end."""
IDLE_TURNS = 100
"""Turns of the event loop without a request after which none will come; awaiting through layers takes a few."""
FEW = 0.1
"""Share of the most responses that decoded at once below which a pass is one of the tail."""


def now(device: torch.device) -> float:
    """Seconds, for differences.

    On a GPU wall seconds, read when it has done all that it was given, since it runs behind the program that tells it
    to. On a CPU the process's processor seconds: runs share cores with each other and with whatever else runs, and wall
    seconds would compare how busy the machine was.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


class Outside:
    """Waits of sessions for something that no engine does, such as rewards graded in worker processes.

    The engine goes on decoding for others meanwhile. When it has nothing to do, the loop sleeps until one of the waits
    ends, and the time is not the engine's.

    Args:
        clock: seconds; the clock of the stage from which they are subtracted.

    Attributes:
        seconds: time in which the engine had nothing to do because of these waits.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self.ended, self._clock = 0.0, 0, clock
        self._pending: set[asyncio.Future] = set()

    def __bool__(self) -> bool:
        """True while something is waited for."""
        return bool(self._pending)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Result of something outside the engine; an exception there is raised here."""
        pending = asyncio.ensure_future(awaitable)
        self._pending.add(pending)
        try:
            return await pending
        finally:
            self._pending.discard(pending)
            self.ended += 1

    async def sleep(self, everything: asyncio.Future) -> None:
        """Sleep until one of the waits has ended, or everything has, or for `NAP`."""
        began = self._clock()
        await asyncio.wait({*self._pending, everything}, timeout=NAP, return_when=asyncio.FIRST_COMPLETED)
        self.seconds += self._clock() - began


async def run_to_end(
    coroutines: Sequence[Coroutine[Any, Any, T]],
    work: Callable[[], bool],
    standstill: Callable[[], str],
    outside: Outside | None = None,
) -> list[T]:
    """Run coroutines to their ends, concurrently; return their results in order.

    Args:
        work: does what the engine was asked for, or a part; returns false if there was nothing to do.

    Raises:
        RuntimeError: if they wait for something that neither the engine nor `outside` knows of.
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
            await asyncio.sleep(0)  # whoever got an answer asks for the next thing
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
        seconds: of all passes by the number of responses that decoded in them.
    """

    seconds: dict[int, float] = field(default_factory=dict)

    def add(self, active: int, seconds: float) -> None:
        """Count a pass."""
        self.seconds[active] = self.seconds.get(active, 0.0) + seconds

    @property
    def tail_share(self) -> float | None:
        """Share of the passes' seconds with fewer than a tenth of the most active responses; None without a pass."""
        total, most = sum(self.seconds.values()), max(self.seconds, default=0)
        if not total:
            return None
        return sum(seconds for active, seconds in self.seconds.items() if active < FEW * most) / total
