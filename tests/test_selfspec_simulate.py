"""The simulator against passes one by one, distributions, its inputs, and Table 2."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.self_speculation import (
    CURVES,
    RESPONSES,
    TABLE_2,
    calibration,
    lengths_of_curve,
    mixture,
    table_2,
)
from redraft.errors import UserError
from redraft.lab.selfspec.simulate import (
    MODES,
    Acceptance,
    Quantiles,
    SimulatedEngine,
    Speculation,
    parse_quantiles,
    read_lengths,
    simulate_rollout,
    simulate_training,
)
from redraft.selfspec.calibration import read_calibration
from redraft.selfspec.controller import OFF, Ladder, Roofline, Threshold, Toggle
from redraft.selfspec.roofline import block_efficiency, block_seconds, boundary, target_seconds
from tests.selfspec import DATA, QWEN

DOCS = Path(__file__).parents[1] / "docs/selfspec.md"
ALWAYS = Speculation("always", 3, Acceptance((0.9,)))


def pass_by_pass(lengths, engine, how, tau):
    """Seconds, passes, blocks, tokens without speculation, active responses when it was switched on."""
    waiting, rows, seconds, passes, blocks, plain, at = list(lengths), [], 0.0, 0, 0, 0, None
    promised = Roofline(engine.calibration, how.gamma, tau, how.margin)
    rules = {"threshold": Threshold(how.threshold), "roofline": promised}
    state = OFF
    while waiting or rows:
        while waiting and len(rows) < engine.slots:
            rows.append([0.0, waiting.pop(0)])
        length = engine.prompt + np.mean([done for done, _ in rows])
        if how.mode in rules:
            state = Toggle(rules[how.mode], how.ramp).after(state, len(rows), length)
        if how.mode == "always" or state.on:
            at = len(rows) if at is None else at
            seconds += block_seconds(engine.calibration, len(rows), length, how.gamma)
            blocks += 1
            for row in rows:
                part = max(i for i, start in enumerate(how.acceptance.starts) if start <= row[0])
                row[0] += block_efficiency(how.acceptance.alpha[part], how.gamma)
        else:
            seconds += target_seconds(engine.calibration, len(rows), length)
            passes += 1
            plain += len(rows)
            for row in rows:
                row[0] += 1
        rows = [row for row in rows if row[0] < row[1] - 1e-9]
    return seconds, passes, blocks, plain, at


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=30),
    slots=st.integers(1, 20),
    mode=st.sampled_from(MODES),
    gamma=st.integers(1, 9),
    alpha=st.floats(0, 1),
    threshold=st.integers(1, 20),
    ramp=st.integers(0, 8),
    prompt=st.floats(0, 500),
)
def test_events_give_what_passes_one_by_one_give(lengths, slots, mode, gamma, alpha, threshold, ramp, prompt):
    engine = SimulatedEngine(QWEN, prompt, slots)
    how = Speculation(mode, gamma, Acceptance((alpha,)), threshold, ramp=ramp)
    found = simulate_rollout(np.array(lengths, float), engine, how).engines[0]
    expected = pass_by_pass(lengths, engine, how, block_efficiency(alpha, gamma))
    assert found.seconds == pytest.approx(expected[0], rel=1e-9)
    assert (found.passes, found.blocks, found.plain_tokens, found.turned_on_at) == expected[1:]
    assert found.tokens == sum(lengths)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_acceptance_by_position_gives_what_blocks_one_by_one_give(lengths, gamma, early, late):
    acceptance = Acceptance((early, late), (0.0, 100.0))
    engine, how = SimulatedEngine(QWEN, 50.0), Speculation("always", gamma, acceptance)
    found = simulate_rollout(np.array(lengths, float), engine, how)
    expected = pass_by_pass(lengths, engine, how, None)
    assert found.engines[0].blocks == expected[2]
    assert found.seconds == pytest.approx(expected[0], rel=1e-3)


def test_one_response_without_speculation_is_a_sum_of_passes():
    found = simulate_rollout(np.array([100.0]), SimulatedEngine(QWEN, 30), Speculation("off", 3, Acceptance((0.9,))))
    assert found.seconds == pytest.approx(sum(target_seconds(QWEN, 1, 30 + i) for i in range(100)))
    assert (found.tau, found.speculated, found.slowest.turned_on_at) == (None, 0, None)


def test_one_response_with_speculation_is_a_sum_of_blocks():
    tau = block_efficiency(0.9, 3)
    found = simulate_rollout(np.array([100.0]), SimulatedEngine(QWEN, 30), ALWAYS)
    blocks = int(np.ceil(100 / tau))
    assert found.slowest.blocks == blocks
    assert found.seconds == pytest.approx(sum(block_seconds(QWEN, 1, 30 + i * tau, 3) for i in range(blocks)))
    assert found.tau == pytest.approx(tau)
    assert (found.speculated, found.slowest.turned_on_at, found.slowest.plain_seconds) == (1, 1, 0)


def test_a_rollout_ends_with_its_slowest_engine():
    lengths = np.array([10.0, 500.0, 20.0, 600.0, 30.0, 700.0])
    both = simulate_rollout(lengths, SimulatedEngine(QWEN, count=2), ALWAYS)
    alone = [simulate_rollout(lengths[i::2], SimulatedEngine(QWEN), ALWAYS).seconds for i in (0, 1)]
    assert [engine.seconds for engine in both.engines] == alone
    assert both.seconds == both.slowest.seconds == max(alone)
    assert len(simulate_rollout(lengths[:2], SimulatedEngine(QWEN, count=8), ALWAYS).engines) == 2


def test_shares_of_speculation_are_of_all_engines():
    lengths = np.linspace(50, 1000, 100).round()
    how = Speculation("threshold", 3, Acceptance((0.9,)), threshold=20)
    found = simulate_rollout(lengths, SimulatedEngine(QWEN, count=2), how)
    plain = sum(engine.plain_tokens for engine in found.engines)
    assert found.speculated == pytest.approx(1 - plain / lengths.sum())
    assert 0 < found.speculated < 1


def test_the_toggle_is_on_from_the_boundary_of_the_roofline():
    lengths = np.linspace(100, 4000, 128).round()
    found = simulate_rollout(
        lengths, SimulatedEngine(QWEN, 200), Speculation("roofline", 7, Acceptance((0.98,)))
    ).slowest
    tau = block_efficiency(0.98, 7)
    assert found.turned_on_at == boundary(QWEN, 200 + found.passes, 7, tau)
    for mode in ("off", "always"):
        other = simulate_rollout(lengths, SimulatedEngine(QWEN, 200), Speculation(mode, 7, Acceptance((0.98,))))
        assert found.seconds < other.seconds


def test_mean_tokens_of_a_block_are_tokens_over_blocks():
    acceptance = Acceptance((0.9, 0.5), (0.0, 100.0))
    early, late = block_efficiency(0.9, 4), block_efficiency(0.5, 4)
    lengths = np.array([50.0, 100.0, 300.0])
    assert acceptance.mean_tau(lengths, 4) == pytest.approx(450 / (250 / early + 200 / late))
    np.testing.assert_allclose(acceptance.tau(np.array([0, 99, 100, 5000]), 4), [early, early, late, late])
    np.testing.assert_array_equal(acceptance.end(np.array([0, 99, 100])), [100, 100, np.inf])


@given(st.lists(st.integers(1, 9999), min_size=1, max_size=20), st.integers(1, 15), st.sampled_from([0.0, 1.0]))
def test_mean_tokens_of_a_block_stay_in_their_range(lengths, gamma, alpha):
    """Also by rounding, as a toggle and a ladder refuse what is outside."""
    expected = 1 + alpha * gamma
    found = Acceptance((alpha, alpha), (0.0, 50.0)).mean_tau(np.array(lengths, float), gamma)
    assert 1 <= found <= gamma + 1
    assert found == pytest.approx(expected)


def test_a_ladder_climbs_with_acceptance():
    lengths = np.linspace(100, 3000, 128).round()
    engine, alphas = SimulatedEngine(QWEN, 200), [0.96, 0.98, 0.99, 0.995, 0.995, 0.995, 0.995, 0.995]
    how = Speculation("roofline", 99, Acceptance((0.1,)), ramp=16)
    found = simulate_training(lengths, engine, how, alphas, Ladder(lengths=(3, 5, 9)))
    assert [gamma for gamma, _ in found] == [3, 3, 3, 5, 5, 9, 9, 9]
    for alpha, (gamma, time) in zip(alphas, found, strict=True):
        same = simulate_rollout(lengths, engine, replace(how, gamma=gamma, acceptance=Acceptance((alpha,))))
        assert time == same
        assert time.tau == pytest.approx(block_efficiency(alpha, gamma))
        assert time.seconds < simulate_rollout(lengths, engine, replace(how, mode="off", gamma=1)).seconds


def test_a_ladder_stays_where_nothing_is_speculated():
    found = simulate_training(
        np.array([50.0]), SimulatedEngine(QWEN), replace(ALWAYS, mode="off"), [0.99] * 5, Ladder()
    )
    assert [gamma for gamma, _ in found] == [5] * 5


@pytest.mark.parametrize(("lengths", "change"), [([], {}), ([0.5], {}), ([10.0], {"slots": 0}), ([10.0], {"count": 0})])
def test_a_rollout_of_nothing_raises(lengths, change):
    with pytest.raises(ValueError, match="needs responses"):
        simulate_rollout(np.array(lengths), replace(SimulatedEngine(QWEN), **change), ALWAYS)


@pytest.mark.parametrize(
    ("alpha", "starts"), [((), ()), ((0.9,), (1.0,)), ((0.9, 0.8), (0.0,)), ((0.9, 0.8), (0.0, 0.0)), ((1.1,), (0.0,))]
)
def test_acceptance_that_is_none_raises(alpha, starts):
    with pytest.raises(ValueError, match="rising from 0"):
        Acceptance(alpha, starts)


# Lengths


def test_quantiles_are_met():
    lengths = parse_quantiles("0:100,50:600,99:2500,100:8192").lengths(1001)
    assert [lengths[i] for i in (0, 500, 990, 1000)] == [100, 600, 2500, 8192]
    assert np.all(np.diff(lengths) >= 0)
    assert lengths[250] == round((100 * 600) ** 0.5)
    assert list(Quantiles((0, 1), (5, 5)).lengths(3)) == [5, 5, 5]
    with pytest.raises(ValueError, match="2 lengths"):
        Quantiles((0, 1), (5, 9)).lengths(1)


@pytest.mark.parametrize(
    "text",
    [
        "0:100",
        "0:100,50:600",
        "10:100,100:600",
        "0:100,50:600,50:700,100:900",
        "0:100,50:90,100:900",
        "0:0,100:9",
        "0:a,100:9",
        "0:1:2,100:9",
        "0,100:9",
        "",
        "0:nan,100:9",
        "0:1,100:inf",
    ],
)
def test_text_that_is_no_distribution_is_an_error(text):
    with pytest.raises(UserError, match="invalid distribution of lengths"):
        parse_quantiles(text)


def test_lengths_from_a_file(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("12\n7\n\n300\n")
    assert list(read_lengths(file)) == [12, 7, 300]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "file of lengths cannot be read"),
        ("", "no lengths"),
        ("5\n1.5\n", "line 2"),
        ("0\n", "line 1"),
        ("-3", "line 1"),
        ("5\n1048577\n", "line 2"),
        ("9" * 5000, "line 1"),
    ],
)
def test_a_file_that_is_no_lengths_is_an_error(content, message, tmp_path):
    file = tmp_path / "lengths.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        read_lengths(file)


# Table 2


@pytest.mark.parametrize("name", CURVES)
def test_assumed_lengths_give_the_printed_completion_curve(name):
    """Up to the limit of 8192 tokens, and to what changes as each engine has whole responses."""
    lengths = lengths_of_curve(name)
    plain = Speculation("off", 1, Acceptance((0.0,)))
    for share, printed in CURVES[name][:-1]:
        finished = lengths.tokens[lengths.shares.index(share)]
        parts = np.minimum(lengths.lengths(RESPONSES)[::8], finished)
        seconds = simulate_rollout(parts, SimulatedEngine(calibration(name), 200), plain).seconds
        assert seconds == pytest.approx(printed, rel=0.06)
    assert lengths.tokens[-1] == 8192


def test_a_mean_draft_length_is_a_mixture_of_two_rungs():
    assert mixture(8.2) == pytest.approx({7: 0.4, 9: 0.6})
    assert mixture(6.6) == pytest.approx({5: 0.2, 7: 0.8})
    assert mixture(5.0) == {5: 1.0}


@pytest.mark.skipif(not DATA.exists(), reason="the published calibration is not beside the repository")
def test_the_page_s_second_block_is_of_the_authors_calibration():
    lengths = parse_quantiles("0:100,50:923,90:1690,99:2495,100:8192").lengths(RESPONSES)
    engine = SimulatedEngine(read_calibration(DATA / "a100_tp1_qwen257b.json"), 200, count=8)
    found = simulate_rollout(lengths, engine, Speculation("roofline", 7, Acceptance((0.982,))))
    off = simulate_rollout(lengths, engine, Speculation("off", 7, Acceptance((0.982,)))).seconds
    line = (
        f"roofline      {found.seconds:.1f}       {found.seconds / off - 1:.1%}   {found.slowest.turned_on_at} active"
    )
    assert line == "roofline      57.9       -31.2%   41 active"
    assert line in DOCS.read_text(encoding="utf-8")


def test_table_2_s_simulation_is_what_the_docs_say():
    text = DOCS.read_text(encoding="utf-8")
    rows = table_2()
    for row in rows:
        assert "| " + " | ".join(row) + " |" in text, row
    assert {row[0].partition(",")[0] for row in rows} == set(TABLE_2)
    for row in rows:
        always, efficient = float(row[4]), float(row[7])
        assert efficient < always < 0, "the toggle and the longer drafts gain more in all"
