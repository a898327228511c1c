"""Sweeps: what is written is read again, and each mistake is one error that says what is needed."""

import csv

import numpy as np
import pytest

from benchmarks.self_speculation import SWEEP
from redraft.errors import UserError
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, make_sweep, read_sweep, write_sweep
from redraft.selfspec.roofline import draft_seconds, target_seconds, verify_seconds
from tests.selfspec import BATCHES, DATA, GAMMAS, LENGTHS, QWEN, measurements, needs_data


def test_a_sweep_that_is_written_is_read_again(tmp_path):
    lines = measurements(QWEN)
    write_sweep(tmp_path / "sweep.csv", lines)
    sweep = read_sweep(tmp_path / "sweep.csv")
    assert sweep == make_sweep(lines)
    assert (sweep.model, sweep.gammas) == ("Qwen2.5-7B", list(GAMMAS))
    times = sweep.times(DRAFT, 7)
    assert len(times.seconds) == len(BATCHES) * len(LENGTHS)
    medians = [m.median_ms for m in lines if (m.mode, m.gamma) == (DRAFT, 7)]
    np.testing.assert_allclose(times.seconds, np.array(medians) / 1000)
    assert 0 not in sweep.times(TARGET).batch, "no warm-up"


def test_blocks_are_the_points_with_all_three_modes_in_one_order():
    gone = {(TARGET, 0, 1, 256), (DRAFT, 3, 2, 512), (VERIFY, 3, 64, 4096)}
    lines = [m for m in measurements(QWEN) if (m.mode, m.gamma, m.batch, m.seq) not in gone]
    blocks = make_sweep(list(reversed(lines))).blocks(3)
    expected = sorted((b, s) for b in BATCHES for s in LENGTHS if (b, s) not in {(1, 256), (2, 512), (64, 4096)})
    passes = (target_seconds, draft_seconds, lambda c, b, s: verify_seconds(c, b, s, 3))
    for times, seconds in zip(blocks, passes, strict=True):
        assert list(zip(times.batch, times.length, strict=True)) == expected
        np.testing.assert_allclose(times.seconds, seconds(QWEN, times.batch, times.length))


def of(mode, gamma=None, **limits):
    """Lines of a mode."""

    def fits_(row):
        return (
            row["mode"] == mode and gamma in (None, int(row["gamma"])) and all(row[k] == v for k, v in limits.items())
        )

    return fits_


def change(chosen, **values):
    return lambda rows: [row | values if chosen(row) else row for row in rows]


def first(chosen, **values):
    def changed(rows):
        index = next(i for i, row in enumerate(rows) if chosen(row))
        return [row | values if i == index else row for i, row in enumerate(rows)]

    return changed


def without(chosen):
    return lambda rows: [row for row in rows if not chosen(row)]


DECODE = of(TARGET)
MISTAKES = {
    "a missing column": (
        lambda rows: [{k: v for k, v in row.items() if k != "median_ms"} for row in rows],
        ["lacks columns", "median_ms", "n_samples"],
    ),
    "no number": (first(DECODE, median_ms="nan"), ["lacks a number", "line 2, median_ms", "nan", "more than 0"]),
    "an empty value": (first(of(VERIFY), median_ms=""), ["lacks a number", "median_ms"]),
    "an infinite time": (first(DECODE, median_ms="inf"), ["lacks a number", "inf"]),
    "a time of 0": (first(DECODE, median_ms="0"), ["lacks a number", "median_ms", "more than 0"]),
    "a negative time": (first(DECODE, mean_ms="-1"), ["lacks a number", "mean_ms", "more than 0"]),
    "half a sequence": (first(DECODE, batch="1.5"), ["lacks a number", "batch", "a whole number, 0 or more"]),
    "a negative length": (first(DECODE, seq="-1"), ["lacks a number", "seq", "0 or more"]),
    "one batch size": (without(lambda row: row["batch"] not in ("0", "8")), ["values of batch", "target_decode", "8"]),
    "one batch size of the drafter": (
        without(lambda row: row["mode"] == DRAFT and row["batch"] != "8"),
        ["several values of batch", "drafter_decode, gamma 3", "[8]"],
    ),
    "one length": (without(lambda row: row["seq"] not in ("0", "512")), ["values of seq", "target_decode", "[512]"]),
    "no lines": (lambda rows: [], ["no measurements", "several batch sizes"]),
    "no target": (without(DECODE), ["several values of batch", "target_decode", "[]"]),
    "no speculation": (without(lambda row: row["mode"] != TARGET), ["no speculation", "drafter_decode"]),
    "no verification of a draft length": (without(of(VERIFY, 7)), ["values of batch", "target_verify, gamma 7"]),
    "drafts of no tokens": (change(of(DRAFT, 3), gamma="0"), ["at least one token", "gamma", "0"]),
    "nothing in common": (
        without(lambda row: row["gamma"] == "3" and (row["mode"] == DRAFT) == (len(row["seq"]) > 3)),
        ["all three modes", "gamma 3"],
    ),
    "a line twice": (lambda rows: [*rows, rows[5]], ["measured twice", "target_decode"]),
    "400 digits": (first(DECODE, batch="9" * 400), ["lacks a number", "batch"]),
    "two models": (first(DECODE, model="other"), ["several models", "other", "Qwen2.5-7B"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_sweep_is_one_error_that_says_what_is_needed(name, tmp_path):
    mistake, parts = MISTAKES[name]
    file = tmp_path / "sweep.csv"
    write_sweep(file, measurements(QWEN))
    with file.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    columns, changed = list(rows[0]), mistake(rows)
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(changed[0]) if changed else columns)
        writer.writeheader()
        writer.writerows(changed)
    with pytest.raises(UserError) as error:
        read_sweep(file)
    assert error.value.file == file
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_files_that_are_no_sweeps(tmp_path):
    with pytest.raises(UserError, match="missing"):
        read_sweep(tmp_path / "nothing.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="lacks columns") as raised:
        read_sweep(tmp_path / "empty.csv")
    assert "median_ms" in raised.value.key
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="damaged"):
        read_sweep(tmp_path / "binary.csv")


@needs_data
def test_writing_a_sweep_again_changes_no_value(tmp_path):
    sweep = read_sweep(DATA / SWEEP)
    write_sweep(tmp_path / "again.csv", sweep.measurements)
    assert read_sweep(tmp_path / "again.csv") == sweep
