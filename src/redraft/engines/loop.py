"""Running sessions on an engine in this process: their coroutines and the engine's work take turns."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_TURNS = 100
"""Turns of the event loop without a request after which none will come; awaiting through layers takes a few."""


async def run_to_end(
    coroutines: Sequence[Coroutine[Any, Any, T]], work: Callable[[], bool], standstill: Callable[[], str]
) -> list[T]:
    """Run coroutines to their ends, concurrently; return their results in order.

    Args:
        coroutines: what asks the engine.
        work: does what the engine was asked for, or a part; returns whether there was anything to do.
        standstill: says why nothing was asked for, for the error.

    Raises:
        RuntimeError: if they wait for something that the engine does not know of.
    """
    everything = asyncio.gather(*coroutines)
    idle = 0
    try:
        while not everything.done():
            if idle > IDLE_TURNS:
                raise RuntimeError(standstill())
            await asyncio.sleep(0)  # whoever got an answer asks for the next thing
            idle = 0 if work() else idle + 1
        return await everything
    finally:
        if not everything.done():
            everything.cancel()
            await asyncio.gather(everything, return_exceptions=True)
