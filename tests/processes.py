"""Processes by a mark in their environment, and waiting for what they do."""

import contextlib
import time
from pathlib import Path


def processes_of(mark):
    """Processes that inherited a mark in their environment, Ray's and vLLM's among them."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or is not ours
            if mark.encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def mappings(file):
    """Number of times that this process maps a file; a thread of Arrow may hold a mapping for a moment after a read."""
    return Path("/proc/self/maps").read_text().count(str(file))


def until(condition, seconds, process=None):
    """Wait for a condition, while a process lives."""
    deadline = time.time() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError((process.stderr.read().decode() if process.stderr else "it ended")[-3000:])
        assert time.time() < deadline
        time.sleep(0.2)
