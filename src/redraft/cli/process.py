"""Start and end of a process: its standard streams, and less time for large libraries such as PyTorch."""

import atexit
import gc
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def repair_streams() -> None:
    """Open closed standard streams to nothing, and let the others write escapes for what their encoding lacks.

    A closed one, as of `command >&-`, would be None in Python, and the next file that is opened would take its number,
    which child processes write to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # else a test's
            stream.reconfigure(errors="backslashreplace")


def commands_on_path() -> None:
    """Let child processes find the commands of this Python's environment, also where nobody has activated it."""
    folder = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if folder not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, path])


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's garbage collection during the imports of the block, and exempt the imported objects afterwards.

    PyTorch and transformers define a million objects, none of which is garbage. Collecting among them takes a fifth of
    the time of their imports. Blocks may be nested.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


class FastExit:
    """Exit after the exit handlers without destroying the objects of imported libraries.

    Destroying the million objects of PyTorch and transformers takes half a second of each job and frees nothing that
    the operating system would not free. Exit handlers run in reverse order, so create this one before importing
    libraries that register some.

    Attributes:
        enabled: true if the process shall exit this way, with exit code 0; otherwise it exits as usual.
    """

    def __init__(self) -> None:
        self.enabled = False
        atexit.register(self._exit)

    def _exit(self) -> None:
        if self.enabled:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
