"""Work on many items in processes of their own, where an item that hangs or crashes is lost alone."""

import multiprocessing
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessPool

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY = 4 << 30
"""Bytes that a worker may take, above what it has mapped when it starts; more raises MemoryError there."""


def run(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int, seconds: float,
    lost: Callable[[Item, Exception], Result],
) -> list[Result]:  # fmt: skip
    """What `function` makes of each item, in their order.

    Args:
        function: can be pickled; runs in the main thread of a worker, where alarms work.
        items: can be pickled.
        processes: how many workers.
        seconds: limit for each item; a worker that exceeds it is killed and replaced.
        lost: what stands in for an item that raised, exceeded the limit (`TimeoutError`) or ended its worker.
    """
    if not items:
        return []
    with pool(min(processes, len(items))) as workers:
        results = workers.map(function, items, timeout=seconds).result()
        return [_next(results, item, lost) for item in items]


def pool(processes: int) -> ProcessPool:
    """Workers with bounded memory that have loaded the grader; they start with the first item."""
    return ProcessPool(processes, initializer=_limit_memory, context=_context())


def _next(results: Any, item: Item, lost: Callable[[Item, Exception], Result]) -> Result:
    try:
        result: Result = next(results)
    except Exception as error:
        return lost(item, error)
    return result


def _context() -> Any:
    """Workers forked from a server that has loaded the grader: forking this process, with its threads, is not safe."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redraft.tasks.grading"])
    return context


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    mapped = pages * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
