"""The toggle within a rollout and the ladder of draft lengths between rollouts, as state machines."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.engines.torch.speculation import Speculated
from redraft.selfspec.controller import OFF, RAMP, START, Ladder, Position, Roofline, Threshold, Toggle, ToggleState
from redraft.selfspec.roofline import MARGIN, block_efficiency, speedup
from redraft.train.local.decoding import SpeculativeDecoding
from tests.selfspec import CALIBRATIONS, QWEN

TRACE = st.lists(st.tuples(st.integers(1, 200), st.floats(1, 8192)), min_size=1, max_size=40)
"""Active sequences and their mean length before each pass, in any order."""
RULE = st.one_of(
    st.builds(Threshold, st.integers(1, 200)),
    st.builds(Roofline, st.sampled_from(list(CALIBRATIONS.values())), st.integers(5, 11), st.none() | st.floats(1, 6)),
)


def states(toggle, trace):
    found, state = [], OFF
    for active, length in trace:
        state = toggle.after(state, active, length)
        found.append(state)
    return found


# The toggle


@given(RULE, TRACE, st.integers(0, 64))
def test_it_is_never_on_before_the_ramp_and_never_off_while_the_batch_shrinks(rule, trace, ramp):
    largest, was_on, before = 0, False, 0
    for (active, length), state in zip(trace, states(Toggle(rule, ramp), trace), strict=True):
        largest = max(largest, active)
        assert state.ramped == (largest > ramp)
        assert state.ramped or not state.on
        stays = was_on and active <= before
        assert state.on or not stays
        if not stays and state.ramped:
            assert state.on == bool(rule.pays(active, length))
        was_on, before = state.on, active


@given(RULE, TRACE, TRACE)
def test_a_new_rollout_knows_nothing_of_the_last(rule, before, trace):
    toggle = Toggle(rule)
    states(toggle, before)
    assert states(toggle, trace) == states(Toggle(rule), trace)


@given(RULE, st.integers(1, 64), st.lists(st.floats(1, 8192), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_many_passes_at_once_are_those_one_by_one(rule, active, lengths, ramped, on):
    toggle, begin = Toggle(rule), ToggleState(ramped or on, on)
    state, plain = begin, 0
    for length in lengths:
        state = toggle.after(state, active, length)
        plain += not state.on
    assert toggle.over(begin, active, np.array(lengths)) == (plain, state)


@pytest.mark.parametrize(("largest", "expected"), [(RAMP, False), (RAMP + 1, True)])
def test_the_ramp_must_be_exceeded(largest, expected):
    """The guard of the released scripts is 32: a batch of 32 could still be filling."""
    toggle = Toggle(Threshold(8))
    filled = toggle.after(OFF, largest, 100.0)
    assert [toggle.after(filled, active, 100.0).on for active in (9, 8, 7)] == [False, expected, expected]
    assert RAMP == 32


def test_a_rollout_whose_batch_fills_and_empties():
    """A trace as an engine's: 4, 60 and then 128 requests arrive, and 128 to 1 remain."""
    toggle = Toggle(Roofline(QWEN, 7, 7.5))
    trace = [(4, 100.0), (60, 120.0), *((active, 200.0 + 10 * (128 - active)) for active in range(128, 0, -1))]
    found = states(toggle, trace)
    first = next(i for i, state in enumerate(found) if state.on)
    active, length = trace[first]
    assert (found[0].ramped, found[0].on) == (False, False)
    assert speedup(QWEN, active, length, 7, 7.5) >= 1 + MARGIN > speedup(QWEN, active + 1, length - 10, 7, 7.5)
    assert 32 < active < 60


def test_a_batch_that_is_filled_again_is_decided_again():
    """AR3PO's next stage begins after the last response of the one before."""
    trace = [(active, 100.0) for active in (32, 64, 33, 32, 10, 1, 60, 60, 40, 32, 33)]
    on = [state.on for state in states(Toggle(Threshold(32)), trace)]
    assert on == [False, False, False, True, True, True, False, False, False, True, False]


def test_the_margin_keeps_it_off_where_little_is_promised():
    active = next(b for b in range(1, 200) if speedup(QWEN, b, 1000, 7, 7.5) < 1 + MARGIN)
    assert 1 < speedup(QWEN, active, 1000, 7, 7.5) < 1 + MARGIN == 1.05
    assert not Roofline(QWEN, 7, 7.5).pays(active, 1000)
    assert Roofline(QWEN, 7, 7.5, margin=0.0).pays(active, 1000)


def test_without_a_measurement_a_block_counts_as_its_draft():
    lengths = np.linspace(1, 8192, 50)
    for active in (20, 40, 45, 60):
        np.testing.assert_array_equal(
            Roofline(QWEN, 7, None).pays(active, lengths), Roofline(QWEN, 7, 7.0).pays(active, lengths)
        )


