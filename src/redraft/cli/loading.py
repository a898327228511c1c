"""Loading of libraries without the search for garbage among what they define, which is a fifth of its time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Python looks for no garbage until the block ends, and never among the objects that are there then.

    Nothing that a module defines is garbage; PyTorch and transformers alone define a million objects. Blocks may be
    nested.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
