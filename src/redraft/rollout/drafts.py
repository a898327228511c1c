"""The draft store: earlier rollouts by prompt and sample, for two epochs, as one file in the checkpoint.

The file is safetensors (flat arrays), so that loading one never executes code. Memory is 12 bytes a token and about a
kilobyte a rollout; saving and loading go through the rollouts in pieces, so that neither holds a second copy
(`benchmarks/drafts.py` measures it).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from redraft.errors import UserError
from redraft.files import atomic
from redraft.rollout.types import Finish, Rollout

_FINISHES = list(Finish)
_COLUMNS = 7
"""Of `entries`: prompt, sample, length, prefix_length, draft_length, verified, index of the finish."""
_FIELDS = {"tokens": np.dtype("<i4"), "log_probs": np.dtype("<f4"), "sampled_at": np.dtype("<i4")}
_TYPE_NAMES = {"<i8": "I64", "<i4": "I32", "<f8": "F64", "<f4": "F32"}
_PIECE = 1024
"""Rollouts that are written or read at a time."""


def pack(rollouts: Sequence[Rollout]) -> dict[str, np.ndarray]:
    """Rollouts as flat arrays, in their order; `unpack` is the inverse.

    Returns:
        `entries`, int64, (rollouts, 7): prompt, sample, length, prefix_length, draft_length, verified, finish; and
        `tokens` int32, `log_probs` float32, `sampled_at` int32, (tokens of all,), one response after the other.

    Raises:
        ValueError: if a rollout has not as many log-probabilities or steps as tokens.
    """
    return {"entries": _entries(rollouts), **{name: _joined(rollouts, name) for name in _FIELDS}}


def _entries(rollouts: Sequence[Rollout]) -> np.ndarray:
    rows = [
        (r.prompt, r.sample, r.length, r.prefix_length, r.draft_length, r.verified, _FINISHES.index(r.finish))
        for r in rollouts
    ]
    return np.asarray(rows, dtype=np.int64).reshape(len(rows), _COLUMNS)


def _joined(rollouts: Sequence[Rollout], name: str) -> np.ndarray:
    kind = _FIELDS[name]
    for r in rollouts:
        if getattr(r, name).shape != (r.length,):
            raise ValueError(f"{name} of prompt {r.prompt}, sample {r.sample} do not fit its {r.length} tokens")
    return np.concatenate([np.zeros(0, kind), *(getattr(r, name) for r in rollouts)]).astype(kind, copy=False)


def unpack(arrays: Mapping[str, np.ndarray]) -> list[Rollout]:
    """Rollouts from the arrays of `pack`; each owns its memory, so that dropping one frees it.

    Raises:
        KeyError: if an array is missing.
        ValueError: if arrays do not fit together, or hold what no rollout has.
    """
    entries = arrays["entries"]
    _check(entries, {name: arrays[name].shape for name in _FIELDS})
    for name, kind in _FIELDS.items():
        if arrays[name].dtype != kind:
            raise ValueError(f"{name} is {arrays[name].dtype}, not {kind.name}")
    rollouts, begin = [], 0
    for prompt, sample, length, prefix, draft, verified, finish in entries.tolist():
        tokens, log_probs, sampled_at = (arrays[name][begin : begin + length].copy() for name in _FIELDS)
        end = _FINISHES[finish]
        rollouts.append(Rollout(prompt, sample, tokens, log_probs, sampled_at, end, prefix, draft, verified))
        begin += length
    return rollouts


def _check(entries: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Whether entries can describe fields of these shapes."""
    if entries.dtype != np.int64 or entries.ndim != 2 or entries.shape[1] != _COLUMNS:
        raise ValueError(f"entries are {entries.dtype} {entries.shape}, not int64 (rollouts, {_COLUMNS})")
    if (entries < 0).any():
        raise ValueError("entries are negative")
    if (entries[:, 6] >= len(_FINISHES)).any():
        raise ValueError("a finish is unknown")
    total = sum(entries[:, 2].tolist())  # Python's integers: absurd lengths must not wrap around
    if any(shape != (total,) for shape in shapes.values()):
        raise ValueError("lengths do not add up")


def save_rollouts(file: Path, rollouts: Sequence[Rollout], **more: np.ndarray) -> None:
    """Write rollouts, and more arrays of 4 or 8 bytes an element, to one safetensors file, atomically.

    The fields are written in pieces; safetensors' own `save_file` would want each of them whole in memory.

    Raises:
        ValueError: if one of `more` is named like an array of `pack` or is neither integer nor float, or as in `pack`.
        UserError: if there is no space left.
    """
    if set(more) & {"entries", *_FIELDS}:
        raise ValueError(f"{sorted(more)} overlap with the arrays of rollouts")
    heads = {name: _little_endian(name, array) for name, array in {"entries": _entries(rollouts), **more}.items()}
    shapes = {name: (sum(r.length for r in rollouts),) for name in _FIELDS}
    kinds = {name: array.dtype for name, array in heads.items()} | _FIELDS
    with atomic(file) as temporary, temporary.open("wb") as handle:
        _write_header(handle, kinds, {name: array.shape for name, array in heads.items()} | shapes)
        for array in heads.values():
            handle.write(array.tobytes())
        for name in _FIELDS:
            for first in range(0, len(rollouts), _PIECE):
                handle.write(_joined(rollouts[first : first + _PIECE], name).tobytes())