@pytest.mark.parametrize(("gamma", "accepted"), [(0, None), (7, 0.9), (7, 8.1), (7, math.nan)])
def test_blocks_that_cannot_be_are_refused(gamma, accepted):
    with pytest.raises(ValueError, match="cannot have"):
        Roofline(QWEN, gamma, accepted)


# The ladder


@pytest.mark.parametrize(
    ("blocks", "proposed", "kept", "tau"), [(4, 16, 8, 3), (4, 12, 12, 5), (4, 12, 6, 3), (0, 0, 0, None)]
)
def test_blocks_of_fewer_proposals_count_by_the_share_that_is_kept(blocks, proposed, kept, tau):
    """The ladder's thresholds are shares of proposals, and a matching drafter proposes fewer where little matches."""
    taus = []
    control = SimpleNamespace(gamma=4, adapt=taus.append)
    done = Speculated(blocks=blocks, proposed=proposed, kept=kept)
    decoding = SimpleNamespace(control=control, engine=SimpleNamespace(speculated=done))
    assert SpeculativeDecoding.adapt(decoding, [], []) == {}
    assert taus == [tau]


LADDER = Ladder()
SHARES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=40)
"""(τ − 1) / γ of each rollout; none without speculation."""


def climbed(ladder, shares):
    """Positions before each rollout and after the last."""
    found = [START]
    for share in shares:
        tau = None if share is None else 1 + share * ladder.gamma(found[-1])
        found.append(ladder.after(found[-1], tau))
    return found


@settings(max_examples=300)
@given(SHARES, st.integers(1, 4))
def test_it_moves_one_rung_and_only_after_patience(shares, patience):
    ladder = replace(LADDER, patience=patience)
    positions = climbed(ladder, shares)
    since = []
    for before, share, after in zip(positions, shares, positions[1:], strict=False):
        assert abs(after.rung - before.rung) <= 1
        if share is None:
            assert after == before
            continue
        since.append((1 + share * ladder.gamma(before), ladder.gamma(before)))
        recent = since[-patience:]
        high = len(recent) == patience and all(tau >= 1 + gamma * 0.94 for tau, gamma in recent)
        low = len(recent) == patience and all(tau <= 1 + gamma * 0.85 for tau, gamma in recent)
        assert after.rung == min(max(before.rung + high - low, 0), 3)
        if high or low:
            since.clear()


def test_it_climbs_as_figure_16_of_qwen_7b():
    positions = climbed(LADDER, [0.9, 0.95, 0.93, 0.95, 0.96, 0.95, 0.95, 0.97, 0.97, 0.99, 0.99])
    assert [LADDER.gamma(position) for position in positions] == [5, 5, 5, 5, 5, 7, 7, 9, 9, 11, 11, 11]


def test_llama_s_acceptance_never_moves_it():
    """τ = 5.4 at γ = 5 (Table 2): below 5.7, at which it would rise, and above 5.25, at which it would fall."""
    position = START
    for _ in range(10):
        position = LADDER.after(position, 5.4)
    assert position == START


@pytest.mark.parametrize(("tau", "expected"), [(5.7, (1, 0)), (5.69, (0, 0)), (5.25, (0, 1)), (5.26, (0, 0))])
def test_thresholds_belong_to_their_sides(tau, expected):
    after = LADDER.after(START, tau)
    assert (after.high, after.low) == expected


def test_a_rollout_in_between_restarts_the_patience():
    position = Position(rung=1)
    for tau in (7.9, 7.2, 7.9):
        position = LADDER.after(position, tau)
    assert position == Position(rung=1, high=1)
    assert LADDER.after(position, 7.9) == Position(rung=2)
    assert LADDER.after(Position(rung=1, low=1), 3.0) == Position(rung=0)
    assert LADDER.after(Position(rung=1, high=1), None) == Position(rung=1, high=1)


def test_the_ladder_is_the_paper_s():
    assert (LADDER.lengths, LADDER.raise_at, LADDER.lower_at, LADDER.patience) == ((5, 7, 9, 11), 0.94, 0.85, 2)
    assert block_efficiency(0.982, 5) > 1 + 5 * 0.94


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": ()},
        {"lengths": (5, 5)},
        {"lengths": (7, 5)},
        {"lengths": (0, 5)},
        {"patience": 0},
        {"lower_at": 0.94},
        {"raise_at": 1.1},
        {"lower_at": -0.1},
    ],
    ids=str,
)
def test_a_ladder_that_is_none_is_refused(change):
    with pytest.raises(ValueError, match="needs rising lengths"):
        Ladder(**change)


@pytest.mark.parametrize("tau", [0.9, 6.1, math.nan])
def test_a_block_longer_than_its_draft_is_refused(tau):
    with pytest.raises(ValueError, match="a block of gamma = 5 cannot have"):
        LADDER.after(START, tau)
