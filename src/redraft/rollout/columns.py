"""Groups as Arrow record batches, a row for each sample. A function for each direction; `storage.py` does the I/O.

A token, its log-probability and its step are one struct, so that no lengths can disagree. Encoding the step by
runs was left out, for the reason in docs/decisions/memory.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from redraft.rollout.types import Finish, Group, OldLogProbs, Rollout, Sample, TopLogProbs, Use

PIECE = 2**20
"""Tokens of a record batch, those of top distributions included; the last response of a batch may exceed it."""


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
        # null where the rollout has no top distribution, and no weights
        pa.field("top_k", pa.int64()),
        pa.field("log_weights", pa.large_list(pa.field("item", pa.float32(), nullable=False))),
    ]
)
"""Columns of the format. `group` counts groups from 0; `top` holds the positions' top distributions one after the
other."""
_LISTS = ("response", "top", "log_weights")
"""Columns of tokens, which do not become Python's numbers."""

_Located = tuple[int, tuple[int, int], Sample]
"""A sample that was read: the number of its group, that group's prompt and visit, and the sample."""


class _Row(NamedTuple):
    """A sample and the group that it belongs to."""

    number: int
    group: Group
    sample: Sample


def batches(groups: Iterable[Group]) -> Iterator[pa.RecordBatch]:
    """Record batches of groups, of about `PIECE` tokens each; the inverse is `groups_of`.

    Raises:
        ValueError: if the arrays of a rollout differ in length, or a rollout is of another prompt than its group.
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
        raise ValueError(f"{where} is in a group of prompt {group.prompt}")
    names = ("tokens", "log_probs", "sampled_at", *["log_weights"] * (r.log_weights is not None))
    shapes: dict[str, tuple[np.ndarray, tuple[int, ...]]] = {name: (getattr(r, name), (r.length,)) for name in names}
    if r.top is not None:
        whole = (r.length, r.top.tokens.shape[-1])
        shapes |= {"top tokens": (r.top.tokens, whole), "top log_probs": (r.top.log_probs, whole)}
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
        "log_weights": [r.log_weights for r in rollouts],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _lists(struct: pa.StructType, lengths: list[int], *parts: list[np.ndarray]) -> pa.Array:
    """A list of structs for each row, from the rows' arrays for each of the struct's fields."""
    kinds = [field.type.to_pandas_dtype() for field in struct]
    arrays = [
        # `concatenate` needs one array at least, and a batch may have no top distribution.
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
    # Rows of all batches together, since a group may begin in one and end in the next.
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
    lists = _parts(batch["response"]), _parts(batch["top"]), _weights(batch["log_weights"])
    for row, response, top, log_weights in zip(values, *lists, strict=True):
        yield _row(dict(zip(columns, row, strict=True)), response, top, log_weights)


def _row(
    of: Mapping[str, Any], response: Sequence[np.ndarray], top: Sequence[np.ndarray], log_weights: np.ndarray | None
) -> _Located:
    # Copies, since a view would keep the whole record batch in memory.
    tokens, log_probs, sampled_at = (part.copy() for part in response)
    if log_weights is not None and len(log_weights) != len(tokens):
        raise ValueError("log-weights do not fit their response")
    rollout = Rollout(
        of["prompt"],
        of["sample"],
        tokens,
        log_probs,
        sampled_at,
        Finish(of["finish"]),
        of["prefix_length"],
        of["draft_length"],
        of["verified"],
        _top(top, len(tokens), of["top_k"]),
        None if log_weights is None else log_weights.copy(),
    )
    use, old = Use(of["use"]), OldLogProbs(of["old_log_probs"])
    return of["group"], (of["prompt"], of["visit"]), Sample(rollout, of["reward"], use, old, of["carried"])


def _checked(batch: pa.RecordBatch) -> dict[str, list]:
    """Columns of a consistent batch as Python's values, without those of tokens."""
    if not batch.schema.equals(SCHEMA):
        raise ValueError("its columns are not those of this version")
    # Offsets and lengths come from the file and could point outside of it.
    batch.validate(full=True)
    # Arrow does not check what a field declares about nulls.
    nulls = [field.name for field in SCHEMA if not field.nullable and batch[field.name].null_count]
    if nulls:
        raise ValueError(f"{nulls[0]} is null")
    columns = {name: batch[name].to_pylist() for name in SCHEMA.names if name not in _LISTS}
    for name in (*_COUNTS, "top_k"):
        if min((value for value in columns[name] if value is not None), default=0) < 0:
            raise ValueError(f"{name} is negative")
    return columns


def _parts(lists: pa.LargeListArray) -> Iterator[list[np.ndarray]]:
    """Views of each row's items, one for each field of the struct."""
    fields = [lists.values.field(number).to_numpy() for number in range(lists.values.type.num_fields)]
    for begin, end in pairwise(lists.offsets.to_numpy().tolist()):
        yield [field[begin:end] for field in fields]


def _weights(lists: pa.LargeListArray) -> Iterator[np.ndarray | None]:
    """Views of each row's log-weights, None where it is null."""
    values, ends = lists.values.to_numpy(), lists.offsets.to_numpy().tolist()
    for (begin, end), there in zip(pairwise(ends), lists.is_valid().to_pylist(), strict=True):
        yield values[begin:end] if there else None


def _top(parts: Sequence[np.ndarray], length: int, k: int | None) -> TopLogProbs | None:
    if len(parts[0]) != length * (k or 0):
        raise ValueError("a top distribution does not fit its response")
    return None if k is None else TopLogProbs(*(part.reshape(length, k).copy() for part in parts))