def _little_endian(name: str, array: np.ndarray) -> np.ndarray:
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.str not in _TYPE_NAMES:
        raise ValueError(f"{name} is {array.dtype}, which is not written here")
    return array


def _write_header(handle: BinaryIO, kinds: Mapping[str, np.dtype], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The header of a safetensors file: its length in 8 bytes, then JSON, padded so that what follows is aligned.

    Source: the format's description, https://github.com/huggingface/safetensors#format.
    """
    header, begin = {}, 0
    for name, kind in kinds.items():
        end = begin + kind.itemsize * int(np.prod(shapes[name], dtype=np.int64))
        header[name] = {"dtype": _TYPE_NAMES[kind.str], "shape": shapes[name], "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    handle.write(len(text).to_bytes(8, "little") + text)


def load_rollouts(file: Path) -> tuple[list[Rollout], dict[str, np.ndarray]]:
    """What `save_rollouts` wrote: the rollouts, and the other arrays by name.

    Rollouts are copied out of the file: a view of the whole would stay alive until its last rollout is replaced, an
    epoch later.

    Raises:
        UserError: if the file is missing, truncated or inconsistent.
    """
    with _described(file):
        entries, more = _heads(file)
        ends = [0, *np.cumsum(entries[:, 2]).tolist()]
        rollouts: list[Rollout] = []
        for first in range(0, len(entries), _PIECE):
            piece = entries[first : first + _PIECE]
            rollouts += unpack({"entries": piece, **_fields(file, ends[first], ends[first + len(piece)])})
        return rollouts, more


def _heads(file: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The entries, checked against the fields' shapes, and the arrays that are no part of rollouts."""
    with safe_open(file, framework="np") as opened:
        entries = opened.get_tensor("entries")
        _check(entries, {name: tuple(opened.get_slice(name).get_shape()) for name in _FIELDS})
        others = set(opened.keys()) - {"entries", *_FIELDS}
        return entries, {name: opened.get_tensor(name) for name in sorted(others)}


def _fields(file: Path, begin: int, end: int) -> dict[str, np.ndarray]:
    """A part of the fields. The file is opened for each anew: a mapping that stayed would grow to the file's size."""
    if begin == end:  # which safetensors refuses to slice at the end of an array
        return {name: np.zeros(0, kind) for name, kind in _FIELDS.items()}
    with safe_open(file, framework="np") as opened:
        return {name: opened.get_slice(name)[begin:end] for name in _FIELDS}


@contextmanager
def _described(file: Path) -> Iterator[None]:
    """Errors of reading a file of rollouts, as errors of a user."""
    try:
        yield
    except FileNotFoundError:
        raise UserError("this file of rollouts is missing", file=file) from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"this file of rollouts is damaged ({error})", file=file) from None


class DraftStore:
    """Rollouts of the last epochs, keyed by (prompt, sample).

    Args:
        epochs: how many epochs' rollouts are kept of each key; the oldest is dropped beyond that.
    """

    def __init__(self, epochs: int = 2) -> None:
        if epochs < 1:
            raise ValueError(f"a draft store keeps at least one epoch, got {epochs}")
        self.epochs = epochs
        self._rollouts: dict[tuple[int, int], dict[int, Rollout]] = {}

    def __len__(self) -> int:
        return sum(len(by_epoch) for by_epoch in self._rollouts.values())

    def put(self, rollout: Rollout, epoch: int) -> None:
        """Keep a rollout of an epoch; one of the same key and epoch is replaced."""
        by_epoch = self._rollouts.setdefault((rollout.prompt, rollout.sample), {})
        by_epoch[epoch] = rollout
        for old in sorted(by_epoch)[: -self.epochs]:
            del by_epoch[old]

    def get(self, prompt: int, sample: int, epoch: int) -> Rollout | None:
        """The rollout that key had in that epoch, or None."""
        return self._rollouts.get((prompt, sample), {}).get(epoch)

    def items(self) -> list[tuple[Rollout, int]]:
        """All rollouts with their epochs, by prompt, sample and epoch."""
        return [(r, e) for _, by_epoch in sorted(self._rollouts.items()) for e, r in sorted(by_epoch.items())]

    def save(self, file: Path) -> None:
        """Write everything to one file, atomically."""
        kept = self.items()
        save_rollouts(file, [r for r, _ in kept], epochs=np.array([e for _, e in kept], dtype=np.int64))

    @classmethod
    def load(cls, file: Path, epochs: int = 2) -> "DraftStore":
        """Read a store written by `save`.

        Raises:
            UserError: if the file is missing, truncated or inconsistent.
        """
        rollouts, more = load_rollouts(file)
        with _described(file):
            return cls(epochs)._filled(rollouts, more["epochs"])

    def _filled(self, rollouts: Sequence[Rollout], epochs: np.ndarray) -> "DraftStore":
        if epochs.dtype != np.int64 or epochs.shape != (len(rollouts),):
            raise ValueError(f"epochs are {epochs.dtype} {epochs.shape}, not int64 ({len(rollouts)},)")
        if len({(r.prompt, r.sample, e) for r, e in zip(rollouts, epochs.tolist(), strict=True)}) < len(rollouts):
            raise ValueError("a rollout stands there twice")
        for rollout, epoch in zip(rollouts, epochs.tolist(), strict=True):
            self.put(rollout, epoch)
        return self
