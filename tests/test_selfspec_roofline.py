"""Times of passes and what follows from them: sums, round numbers by hand, and distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.self_speculation import MODELS
from redraft.selfspec.roofline import (
    MARGIN,
    block_efficiency,
    block_seconds,
    boundary,
    draft_seconds,
    speedup,
    target_seconds,
    token_acceptance,
    verify_seconds,
)
from tests.selfspec import CALIBRATIONS, QWEN, ROUND

ALPHA, GAMMA = st.floats(0, 1), st.integers(1, 15)
BATCH, LENGTH = st.integers(1, 256), st.integers(1, 8192)
MODEL = st.sampled_from(list(CALIBRATIONS.values()))


@given(st.floats(0, 0.999), GAMMA)
def test_tokens_of_a_block_by_the_closed_form_and_by_the_sum(alpha, gamma):
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert block_efficiency(alpha, gamma) == pytest.approx(closed, rel=1e-10)
    assert block_efficiency(alpha, gamma) == pytest.approx(math.fsum(alpha**i for i in range(gamma + 1)), rel=1e-12)


@given(GAMMA)
def test_tokens_of_a_block_at_the_ends(gamma):
    assert (block_efficiency(0, gamma), block_efficiency(1, gamma)) == (1, gamma + 1)
    np.testing.assert_array_equal(block_efficiency(np.array([0.0, 1.0]), gamma), [1, gamma + 1])


@pytest.mark.parametrize(("alpha", "gamma"), [(-0.1, 3), (1.1, 3), (math.nan, 3), (0.5, 0), (np.array([0.5, 2]), 3)])
def test_acceptance_that_is_none_is_refused(alpha, gamma):
    with pytest.raises(ValueError, match="needs 0 <= alpha <= 1 and gamma >= 1"):
        block_efficiency(alpha, gamma)


@pytest.mark.parametrize(
    ("tau", "gamma", "alpha"), [(7.5, 7, 0.982), (5.6, 5, 0.973), (5.5, 5, 0.963), (5.4, 5, 0.958)]
)
def test_table_2_has_the_acceptance_of_the_closed_form(tau, gamma, alpha):
    """Its rows with one draft length; (τ − 1) / γ, by which the ladder moves, is 0.93, 0.92, 0.90 and 0.88 there."""
    low, high = (block_efficiency(alpha + error, gamma) for error in (-0.0005, 0.0005))
    assert low - 0.05 <= tau <= high + 0.05
    assert (tau - 1) / gamma < alpha - 0.04


def test_round_numbers_by_hand():
    """Two sequences of 3 positions: reading 10 + 0.6 and 6 + 0.6, computing 2 (8 + 3) / 4 a token, in s."""
    assert target_seconds(ROUND, 2, 3) == pytest.approx(10.6 + 2)
    assert draft_seconds(ROUND, 2, 3) == pytest.approx(6.6 + 4)
    assert verify_seconds(ROUND, 2, 3, 3) == pytest.approx(4 * 5.5 + 6)
    assert verify_seconds(ROUND, 2, 3, 0) == pytest.approx(10.6 + 6)
    assert block_seconds(ROUND, 2, 3, 3) == pytest.approx(3 * 10.6 + 28)
    assert speedup(ROUND, 2, 3, 3, 2.0) == pytest.approx(2 * 12.6 / 59.8)


def test_a_large_batch_takes_its_computing():
    assert target_seconds(ROUND, 100, 2) == pytest.approx(100 * 10 / 4 + 100)
    assert draft_seconds(ROUND, 100, 2) == pytest.approx(100 * 10 / 4 + 200)
    assert verify_seconds(ROUND, 100, 2, 1) == pytest.approx(2 * 100 * 10 / 4 + 300)


@given(MODEL, BATCH, LENGTH, GAMMA)
def test_all_passes_rise_with_batch_length_and_draft(model, batch, length, gamma):
    for seconds in (target_seconds, draft_seconds):
        assert seconds(model, batch, length) < seconds(model, batch + 1, length)
        assert seconds(model, batch, length) < seconds(model, batch, length + 1)
    target = target_seconds(model, batch, length)
    assert target < verify_seconds(model, batch, length, gamma) <= verify_seconds(model, batch, length, gamma + 1)
    assert draft_seconds(model, 1, length) < target_seconds(model, 1, length)


@given(MODEL, BATCH, LENGTH, GAMMA, ALPHA, ALPHA)
def test_speedup_rises_with_acceptance(model, batch, length, gamma, a, b):
    low, high = (speedup(model, batch, length, gamma, block_efficiency(alpha, gamma)) for alpha in sorted((a, b)))
    assert low <= high
    if abs(a - b) > 1e-6:
        assert low < high


@given(ALPHA, GAMMA)
def test_acceptance_is_solved_from_what_is_kept(alpha, gamma):
    assert token_acceptance(block_efficiency(alpha, gamma) - 1, gamma) == pytest.approx(alpha, abs=1e-11)


def test_acceptance_of_blocks_together_weighs_each_draft_length_by_its_blocks():
    gamma, blocks = np.array([1, 3, 9]), np.array([40.0, 5.0, 2.0])
    kept = blocks * [block_efficiency(0.8, length) - 1 for length in gamma]
    assert token_acceptance(kept.sum() * np.array([0.5, 0.3, 0.2]), gamma, blocks) == pytest.approx(0.8)
    alone = token_acceptance(kept[:, None], gamma[:, None], 40.0)
    assert alone.shape == (3,)
    assert alone[0] == pytest.approx(0.8)
    assert list(token_acceptance([[0.0], [3.0], [3.5], [math.nan], [1.0]], [[3], [3], [3], [3], [math.nan]])) == (
        pytest.approx([0, 1, 1, math.nan, math.nan], nan_ok=True)
    )


@given(MODEL, BATCH, LENGTH)
def test_a_draft_that_is_never_accepted_never_pays(model, batch, length):
    for gamma in (1, 7):
        assert speedup(model, batch, length, gamma, block_efficiency(0, gamma)) < 1


def test_arrays_give_what_numbers_give():
    batches, lengths, gammas = np.array([1, 8, 64])[:, None], np.array([256.0, 4096.0]), np.array([3, 7])
    table = verify_seconds(QWEN, batches, lengths, gammas)
    for i, batch in enumerate(batches[:, 0]):
        for j, (length, gamma) in enumerate(zip(lengths, gammas, strict=True)):
            assert table[i, j] == verify_seconds(QWEN, batch, length, gamma)


@given(MODEL, LENGTH, GAMMA, st.floats(0.5, 1), st.sampled_from([0.0, MARGIN, 0.3]))
def test_the_boundary_is_the_last_batch_that_pays(model, length, gamma, alpha, margin):
    tau = block_efficiency(alpha, gamma)
    pays = [speedup(model, batch, length, gamma, tau) >= 1 + margin for batch in range(1, 121)]
    expected = max((batch for batch, each in enumerate(pays, start=1) if each), default=0)
    assert boundary(model, length, gamma, tau, margin=margin, largest=120) == expected


def test_boundaries_of_many_lengths_have_their_shape():
    lengths = np.array([[256, 1024, 4096], [512, 2048, 8192]])
    found = boundary(QWEN, lengths, 7, 7.5)
    assert found.shape == lengths.shape
    assert found[1, 2] == boundary(QWEN, 8192, 7, 7.5)
    assert boundary(QWEN, 8192, 7, 1.0) == 0


def test_figure_4_s_boundary_lies_where_the_released_graphs_end():
    """It lies between 36 and 51 for the drafts that Table 2 accepts, beyond the 32 to which graphs are captured."""
    found = [boundary(QWEN, s, gamma, block_efficiency(0.982, gamma)) for s in (512, 4096) for gamma in (5, 7, 9, 11)]
    assert 32 < min(found) <= max(found) <= 51


def test_another_model_on_the_same_device_keeps_the_share_of_its_keys_and_values():
    moved = QWEN.of_model(MODELS["Qwen2.5-14B"])
    assert moved.kv_share == pytest.approx(QWEN.kv_share) == pytest.approx(26205 / 57344)
    assert moved.costs == MODELS["Qwen2.5-14B"].costs
    assert (moved.bandwidth, moved.draft_factor) == (QWEN.bandwidth, QWEN.draft_factor)
