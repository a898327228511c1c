"""verl's own files of a checkpoint are pickles, and verl loads them as such (`torch.load(…, weights_only=False)`).

A pickle can call whatever it names. So before verl gets a checkpoint, every name in its pickles is read, without
executing anything, and must be one of those that tensors, random states and counters are made of.
"""

from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

from redraft.errors import UserError

STATE_NAMES = frozenset({
    "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar", "numpy.ndarray", "numpy.dtype",
})  # fmt: skip
"""Names in NumPy's random state. `weights_only` allows by itself: tensors, FSDP2's shards, counters."""


def refuse_code(checkpoint: Path) -> None:
    """Make sure that the pickles of a checkpoint of verl's hold data only.

    Raises:
        UserError: for the first that names anything else, or cannot be read as a file of `torch.save`.
    """
    for file in sorted(checkpoint.rglob("*.pt")):
        if found := _other_names(file):
            raise UserError("this file of a checkpoint would execute code when it is loaded", file=file,
                            value=", ".join(found), allowed="tensors and numbers",
                            hint=f"remove {checkpoint}")  # fmt: skip


def _other_names(file: Path) -> list[str]:
    """Names in a pickle that are no data."""
    import torch.distributed.tensor  # noqa: F401  its types count as safe once they are known
    from torch.serialization import get_unsafe_globals_in_checkpoint

    try:
        return sorted(set(get_unsafe_globals_in_checkpoint(str(file))) - STATE_NAMES)
    except (UnpicklingError, ValueError, EOFError, RuntimeError, BadZipFile) as error:
        raise UserError(f"this file of a checkpoint cannot be checked ({error})", file=file,
                        allowed="a file of torch.save") from None  # fmt: skip
