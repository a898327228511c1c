"""Groups in Arrow's IPC format: files of checkpoints, and bytes between processes.

The format executes no code. It is uncompressed, so that no length in a file can ask for more memory than the file has
bytes, and it is the one with an index at its end, so that a cut file is noticed. docs/decisions/memory.md compares it
with Arrow's stream format, compression and Parquet. Writing and reading go batch by batch: neither holds a second copy.

Checksums are left out, since a checkpoint holds the SHA-256 of each of its files (`train/checkpoint.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from redraft.errors import UserError
from redraft.files import atomic
from redraft.rollout.columns import SCHEMA, batches, groups_of
from redraft.rollout.types import Group


def save_groups(file: Path, groups: Sequence[Group]) -> None:
    """Write groups to one file, atomically.

    Raises:
        ValueError: if the arrays of a rollout differ in length, or a rollout is of another prompt than its group.
        UserError: if there is no space left.
    """
    with atomic(file) as temporary, pa.OSFile(str(temporary), "wb") as sink:
        _write(sink, groups)


def load_groups(file: Path) -> list[Group]:
    """Read groups that `save_groups` wrote. Each rollout owns its arrays, so that dropping one frees it.

    Raises:
        UserError: if the file is missing, damaged or in the format of an earlier version.
    """
    try:
        with file.open("rb") as handle:
            head = handle.read(9)
    except FileNotFoundError:
        raise UserError("this file of rollouts is missing", file=file) from None
    if head[8:9] == b"{":  # after the header's length, https://github.com/huggingface/safetensors#format
        raise UserError(
            "this file of rollouts is in safetensors, the format of an earlier version, which is no longer read",
            file=file,
            allowed="Arrow IPC files that this version wrote",
        )
    with described(file):
        return list(groups_of(_batches_of(file)))


def pack_groups(groups: Sequence[Group]) -> bytes:
    """Groups as the bytes of such a file, which processes exchange without pickling every rollout.

    Raises:
        ValueError: as `save_groups` does.
    """
    sink = pa.BufferOutputStream()
    _write(sink, groups)
    return sink.getvalue().to_pybytes()


def unpack_groups(content: bytes) -> list[Group]:
    """Groups that `pack_groups` packed.

    Raises:
        ValueError: if the content is damaged.
    """
    with _as_value_errors(), pa.ipc.open_file(pa.BufferReader(content)) as reader:
        return list(groups_of(reader.get_batch(number) for number in range(reader.num_record_batches)))


def _write(sink: pa.NativeFile, groups: Sequence[Group]) -> None:
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        for batch in batches(groups):
            writer.write_batch(batch)


def _batches_of(file: Path) -> Iterator[pa.RecordBatch]:
    """Batches of a file. The file is mapped again for each batch: the pages of one mapping would add up to the file's
    size."""
    number, total = 0, 1
    while number < total:
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            total = reader.num_record_batches
            if number < total:
                yield reader.get_batch(number)
        number += 1


@contextmanager
def described(file: Path) -> Iterator[None]:
    """Turn a ValueError about a file's content into a user's error that names the file."""
    try:
        with _as_value_errors():
            yield
    except ValueError as error:
        raise UserError(f"this file of rollouts is damaged ({error})", file=file) from None


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Arrow's errors of several types as one; errors of the operating system, which have a number, stay."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(str(error).partition("\n")[0]) from None
