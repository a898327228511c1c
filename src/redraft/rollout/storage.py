"""Groups as Arrow record batches: files of checkpoints, and bytes between processes.

A row is a sample. The format is Arrow's IPC file, uncompressed: reading one executes no code, and no length in it can
ask for more memory than the file has bytes. `benchmarks/memory.py` compares it with Parquet, the stream format and
compressed files. Writing and reading go batch by batch, so that neither holds a second copy.

Checksums are left out, since a checkpoint holds the SHA-256 of each of its files (`train/integrity.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from redraft.errors import UserError
from redraft.files import atomic
from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample, TopLaw, Use

PIECE = 2**20
"""Tokens of responses and top laws in a record batch; the last response of a batch may exceed it."""


def _required(*fields: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in fields]


def _list_of(struct: pa.DataType) -> pa.DataType:
    return pa.large_list(pa.field("item", struct, nullable=False))


_COUNTS = ("group", "prompt", "visit", "sample", "prefix_length", "draft_length", "verified")
_TOKEN = pa.struct(_required(("token", pa.int32()), ("log_prob", pa.float32()), ("sampled_at", pa.int32())))
_TOP = pa.struct(_required(("token", pa.int32()), ("log_prob", pa.float32())))
SCHEMA = pa.schema(
    [
        *_required(*((name, pa.int64()) for name in _COUNTS)),
        *_required(("finish", pa.string()), ("reward", pa.float64()), ("use", pa.string())),
        *_required(("old_log_probs", pa.string()), ("carried", pa.bool_())),
        *_required(("response", _list_of(_TOKEN)), ("top", _list_of(_TOP))),
        pa.field("top_k", pa.int64()),  # null where the rollout has no top law
    ]
)
"""Columns of the format. `group` counts groups from 0; `top` holds the positions' top laws one after the other."""


_Located = tuple[int, tuple[int, int], Sample]
"""A sample that was read: the number of its group, that group's prompt and visit, and the sample."""


class _Row(NamedTuple):
    """A sample and the group that it belongs to."""

    number: int
    group: Group
    sample: Sample


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
    _check_format(file)
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
    """Batches of a file. It is mapped anew for each: the pages of one mapping would add up to the file's size."""
    number, total = 0, 1
    while number < total:
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            total = reader.num_record_batches
            if number < total:
                yield reader.get_batch(number)
        number += 1


def batches(groups: Iterable[Group]) -> Iterator[pa.RecordBatch]:
    """Record batches of groups, of about `PIECE` tokens each; the inverse is `groups_of`.

    Raises:
        ValueError: as `save_groups` does.
    """
    piece: list[_Row] = []
    tokens = 0
    for number, group in enumerate(groups):
        for sample in group.samples:
            _check_shapes(group, sample.rollout)
            piece.append(_Row(number, group, sample))
            tokens += sample.rollout.length * (1 + (_top_k(sample.rollout) or 0))
            if tokens >= PIECE:
                yield _batch(piece)
                piece, tokens = [], 0
    if piece:
        yield _batch(piece)


def _check_shapes(group: Group, r: Rollout) -> None:
    where = f"prompt {r.prompt}, sample {r.sample}"
    if r.prompt != group.prompt:
        raise ValueError(f"{where} stands in a group of prompt {group.prompt}")
    shapes = {name: (getattr(r, name), (r.length,)) for name in ("tokens", "log_probs", "sampled_at")}
    if r.top is not None:
        shape = (r.length, *r.top.tokens.shape[1:2])
        shapes |= {"top tokens": (r.top.tokens, shape), "top log_probs": (r.top.log_probs, shape)}
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"{name} of {where} do not fit its {r.length} tokens")


def _top_k(rollout: Rollout) -> int | None:
    return None if rollout.top is None else rollout.top.tokens.shape[1]


