"""Orderly exit on SIGTERM: the signal raises SystemExit, but not inside blocks that must not be interrupted.

An exception of a signal handler can occur between any two instructions. Inside `threading.Condition.notify` it can
leave a waiter in the queue that was already woken; the next call then wakes this waiter instead of another one. A
worker pool with such a queue never receives its stop message, and the exiting process waits for the pool forever.
Inside an event loop the exception can drop a task's callback; the task then never ends, and the loop waits for it.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Blocks(threading.local):
    """Nesting depth of a thread's uninterruptible blocks, and whether SIGTERM arrived in one of them."""

    depth = 0
    pending = False


_blocks = _Blocks()


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit in the block on SIGTERM; in threads other than the main one, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_or_defer(*_: object) -> None:
        _blocks.pending = True
        if not _blocks.depth:
            _exit()

    # Python calls the handler in the main thread only, so `_blocks` there has the depth of that thread.
    before = signal.signal(signal.SIGTERM, exit_or_defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_deferred() -> Iterator[None]:
    """Defer the exit on SIGTERM to the end of the block, which should be short."""
    _blocks.depth += 1
    try:
        yield
    finally:
        _blocks.depth -= 1
        if _blocks.pending and not _blocks.depth:
            _exit()


def exit_if_requested() -> None:
    """Exit now if SIGTERM is pending; call this at a point of a `sigterm_deferred` block that may be interrupted."""
    if _blocks.pending:
        _exit()


def _exit() -> None:
    _blocks.pending = False
    sys.exit(128 + signal.SIGTERM)
