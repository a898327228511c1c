"""Sweeps: measured seconds of single passes over batch sizes and lengths, in the format of the released ones.

One line a measurement: model, batch, seq (positions before the token), gamma, mode, statistics in milliseconds and the
number of passes. Fits take the median. A verification's time is without drafting. The released code subtracts drafting
where a verification takes so long that it seems to hold it, but on a device that only computes it takes as long anyway.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import UserError
from redraft.files import atomic, errors_of_reading

TARGET, DRAFT, VERIFY = "target_decode", "drafter_decode", "target_verify"
"""Modes that a fit needs: a pass of the target, of the drafter, and a verification of gamma drafted tokens."""
NEEDED = (
    f"{TARGET} with gamma 0 over several batch sizes and lengths, "
    f"and {DRAFT} and {VERIFY} over several batch sizes for each gamma"
)


@dataclass(frozen=True)
class Measurement:
    """A line of a sweep; its fields are the columns.

    `seq` counts positions before the token, `gamma` drafted tokens, 0 for plain decoding. Times are statistics over
    `n_samples` passes. A line with `batch` 0 is of the warm-up, and no fit uses it.
    """

    model: str
    batch: int
    seq: int
    gamma: int
    mode: str
    mean_ms: float
    median_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    n_samples: int


COLUMNS = {field.name: field.type for field in fields(Measurement)}


@dataclass(frozen=True)
class Times:
    """Medians of one mode, float64 (n,) each: sequences, positions before the token, and seconds."""

    batch: np.ndarray
    length: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True)
class Sweep:
    """Measurements of one model, complete enough for a fit."""

    model: str
    measurements: tuple[Measurement, ...]

    @property
    def gammas(self) -> list[int]:
        """Lengths of drafts, in rising order."""
        return sorted({m.gamma for m in self.measurements if m.mode in (DRAFT, VERIFY)})

    def times(self, mode: str, gamma: int = 0) -> Times:
        """Medians of a mode, without the warm-up."""
        return _times([m for m in self.measurements if (m.mode, m.gamma) == (mode, gamma) and m.batch > 0])

    def blocks(self, gamma: int) -> tuple[Times, Times, Times]:
        """Target, drafter and verification at the batch sizes and lengths that have all three, in one order."""
        modes = ((TARGET, 0), (DRAFT, gamma), (VERIFY, gamma))
        found = [{(m.batch, m.seq): m for m in self.measurements if (m.mode, m.gamma) == mode} for mode in modes]
        common = sorted(point for point in set.intersection(*map(set, found)) if point[0] > 0)
        target, draft, verify = (_times([of_mode[point] for point in common]) for of_mode in found)
        return target, draft, verify


def _times(measurements: Sequence[Measurement]) -> Times:
    columns = np.array([(m.batch, m.seq, m.median_ms * 1e-3) for m in measurements], dtype=float).reshape(-1, 3).T
    return Times(*columns)


def write_sweep(file: Path, measurements: Iterable[Measurement]) -> None:
    """Write a sweep as CSV, complete or not at all."""
    with atomic(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(measurement) for measurement in measurements)


def read_sweep(file: Path) -> Sweep:
    """Read a sweep.

    Raises:
        UserError: if it is missing or damaged, is of several models, measured something twice, or lacks what a fit
            needs.
    """
    with errors_of_reading(file, csv.Error, UnicodeDecodeError), file.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise UserError("this sweep lacks columns", file=file, key=", ".join(missing), allowed=", ".join(COLUMNS))
        measurements = tuple(
            Measurement(*(_value(row[name], name, reader.line_num, file) for name in COLUMNS)) for row in reader
        )
    if not measurements:
        raise UserError("this sweep has no measurements", file=file, allowed=NEEDED)
    return make_sweep(measurements, file)


def make_sweep(measurements: Iterable[Measurement], file: Path | None = None) -> Sweep:
    """A sweep of these measurements, from `file`.

    Raises:
        UserError: as `read_sweep`.
    """
    lines = tuple(measurements)
    models = sorted({m.model for m in lines})
    if len(models) != 1:
        raise UserError(
            "a sweep is of one model", file=file, key="model", value=models, allowed="one name in all lines"
        )
    seen: set[tuple[str, int, int, int]] = set()
    for m in lines:
        if (key := (m.mode, m.gamma, m.batch, m.seq)) in seen:
            raise UserError("this was measured twice", file=file, key="mode, gamma, batch, seq", value=key)
        seen.add(key)
    sweep = Sweep(models[0], lines)
    _check_several(sweep.times(TARGET), f"{TARGET}, gamma 0", file, lengths=True)
    if not sweep.gammas:
        raise UserError("this sweep has no speculation", file=file, key="mode", allowed=NEEDED)
    for gamma in sweep.gammas:
        if gamma < 1:
            raise UserError("a draft has at least one token", file=file, key="gamma", value=gamma, allowed=NEEDED)
        for mode in (DRAFT, VERIFY):
            _check_several(sweep.times(mode, gamma), f"{mode}, gamma {gamma}", file)
        if not len(sweep.blocks(gamma)[0].seconds):
            raise UserError(
                "no batch size and length has all three modes", file=file, key=f"gamma {gamma}", allowed=NEEDED
            )
    return sweep


def _value(text: str | None, column: str, line: int, file: Path) -> Any:
    """The text of a field as a value of its column's type."""
    if COLUMNS[column] is str:
        return text or ""
    whole = COLUMNS[column] is int
    try:
        value = int(text or "") if whole else float(text or "")
    except ValueError:
        value = math.nan
    lowest = 0.0 if column in ("batch", "seq", "gamma", "std_ms") else math.ulp(0.0)
    if not (math.isfinite(value) and value >= lowest):
        wanted = f"a {'whole ' if whole else ''}number, {'0 or more' if lowest == 0 else 'more than 0'}"
        raise UserError("this line lacks a number", file=file, key=f"line {line}, {column}", value=text, allowed=wanted)
    return value


def _check_several(times: Times, what: str, file: Path | None, *, lengths: bool = False) -> None:
    axes = {"batch": times.batch} | ({"seq": times.length} if lengths else {})
    for name, values in axes.items():
        distinct = np.unique(values).astype(int).tolist()
        if len(distinct) < 2:
            raise UserError(
                f"this sweep needs several values of {name} for {what}",
                file=file,
                key=name,
                value=distinct,
                allowed=NEEDED,
            )
