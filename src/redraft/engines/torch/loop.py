"""The event loop of an engine in this process: sessions' coroutines and the engine's passes take turns."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from redraft.ops.locking.termination import exit_if_requested
from redraft.selfspec.controller import Stretch

T = TypeVar("T")

SLEEP_SECONDS = 0.5
"""Longest sleep of an idle loop, after which it checks whether a signal to exit came."""
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

    The engine goes on decoding other sessions meanwhile. When it has nothing else to do, the loop sleeps until all
    results are there; that time does not count as the engine's. Then all waiting sessions go on, in the order of their
    requests. If each went on as soon as its result is there, the composition of batches, and with it the last bits of
    log-probabilities, would depend on how fast others work.

    Attributes:
        clock: seconds; the clock of the stage from which `seconds` is subtracted.
        seconds: time in which the engine had nothing to do because of these waits.
        waiting: results, and what is resolved when their sessions may go on.
    """

    clock: Callable[[], float] = time.perf_counter
    seconds: float = field(default=0.0, init=False)
    waiting: dict[asyncio.Future, asyncio.Future] = field(default_factory=dict, init=False)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Result of something outside the engine, once the engine has nothing else to do; raises its exception."""
        result = asyncio.ensure_future(awaitable)
        turn = self.waiting[result] = asyncio.get_running_loop().create_future()
        try:
            await turn
            return await result
        finally:
            self.waiting.pop(result, None)
            # Without effect on a result that is there; the work of a cancelled session is given up.
            result.cancel()

    async def hand_over(self, everything: asyncio.Future) -> None:
        """Sleep until all results are there, or one is an error, or everything has ended; then let the sessions go on.

        Wakes up every `SLEEP_SECONDS` to check whether a signal to exit came.
        """
        began, failed = self.clock(), False
        while not (failed or everything.done()) and (missing := {one for one in self.waiting if not one.done()}):
            done, _ = await asyncio.wait(
                {*missing, everything}, timeout=SLEEP_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            failed = any(one.cancelled() or one.exception() for one in done)
            exit_if_requested()
        self.seconds += self.clock() - began
        for turn in self.waiting.values():
            if not turn.done():
                turn.set_result(None)


def in_new_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Result of a coroutine function in a new event loop.

    It runs in this thread, or in another one if this thread runs an event loop already, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()


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
                if not outside.waiting:
                    raise RuntimeError(standstill())
                await outside.hand_over(everything)
                idle = 0
            await asyncio.sleep(0)  # sessions with answers go on to their next requests
            exit_if_requested()
            idle = 0 if work() else idle + 1
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
        passes: number of passes.
        trace: the passes, each with the largest number of proposals of a response.
    """

    seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    passes: int = 0
    trace: list[Stretch] = field(default_factory=list)

    @property
    def tail_share(self) -> float | None:
        """Share of the time in passes with fewer than a tenth of the most active responses; None without a pass."""
        total, most = sum(self.seconds.values()), max(self.seconds, default=0)
        if not total:
            return None
        return sum(seconds for active, seconds in self.seconds.items() if active < TAIL_SHARE * most) / total
