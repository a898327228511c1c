"""Worker processes for code that may hang or crash, such as graders: each item is lost alone.

The time limit holds for each item, the memory limit for each worker. A lost item is not tried again.
"""

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
"""Bytes that a worker may map beyond those mapped at its start; more raises MemoryError in the worker."""


def run(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int, seconds: float,
    lost: Callable[[Item, Exception], Result],
) -> list[Result]:  # fmt: skip
    """Apply a function to each item in worker processes and return the results in the items' order.

    Args:
        function: picklable; runs in the main thread of a worker, so that alarms work.
        items: picklable values; no process starts if there are none.
        processes: largest number of workers.
        seconds: time limit for each item; a worker that exceeds it is killed and replaced.
        lost: gives the result of an item that raised an exception, exceeded the limit (`TimeoutError`) or ended its
            worker (`pebble.ProcessExpired`).
    """
    if not items:
        return []
    with pool(min(processes, len(items))) as workers:
        results = workers.map(function, items, timeout=seconds).result()
        return [_next(results, item, lost) for item in items]


def pool(processes: int) -> ProcessPool:
    """Make a pool of workers with bounded memory that have loaded the grader; they start with the first item."""
    return ProcessPool(processes, initializer=_limit_memory, context=context())


def _next(results: Any, item: Item, lost: Callable[[Item, Exception], Result]) -> Result:
    try:
        result: Result = next(results)
    except Exception as error:
        return lost(item, error)
    return result


def context() -> Any:
    """Fork workers from a server that has loaded the grader, since forking this process with its threads is unsafe.

    It has also loaded what the main module of jobs imports, and this module: each worker would take 0.08 s for them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redraft.cli.app", "redraft.tasks.rewards", __name__])
    return context


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    mapped = pages * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
