"""The end of a process that has done its work."""

import atexit
import logging
import os
import sys


class Ending:
    """Ends this process behind its exit handlers, without destroying what its libraries have defined.

    PyTorch and transformers alone define a million objects. Destroying them takes half a second of each job, and frees
    nothing that the operating system would not. Handlers run in reverse order, so this one is to be made before
    libraries are loaded that have some.

    Attributes:
        well: true once the process may end so, with exit code 0; else it ends as any does.
    """

    def __init__(self) -> None:
        self.well = False
        atexit.register(self._end)

    def _end(self) -> None:
        if self.well:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
