"""SIGTERM ends a process in good order: it raises SystemExit, but in no block that must not be broken off.

Python raises what a signal's handler raises between any two instructions. Inside `threading.Condition.notify` that can
leave a waiter that was woken in the queue of waiters, and the next call wakes it in another's place. A pool of workers
whose queue was left so never hears that it shall end, and the process that ends waits for it for ever. Inside an event
loop it can drop the turn of a task, which then never ends, and neither does the loop, which waits for all tasks.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Blocks(threading.local):
    """Blocks of one thread that must not be broken off, and whether SIGTERM came meanwhile."""

    depth = 0
    asked = False


_blocks = _Blocks()


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit in the block when SIGTERM comes; in a thread other than the main one, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note_or_exit(*_: object) -> None:
        _blocks.asked = True
        if not _blocks.depth:
            _exit()

    before = signal.signal(signal.SIGTERM, note_or_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_deferred() -> Iterator[None]:
    """Put off the exit on SIGTERM to the end of the block, which should be short."""
    _blocks.depth += 1
    try:
        yield
    finally:
        _blocks.depth -= 1
        if _blocks.asked and not _blocks.depth:
            _exit()


def exit_if_requested() -> None:
    """Exit now if SIGTERM came in a block that must not be broken off; for a place in it where it may be."""
    if _blocks.asked:
        _exit()


def _exit() -> None:
    _blocks.asked = False
    sys.exit(128 + signal.SIGTERM)
