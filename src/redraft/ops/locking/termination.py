"""Orderly exit on SIGTERM and SIGHUP: they raise SystemExit, but not inside blocks that must not be interrupted.

SIGHUP comes when the terminal is closed or its connection ends. A process that was started with SIGHUP ignored, as by
`nohup`, goes on.

An exception of a signal handler can occur between any two instructions. Inside `threading.Condition.notify` it can
leave a waiter in the queue that was already woken; the next call then wakes this waiter instead of another one. A
worker pool with such a queue never receives its stop message, and the exiting process waits for the pool forever.
Inside an event loop the exception can drop a task's callback; the task then never ends, and the loop waits for it.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Blocks(threading.local):
    """Nesting depth of a thread's uninterruptible blocks, and the signal that arrived in one of them, or 0."""

    depth = 0
    pending = 0


_blocks = _Blocks()


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Raise SystemExit in the block on SIGTERM and SIGHUP; in threads other than the main one, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_or_defer(number: int, _: object) -> None:
        _blocks.pending = number
        if not _blocks.depth:
            _exit()

    # Python calls the handler in the main thread only, so `_blocks` there has the depth of that thread.
    handled = [signal.SIGTERM] + [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)
    before = {number: signal.signal(number, exit_or_defer) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            # After `_exit` SIGHUP stays ignored: the old handler would let a second one end the clean-up.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextmanager
def exit_deferred() -> Iterator[None]:
    """Defer the exit on a signal to the end of the block, which should be short."""
    _blocks.depth += 1
    try:
        yield
    finally:
        _blocks.depth -= 1
        if _blocks.pending and not _blocks.depth:
            _exit()


def exit_if_requested() -> None:
    """Exit now if a signal is pending; call this at a point of an `exit_deferred` block that may be interrupted."""
    if _blocks.pending:
        _exit()


def sigterm_on_hangup() -> None:
    """Handle SIGHUP from now on as SIGTERM, for a program that handles only the latter."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def ignore_hangup() -> None:
    """Ignore SIGHUP in this process and its children."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _exit() -> None:
    number, _blocks.pending = _blocks.pending, 0
    ignore_hangup()  # kernel and shell each send one when a terminal closes; the second must not end the clean-up
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"ended by {signal.Signals(number).name}\n".encode())  # a handler must not use Python's streams
    # As a shell reports a process that a signal has ended.
    sys.exit(128 + number)