def _batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    rollouts = [row.sample.rollout for row in rows]
    tops = [r.top for r in rollouts if r.top is not None]
    columns = {
        "group": [row.number for row in rows],
        "prompt": [row.group.prompt for row in rows],
        "visit": [row.group.visit for row in rows],
        **{name: [getattr(r, name) for r in rollouts] for name in ("sample", "prefix_length", "draft_length")},
        **{name: [getattr(r, name) for r in rollouts] for name in ("verified", "finish")},
        **{name: [getattr(row.sample, name) for row in rows] for name in ("reward", "use", "old_log_probs", "carried")},
        "response": _lists(
            _TOKEN,
            [r.length for r in rollouts],
            *([getattr(r, name) for r in rollouts] for name in ("tokens", "log_probs", "sampled_at")),
        ),
        "top": _lists(
            _TOP,
            [r.length * (_top_k(r) or 0) for r in rollouts],
            *([getattr(top, name).reshape(-1) for top in tops] for name in ("tokens", "log_probs")),
        ),
        "top_k": [_top_k(r) for r in rollouts],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _lists(struct: pa.StructType, lengths: list[int], *parts: list[np.ndarray]) -> pa.Array:
    """A list of structs for each row, from the rows' arrays for each of the struct's fields."""
    kinds = [field.type.to_pandas_dtype() for field in struct]
    arrays = [
        pa.array(np.concatenate([np.zeros(0, kind), *part]).astype(kind, copy=False))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    items = pa.StructArray.from_arrays(arrays, fields=list(struct))
    return pa.LargeListArray.from_arrays([0, *accumulate(lengths)], items, type=_list_of(struct))


def groups_of(pieces: Iterable[pa.RecordBatch]) -> Iterator[Group]:
    """Groups from the record batches of `batches`, in order. Each rollout owns its arrays.

    Raises:
        ValueError: if a batch is not of this format or says what no group can be.
    """
    rows = (row for piece in pieces for row in _rows(piece))
    for expected, (number, found) in enumerate(groupby(rows, key=lambda row: row[0])):
        if number != expected:
            raise ValueError("groups are not in order")
        heads, samples = zip(*(row[1:] for row in found), strict=True)
        if len(set(heads)) > 1:
            raise ValueError("a group has two prompts or visits")
        (prompt, visit), *_ = heads
        yield Group(prompt, visit, samples)


def _rows(batch: pa.RecordBatch) -> Iterator[_Located]:
    """Samples of a batch, in order."""
    columns = _checked(batch)
    values = zip(*columns.values(), strict=True)
    for row, response, top in zip(values, _parts(batch["response"]), _parts(batch["top"]), strict=True):
        yield _row(dict(zip(columns, row, strict=True)), response, top)


def _row(of: Mapping[str, Any], response: Sequence[np.ndarray], top: Sequence[np.ndarray]) -> _Located:
    tokens, log_probs, sampled_at = (part.copy() for part in response)
    rollout = Rollout(
        of["prompt"], of["sample"], tokens, log_probs, sampled_at, Finish(of["finish"]),
        of["prefix_length"], of["draft_length"], of["verified"], _top(top, len(tokens), of["top_k"]),
    )  # fmt: skip
    use, old = Use(of["use"]), OldLogProbs(of["old_log_probs"])
    return of["group"], (of["prompt"], of["visit"]), Sample(rollout, of["reward"], use, old, of["carried"])


def _checked(batch: pa.RecordBatch) -> dict[str, list]:
    """Columns of a consistent batch as Python's values, without those of tokens."""
    if not batch.schema.equals(SCHEMA):
        raise ValueError("its columns are not those of this version")
    batch.validate(full=True)
    nulls = [field.name for field in SCHEMA if not field.nullable and batch[field.name].null_count]
    if nulls:
        raise ValueError(f"{nulls[0]} is null")
    columns = {name: batch[name].to_pylist() for name in SCHEMA.names if name not in ("response", "top")}
    for name in (*_COUNTS, "top_k"):
        if min((value for value in columns[name] if value is not None), default=0) < 0:
            raise ValueError(f"{name} is negative")
    return columns


def _parts(lists: pa.LargeListArray) -> Iterator[list[np.ndarray]]:
    """Views of each row's items, one for each field of the struct."""
    fields = [lists.values.field(number).to_numpy() for number in range(lists.values.type.num_fields)]
    for begin, end in pairwise(lists.offsets.to_numpy().tolist()):
        yield [field[begin:end] for field in fields]


def _top(parts: Sequence[np.ndarray], length: int, k: int | None) -> TopLaw | None:
    if len(parts[0]) != length * (k or 0):
        raise ValueError("a top law does not fit its response")
    return None if k is None else TopLaw(*(part.reshape(length, k).copy() for part in parts))


def _check_format(file: Path) -> None:
    """Refuse the file if it is missing or begins like a safetensors file, which earlier versions wrote."""
    try:
        with file.open("rb") as handle:
            head = handle.read(9)
    except FileNotFoundError:
        raise UserError("this file of rollouts is missing", file=file) from None
    if head[8:9] == b"{":  # behind the header's length, https://github.com/huggingface/safetensors#format
        raise UserError("this file of rollouts is in safetensors, the format of an earlier version, which is no longer "
                        "read", file=file, allowed="Arrow IPC files that this version wrote")  # fmt: skip


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
