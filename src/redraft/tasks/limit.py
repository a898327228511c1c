"""Time limit for Python code by repeated alarms, for graders whose own limit can be lost.

math-verify sets one alarm, whose handler raises an exception. Python ignores exceptions in finalisers and in callbacks
of the garbage collector, and it handles signals that arrive during a collection at that point. The one alarm is then
lost, and the call runs without a limit. Here the alarm repeats until the exception gets through.
"""

import signal
from collections.abc import Callable
from typing import Any, TypeVar

from math_verify.errors import TimeoutException

T = TypeVar("T")

AGAIN = 0.5
"""Seconds between an alarm and its repetition."""


def limited(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """Call a function with a time limit and return its result.

    Args:
        seconds: the limit in wall seconds. A long call into C code is interrupted only when it returns.
        function: the function to call.
        args: its arguments.

    Raises:
        TimeoutException: if the limit is exceeded. It is a BaseException, so that handlers inside the function do not
            swallow it.
        ValueError: outside the main thread.
    """
    ended = False

    def expire(*_: object) -> None:
        if not ended:
            raise TimeoutException(f"the limit of {seconds} s is exceeded")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return function(*args)
    finally:
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
