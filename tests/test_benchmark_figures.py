"""Figures of benchmarks beside committed ones: multiples of the first alternative, and what has changed."""

import json

import pytest

from benchmarks import side_by_side
from redraft.errors import UserError

THEN = {"engine": {"generate": [1.0, 1.0, 1.0], "decoding": [0.5, 0.4, 0.6], "verification": [0.2, 0.18, 0.25]}}
SLOWER = {"engine": THEN["engine"] | {"decoding": [0.7, 0.65, 0.9]}}
INSTRUCTIONS = {
    "AMX": "amx_bf16 amx_tile avx avx512_bf16 avx512f",
    "AVX-512": "avx avx2 avx512f fma",
    "neither": "avx2 fma",
}


@pytest.fixture
def on(monkeypatch):
    """Be on a machine of a kind, whose processor has this name."""

    def on(kind, processor="p"):
        known = {"system": "s", "processor": processor, "instructions": INSTRUCTIONS[kind]}
        monkeypatch.setattr(side_by_side, "machine", lambda: known)

    on("AVX-512")
    return on


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


@pytest.mark.parametrize(("kind", "instructions"), [*INSTRUCTIONS.items(), ("neither", ""), ("neither", "asimd bf16")])
def test_a_processor_is_of_the_kind_of_its_widest_instructions(kind, instructions):
    assert side_by_side.kind_of(instructions) == kind


def test_written_figures_are_compared_with_and_others_stay(tmp_path, on):
    file = tmp_path / "figures.json"
    assert "--write" in side_by_side.compare(THEN, file)
    side_by_side.write(THEN, file)
    side_by_side.write({"new": {"one": [1.0, 1.0, 1.0]}}, file)
    [committed] = json.loads(file.read_text()).values()
    assert {title: record["multiples"] for title, record in committed.items()} == THEN | {"new": {"one": [1, 1, 1]}}
    assert side_by_side.compare(THEN, file).startswith(
        "3 of 3 figures beside those of this kind of processor (AVX-512)"
    )
    assert side_by_side.compare(THEN, file).endswith("more than the noise of both runs")
    assert side_by_side.compare(THEN | {"newer": {"one": [1.0] * 3}}, file).startswith("3 of 4 figures")
    assert "\n  slower: engine, decoding: 0.70 [0.65, 0.90]" in side_by_side.compare(SLOWER, file)
    assert "no figures" in side_by_side.compare({}, file)


def test_figures_are_compared_with_those_of_the_same_kind_of_processor_alone(tmp_path, on):
    file = tmp_path / "figures.json"
    side_by_side.write(THEN, file)
    on("AMX")
    message = side_by_side.compare(SLOWER, file)
    assert "none of these figures for this kind of processor (AMX; kinds with figures: AVX-512)" in message
    assert "slower" not in message
    side_by_side.write(SLOWER, file)
    assert "noise" in side_by_side.compare(SLOWER, file)
    assert "faster: engine, decoding: 0.50" in side_by_side.compare(THEN, file)
    on("AVX-512")
    assert "noise" in side_by_side.compare(THEN, file)
    on("neither")
    assert "neither; kinds with figures: AMX, AVX-512)" in side_by_side.compare(THEN, file)


def test_figures_that_stay_keep_when_and_where_they_were_measured(tmp_path, on):
    file = tmp_path / "figures.json"
    on("AMX", "old")
    side_by_side.write(THEN | {"head": {"one": [1.0, 1.0, 1.0]}}, file)
    on("AMX", "new")
    side_by_side.write({"head": {"one": [1.0, 1.0, 1.0]}}, file)
    committed = json.loads(file.read_text())["AMX"]
    assert {title: record["machine"] for title, record in committed.items()} == {
        "engine": {"processor": "old", "instructions": INSTRUCTIONS["AMX"]},
        "head": {"processor": "new", "instructions": INSTRUCTIONS["AMX"]},
    }
    assert "(old): " in side_by_side.compare(THEN, file)
    both = side_by_side.compare(THEN | {"head": {"one": [1.0, 1.0, 1.0]}}, file)
    assert "(old), " in both
    assert "(new): " in both


def test_a_record_under_another_kind_than_its_machine_s_is_rejected(tmp_path, on):
    file = tmp_path / "figures.json"
    side_by_side.write(THEN, file)
    for key, message in (("AMX", "the machine is of the kind AVX-512"), ("VNNI", "no such kind of processor")):
        moved = tmp_path / f"{key}.json"
        moved.write_text(file.read_text().replace('"AVX-512"', f'"{key}"'))
        for call in (side_by_side.compare, side_by_side.write):
            with pytest.raises(UserError, match=message):
                call(THEN, moved)


def test_committed_figures_are_of_known_kinds():
    committed = side_by_side.read(side_by_side.FILE)
    assert committed
    assert side_by_side.text_of(committed) == side_by_side.FILE.read_text()


def test_alternatives_take_turns_and_are_remembered_by_title():
    order, clock = [], iter(range(100))
    alternatives = {name: lambda name=name: order.append(name) for name in "ab"}
    measured = side_by_side.seconds("turns", alternatives, rounds=2, clock=lambda: float(next(clock)))
    assert order == list("ababab")
    assert measured == {"a": [1.0, 1.0], "b": [1.0, 1.0]} == side_by_side.MEASURED.pop("turns")
