"""Sweeps: measured times of single passes over batch sizes and lengths, in the CSV format of the released ones.

One row per measurement: model, batch, seq (positions before the token), gamma, mode, statistics in milliseconds and the
number of passes. Fits use the median. A verification's time excludes drafting. The released code subtracts the drafting
time from verifications that are slow enough to include it. This is not done here, because on a compute-bound device
verification alone is as slow.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from redraft.errors import UserError
from redraft.files import atomic, check_length, errors_of_reading

TARGET, DRAFT, VERIFY = "target_decode", "drafter_decode", "target_verify"
"""Modes that a fit needs: a target pass, a drafter pass, and the verification of gamma drafted tokens."""
NEEDED = (
    f"{TARGET} with gamma 0 over several batch sizes and lengths, "
    f"and {DRAFT} and {VERIFY} over several batch sizes for each gamma"
)


@dataclass(frozen=True)
class SweepRow:
    """A row of a sweep; its fields are the columns.

    `seq` counts positions before the token, `gamma` drafted tokens (0 for plain decoding). Times are statistics over
    `n_samples` passes. Rows with `batch` 0 are warm-up, which fits ignore.
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


COLUMNS = {field.name: field.type for field in fields(SweepRow)}


@dataclass(frozen=True)
class PassTimes:
    """Median times of one mode, float64 (n,) each: sequences, positions before the token, and seconds."""

    batch: np.ndarray
    length: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True)
class Sweep:
    """Measurements of one model, complete enough for a fit."""

    model: str
    measurements: tuple[SweepRow, ...]

    @property
    def gammas(self) -> list[int]:
        """Draft lengths, ascending."""
        return sorted({m.gamma for m in self.measurements if m.mode in (DRAFT, VERIFY)})

    @property
    def grid(self) -> int:
        """Number of combinations of the batch sizes, lengths and draft lengths in it."""
        # Without warm-up and modes that fits ignore.
        measured = [m for m in self.measurements if m.batch > 0 and m.mode in (TARGET, DRAFT, VERIFY)]
        return len({m.batch for m in measured}) * len({m.seq for m in measured}) * len(self.gammas)

    def times(self, mode: str, gamma: int = 0) -> PassTimes:
        """Median times of a mode, without warm-up."""
        return _times([m for m in self.measurements if (m.mode, m.gamma) == (mode, gamma) and m.batch > 0])

    def blocks(self, gamma: int) -> tuple[PassTimes, PassTimes, PassTimes]:
        """Times of target, drafter and verification at the points (batch, length) that have all three, in one order."""
        modes = ((TARGET, 0), (DRAFT, gamma), (VERIFY, gamma))
        by_point = [{(m.batch, m.seq): m for m in self.measurements if (m.mode, m.gamma) == mode} for mode in modes]
        # A sweep may lack points of a mode: the published one has 178 of 180 (docs/selfspec.md).
        common = sorted(point for point in set.intersection(*map(set, by_point)) if point[0] > 0)
        target, draft, verify = (_times([of_mode[point] for point in common]) for of_mode in by_point)
        return target, draft, verify


def _times(measurements: Sequence[SweepRow]) -> PassTimes:
    columns = np.array([(m.batch, m.seq, m.median_ms * 1e-3) for m in measurements], dtype=float).reshape(-1, 3).T
    return PassTimes(*columns)


def write_sweep(file: Path, measurements: Iterable[SweepRow]) -> None:
    """Write a sweep as CSV, atomically."""
    with atomic(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(measurement) for measurement in measurements)


def read_sweep(file: Path, rows: int | None = None) -> Sweep:
    """Read a sweep.

    Args:
        file: CSV in UTF-8.
        rows: number of rows after the header; unknown if None.

    Raises:
        UserError: if the file cannot be read, is cut off or has another number of rows, has several models or duplicate
            points, or lacks rows that a fit needs.
    """
    # Spreadsheets write a byte order mark, which would be a part of the first column's name.
    with errors_of_reading(file, csv.Error, UnicodeDecodeError), file.open(newline="", encoding="utf-8-sig") as handle:
        lines = handle.readlines()
        # A number that was cut is still a number: 1 of 10.
        if lines and not lines[-1].endswith("\n"):
            raise UserError("this sweep is cut off: its last line has no end", file=file, key="line", value=len(lines))
        reader = csv.DictReader(lines)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise UserError("this sweep lacks columns", file=file, key=", ".join(missing), allowed=", ".join(COLUMNS))
        measurements = tuple(
            SweepRow(*(_value(row[name], name, reader.line_num, file) for name in COLUMNS)) for row in reader
        )
    if not measurements:
        raise UserError("this sweep has no measurements", file=file, allowed=NEEDED)
    check_length(file, "rows", len(measurements), rows)
    return make_sweep(measurements, file)


def make_sweep(measurements: Iterable[SweepRow], file: Path | None = None) -> Sweep:
    """A validated sweep; `file` is named in errors.

    Raises:
        UserError: as `read_sweep`.
    """
    lines = tuple(measurements)
    models = sorted({m.model for m in lines})
    # The costs of one model do not describe another's times.
    if len(models) != 1:
        raise UserError(
            "this sweep has several models", file=file, key="model", value=models, allowed="one name in all rows"
        )
    seen: set[tuple[str, int, int, int]] = set()
    for m in lines:
        # Means over points would count it twice, and `blocks` would take the later one.
        if (key := (m.mode, m.gamma, m.batch, m.seq)) in seen:
            raise UserError("this point was measured twice", file=file, key="mode, gamma, batch, seq", value=key)
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
        # Stage 2 of the fit compares whole blocks with the target at the same point.
        if not len(sweep.blocks(gamma)[0].seconds):
            raise UserError(
                "no batch size and length has all three modes", file=file, key=f"gamma {gamma}", allowed=NEEDED
            )
    return sweep


def _value(text: str | None, column: str, line: int, file: Path) -> Any:
    """A field's text converted to its column's type."""
    if COLUMNS[column] is str:
        return text or ""
    whole = COLUMNS[column] is int
    try:
        value = int(text or "") if whole else float(text or "")
        float(value)  # an integer of hundreds of digits is no number of sequences
    except (ValueError, OverflowError):
        value = math.nan
    # `ulp` is the smallest number above 0.
    lowest = 0.0 if column in ("batch", "seq", "gamma", "std_ms") else math.ulp(0.0)
    if not (math.isfinite(value) and value >= lowest):
        wanted = f"a {'whole ' if whole else ''}number, {'0 or more' if lowest == 0 else 'more than 0'}"
        raise UserError("this line lacks a number", file=file, key=f"line {line}, {column}", value=text, allowed=wanted)
    return value


def _check_several(times: PassTimes, what: str, file: Path | None, *, lengths: bool = False) -> None:
    axes = {"batch": times.batch} | ({"seq": times.length} if lengths else {})
    for name, values in axes.items():
        # One value of an axis cannot separate a constant from a slope: the fit would end at a bound, or anywhere.
        distinct = np.unique(values).astype(int).tolist()
        if len(distinct) < 2:
            raise UserError(
                f"this sweep needs several values of {name} for {what}",
                file=file,
                key=name,
                value=distinct,
                allowed=NEEDED,
            )
