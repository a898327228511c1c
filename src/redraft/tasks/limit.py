"""A time limit for whatever runs in Python, for graders whose own limit can be lost.

math-verify sets one alarm whose handler raises. Python ignores what is raised while a finaliser or a callback of the
garbage collector runs, and signals that arrive during a collection are handled just there: then the one alarm is gone,
and what was to end goes on for as long as it takes. Here the alarm comes again.
"""

import signal
from collections.abc import Callable
from typing import Any, TypeVar

from math_verify.errors import TimeoutException

T = TypeVar("T")

AGAIN = 0.5
"""Seconds until the next alarm, should one have been lost."""


def limited(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """What a function returns, within so many seconds.

    Args:
        seconds: the limit, on a real clock. What is in the middle of one long call of C ends at its end.
        function: what to call.
        args: its arguments.

    Raises:
        TimeoutException: a BaseException, so that no handler of the function's swallows it.
        ValueError: outside a main thread.
    """
    ended = False

    def expire(*_: object) -> None:
        if not ended:
            raise TimeoutException(f"{seconds} s are over")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return function(*args)
    finally:
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
