"""Gumbel noise by a hash: uniform, independent over keys, positions and tokens, and the same in NumPy and PyTorch."""

import numpy as np
import pytest
import torch
from scipy import stats

from redraft.engines.torch.sampling import gumbel as gumbel_of_torch
from redraft.engines.torch.sampling import keys_of
from redraft.rollout.streams import BITS, _mixed, gumbel, hashed, signed

UNLIKELY = 1e-4
KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 60)
SMALL_KEYS = np.arange(60)


def hashes(keys, positions=40, tokens=50):
    """Hashes, (keys, positions, tokens)."""
    return hashed(keys[:, None, None], np.arange(positions)[:, None], np.arange(tokens))


def uniforms(*args):
    return (hashes(*args) + 0.5) * 2.0**-BITS


def test_the_mixer_is_splitmix64():
    state, expected = np.zeros(1, dtype=np.int64), [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for number in expected:
        assert int(_mixed(state)[0]) == signed(number)
        state = state + signed(0x9E3779B97F4A7C15)


@pytest.mark.parametrize("keys", [KEYS, SMALL_KEYS], ids=["random keys", "keys in order"])
def test_numbers_are_uniform_in_their_highest_and_lowest_bits(keys):
    numbers = hashes(keys).ravel()
    assert numbers.min() >= 0
    assert numbers.max() < 2**BITS
    assert stats.kstest(uniforms(keys).ravel(), "uniform").pvalue > UNLIKELY
    for bits in (numbers >> (BITS - 8), numbers & 255):
        assert stats.chisquare(np.bincount(bits, minlength=256)).pvalue > UNLIKELY


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["keys", "positions", "tokens"])
@pytest.mark.parametrize("distance", [1, 2, 8])
@pytest.mark.parametrize("keys", [KEYS, SMALL_KEYS], ids=["random keys", "keys in order"])
def test_neighbours_are_independent(axis, distance, keys):
    u = np.moveaxis(uniforms(keys), axis, 0)
    pairs = 16 * (u[:-distance] * 16).astype(int) + (u[distance:] * 16).astype(int)
    assert stats.chisquare(np.bincount(pairs.ravel(), minlength=256)).pvalue > UNLIKELY
    correlation = np.corrcoef(u[:-distance].ravel(), u[distance:].ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(pairs.size)


@pytest.mark.parametrize("swap", ["key and position", "position and token"])
def test_what_is_swapped_gives_other_numbers(swap):
    a, b = np.arange(200)[:, None], np.arange(200)
    one = hashed(a, b, b[:1]) if swap == "key and position" else hashed(b[:1], a, b)
    different = one != one.T
    assert different.sum() == different.size - 200, "equal on the diagonal only"
    upper = np.triu_indices(200, 1)
    assert abs(np.corrcoef(one[upper], one.T[upper])[0, 1]) < 4 / np.sqrt(len(upper[0]))


def test_numbers_of_a_key_do_not_repeat():
    numbers = hashed(KEYS[:1], np.arange(300)[:, None], np.arange(400))
    assert len(np.unique(numbers)) == numbers.size
    assert len(np.unique(hashed(KEYS[:, None], np.array([7]), np.arange(400)))) == 60 * 400


def test_one_bit_of_a_key_position_or_token_changes_half_of_the_bits():
    numbers = np.arange(100) + 123456789
    for place in range(3):
        for bit in (0, 1, 5, 17):
            inputs = [numbers, numbers, numbers]
            inputs[place] = numbers ^ (1 << bit)
            changed = hashed(*inputs) ^ hashed(numbers, numbers, numbers)
            assert 0.46 < np.mean([int(bits).bit_count() for bits in changed]) / BITS < 0.54


def test_noise_is_finite_at_both_ends(monkeypatch):
    """Uniforms of 0 and 1 would give infinite noise."""
    ends = np.array([0, 2**BITS - 1])
    monkeypatch.setattr("redraft.rollout.streams.hashed", lambda *_: ends)
    monkeypatch.setattr("redraft.engines.torch.sampling.hashed", lambda *_: torch.tensor(ends))
    low, high = gumbel(0, np.zeros(1), np.zeros(1))
    assert -4 < low < -3
    assert 36 < high < 37
    np.testing.assert_allclose(
        gumbel_of_torch(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), 2), [low, high], rtol=1e-13
    )


def test_noise_is_gumbels():
    noise = gumbel(5, np.arange(300)[:, None], np.arange(100))
    assert noise.dtype == np.float64
    assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > UNLIKELY


def test_keys_have_64_bits_signed_or_not():
    positions, tokens = np.arange(5)[:, None], np.arange(6)
    assert (gumbel(2**64 - 1, positions, tokens) == gumbel(-1, positions, tokens)).all()
    assert len({gumbel(key, 0, 0)[0] for key in (0, 1, 2**63, 2**63 - 1, 2**64 - 1)}) == 5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numpy_and_pytorch_make_the_same_numbers(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    keys = np.array([*KEYS, 0, -1, 2**63 - 1, -(2**63)])
    inputs = (keys[:, None, None], np.arange(9)[:, None], np.arange(70))
    theirs = hashed(*(torch.tensor(values, device=device) for values in inputs))
    assert (hashed(*inputs) == theirs.cpu().numpy()).all()
    positions = torch.arange(len(keys), device=device)
    noise = gumbel_of_torch(keys_of([int(key) % 2**64 for key in keys], device), positions, 70).cpu().numpy()
    expected = np.stack([gumbel(int(key), place, np.arange(70)) for place, key in enumerate(keys)])
    np.testing.assert_allclose(noise, expected, rtol=1e-13, atol=1e-15)


def test_the_largest_sum_of_log_probability_and_noise_has_the_distribution():
    distribution, draws = np.array([0.02, 0.5, 0.0, 0.18, 0.3]), 20_000
    with np.errstate(divide="ignore"):
        tokens = (np.log(distribution) + gumbel(11, np.arange(draws)[:, None], np.arange(5))).argmax(1)
    counts = np.bincount(tokens, minlength=5)
    assert counts[2] == 0
    assert stats.chisquare(counts[distribution > 0], draws * distribution[distribution > 0]).pvalue > UNLIKELY
