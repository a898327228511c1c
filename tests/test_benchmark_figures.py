"""Figures of benchmarks beside committed ones: multiples of the first alternative, and what has changed."""

import json

import pytest

from benchmarks import side_by_side

THEN = {"engine": {"generate": [1.0, 1.0, 1.0], "decoding": [0.5, 0.4, 0.6], "verification": [0.2, 0.18, 0.25]}}


def test_multiples_are_of_the_first_alternative_in_the_same_round():
    measured = {"engine": {"generate": [1.0, 2.0, 4.0], "decoding": [0.5, 0.5, 3.0]}}
    assert side_by_side.multiples(measured) == {"engine": {"generate": [1, 1, 1], "decoding": [0.5, 0.25, 0.75]}}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([0.7, 0.61, 0.9], ["slower"]),
        ([0.7, 0.6, 0.9], []),
        ([0.3, 0.2, 0.4], []),
        ([0.3, 0.2, 0.39], ["faster"]),
    ],
    ids=["slower", "within the noise above", "within the noise below", "faster"],
)
def test_only_what_leaves_the_noise_of_both_runs_has_changed(now, expected):
    found = list(side_by_side.changes({"engine": {"generate": [1, 1, 1], "decoding": now}}, THEN))
    assert [line.partition(":")[0] for line in found] == expected
    assert all("engine, decoding: 0." in line and 'of "generate", was 0.50 [0.40, 0.60]' in line for line in found)


def test_what_was_never_measured_has_not_changed():
    assert not list(side_by_side.changes({"new": {"one": [1, 1, 1]}, "engine": {"other": [9, 9, 9]}}, THEN))


def test_written_figures_are_compared_with_and_others_stay(tmp_path):
    file = tmp_path / "figures.json"
    assert "--write" in side_by_side.compare(THEN, file)
    side_by_side.write(THEN, file)
    side_by_side.write({"new": {"one": [1.0, 1.0, 1.0]}}, file)
    committed = json.loads(file.read_text())
    assert {title: record["multiples"] for title, record in committed.items()} == THEN | {"new": {"one": [1, 1, 1]}}
    assert side_by_side.compare(THEN, file).startswith("3 figures beside those of")
    assert side_by_side.compare(THEN, file).endswith("more than the noise of both runs")
    slower = {"engine": THEN["engine"] | {"decoding": [0.7, 0.65, 0.9]}}
    assert "\n  slower: engine, decoding: 0.70 [0.65, 0.90]" in side_by_side.compare(slower, file)


def test_figures_that_stay_keep_when_and_where_they_were_measured(tmp_path, monkeypatch):
    file = tmp_path / "figures.json"
    monkeypatch.setattr(side_by_side, "machine", lambda: {"system": "s", "processor": "old"})
    side_by_side.write(THEN | {"head": {"one": [1.0, 1.0, 1.0]}}, file)
    monkeypatch.setattr(side_by_side, "machine", lambda: {"system": "s", "processor": "new"})
    side_by_side.write({"head": {"one": [1.0, 1.0, 1.0]}}, file)
    committed = json.loads(file.read_text())
    assert {title: record["machine"] for title, record in committed.items()} == {
        "engine": {"processor": "old"},
        "head": {"processor": "new"},
    }
    assert "(old): " in side_by_side.compare(THEN, file)
    both = side_by_side.compare(THEN | {"head": {"one": [1.0, 1.0, 1.0]}}, file)
    assert "(old), " in both
    assert "(new): " in both


def test_alternatives_take_turns_and_are_remembered_by_title():
    order, clock = [], iter(range(100))
    alternatives = {name: lambda name=name: order.append(name) for name in "ab"}
    measured = side_by_side.seconds("turns", alternatives, rounds=2, clock=lambda: float(next(clock)))
    assert order == list("ababab")
    assert measured == {"a": [1.0, 1.0], "b": [1.0, 1.0]} == side_by_side.MEASURED.pop("turns")
