"""SPEED-RL's theorems against sums over all rewards, and over all groups of responses of bandits."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.lab.theory import (
    leave_one_out_advantages,
    phi,
    phi_derivative,
    simple_snr_bound,
    snr_bound,
    weight_by_enumeration,
)

SIZES = [(2, 1), (2, 2), (3, 1), (2, 5), (4, 4), (4, 20), (6, 18), (8, 16)]
RATES = [0.003, 0.1, 0.25, 0.5, 0.8, 0.99]
RATE = st.floats(0.001, 0.999)
SCREENED, CONTINUED = st.integers(2, 10), st.integers(1, 24)


class Bandit:
    """A softmax policy over arms, each right or wrong; its groups are all tuples of N arms."""

    def __init__(self, preferences, right, size):
        self.right, self.size = np.array(right, dtype=float), size
        self.policy = np.exp(preferences) / np.exp(preferences).sum()
        self.p = float(self.policy @ self.right)
        self.gradient_of_p = self.policy * (self.right - self.p)
        self.groups = np.array(list(product(range(len(right)), repeat=size)))
        self.probabilities = self.policy[self.groups].prod(axis=1)
        scores = np.eye(len(right)) - self.policy
        self.gradients = np.array(
            [leave_one_out_advantages(self.right[group]) @ scores[group] / size for group in self.groups]
        )

    def snr(self):
        """Equation 9, exact."""
        mean = self.probabilities @ self.gradients
        noise = self.probabilities @ ((self.gradients - mean) ** 2).sum(axis=1)
        return mean @ mean / noise

    def after_screening(self, n_init, low=0.0, high=1.0):
        """SPEED-RLOO's expected gradient."""
        rates = self.right[self.groups[:, :n_init]].mean(axis=1)
        return (self.probabilities * (low < rates) * (rates < high)) @ self.gradients


BANDITS = {
    "three arms, one right": Bandit([0.3, -0.5, 1.1], [1, 0, 0], 4),
    "three arms, two right": Bandit([-0.7, 0.4, 0.9], [1, 0, 1], 4),
    "three arms, rarely right": Bandit([-3.0, 0.2, 0.6], [1, 0, 0], 4),
    "two arms": Bandit([0.4, -0.9], [1, 0], 5),
    "four arms": Bandit([0.1, -1.2, 0.8, 0.5], [1, 1, 0, 0], 4),
}
every_bandit = pytest.mark.parametrize("bandit", BANDITS.values(), ids=BANDITS)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=24))
def test_advantages_sum_to_zero_and_are_scaled_distances_from_the_mean(rewards):
    rewards = np.array(rewards)
    size = len(rewards)
    others = [np.delete(rewards, i).mean() for i in range(size)]
    advantages = leave_one_out_advantages(rewards)
    np.testing.assert_allclose(advantages, rewards - others, atol=1e-12)
    np.testing.assert_allclose(advantages, size / (size - 1) * (rewards - rewards.mean()), atol=1e-12)
    assert advantages.sum() == pytest.approx(0, abs=1e-11)


@every_bandit
def test_rloo_is_unbiased(bandit):
    np.testing.assert_allclose(bandit.probabilities @ bandit.gradients, bandit.gradient_of_p, atol=1e-14)


@every_bandit
def test_a_bandits_gradient_after_screening_is_weighted_by_the_derivative_of_phi(bandit):
    for n_init in range(2, bandit.size):
        weight = phi_derivative(bandit.p, n_init, bandit.size - n_init)
        np.testing.assert_allclose(bandit.after_screening(n_init), weight * bandit.gradient_of_p, atol=1e-14)


@every_bandit
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 0.6), (0.4, 1.0), (-1.0, 2.0), (0.4, 0.6), (0.0, 2.0)])
def test_a_bandits_gradient_after_any_thresholds_is_weighted_by_the_enumeration(bandit, low, high):
    for n_init in range(1, bandit.size):
        weight = weight_by_enumeration(bandit.p, n_init, bandit.size - n_init, low, high)
        np.testing.assert_allclose(bandit.after_screening(n_init, low, high), weight * bandit.gradient_of_p, atol=1e-14)


@pytest.mark.parametrize(("n_init", "n_cont"), SIZES)
@pytest.mark.parametrize("p", RATES)
def test_closed_form_numerical_derivative_and_enumeration_agree(p, n_init, n_cont):
    h = 1e-6
    slope = (phi(p + h, n_init, n_cont) - phi(p - h, n_init, n_cont)) / (2 * h)
    closed = phi_derivative(p, n_init, n_cont)
    assert closed == pytest.approx(slope, abs=1e-8)
    assert closed == pytest.approx(weight_by_enumeration(p, n_init, n_cont), abs=1e-13)


@settings(deadline=None, max_examples=50)
@given(p=RATE, n_init=SCREENED, n_cont=CONTINUED)
def test_closed_form_and_enumeration_agree_anywhere(p, n_init, n_cont):
    assert phi_derivative(p, n_init, n_cont) == pytest.approx(weight_by_enumeration(p, n_init, n_cont), abs=1e-12)


@given(p=RATE, q=RATE, n_init=SCREENED, n_cont=CONTINUED)
def test_phi_rises_and_a_prompt_in_the_middle_weighs_most(p, q, n_init, n_cont):
    (low, weight_low), (high, weight_high) = (
        (x, phi_derivative(x, n_init, n_cont)) for x in sorted((p, q), key=lambda x: abs(x - 0.5), reverse=True)
    )
    assert n_init / (n_init + n_cont) - 1e-12 <= weight_low <= weight_high + 1e-12 <= 1 + 1e-12
    assert weight_low == pytest.approx(phi_derivative(1 - low, n_init, n_cont))
    if high - low > 1e-9:
        assert phi(low, n_init, n_cont) < phi(high, n_init, n_cont)


@given(n_init=SCREENED, n_cont=CONTINUED)
def test_limits_of_phi(n_init, n_cont):
    size = n_init + n_cont
    assert phi(0, n_init, n_cont) == pytest.approx(0, abs=1e-14)
    assert phi(1, n_init, n_cont) == pytest.approx(1 - 2 * n_cont / ((size - 1) * (n_init + 1)))
    for end, inside in ((0, 1e-12), (1, 1 - 1e-12)):
        assert phi_derivative(end, n_init, n_cont) == pytest.approx(n_init / size)
        assert phi_derivative(inside, n_init, n_cont) == pytest.approx(n_init / size)


@given(p=RATE, n_init=st.integers(1, 6), n_cont=st.integers(1, 8), low=st.floats(-0.1, 1), high=st.floats(0, 1.1))
def test_no_thresholds_turn_a_gradient_round(p, n_init, n_cont, low, high):
    assert -1e-12 <= weight_by_enumeration(p, n_init, n_cont, low, high) <= 1 + 1e-12


@given(p=RATE, n_cont=CONTINUED)
def test_one_response_screens_everything_out(p, n_cont):
    assert weight_by_enumeration(p, 1, n_cont) == 0
    for function in (phi, phi_derivative):
        with pytest.raises(ValueError, match="N_init must be at least 2, got 1"):
            function(p, 1, n_cont)


@pytest.mark.parametrize(("p", "n_init", "n_cont"), [(-0.1, 4, 4), (1.1, 4, 4), (math.nan, 4, 4), (0.5, 4, 0)])
def test_what_theorem_4_1_does_not_cover_raises(p, n_init, n_cont):
    for function in (phi, phi_derivative, weight_by_enumeration):
        with pytest.raises(ValueError, match=r"needs 0 <=? p <=? 1"):
            function(p, n_init, n_cont)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_scores_have_no_mean_given_a_reward_that_cannot_happen(p):
    with pytest.raises(ValueError, match="0 < p < 1"):
        weight_by_enumeration(p, 4, 4)


@every_bandit
def test_no_bandit_is_above_the_bound(bandit):
    """Two arms are on it: their rewards say everything."""
    bound = snr_bound(bandit.p, bandit.size)
    if len(bandit.policy) == 2:
        assert bandit.snr() == pytest.approx(bound)
    else:
        assert 0 < bandit.snr() < 0.999 * bound


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-4, 4), min_size=3, max_size=3), st.integers(2, 4))
def test_no_other_bandit_is_either(preferences, size):
    bandit = Bandit(preferences, [1, 0, 0], size)
    assert bandit.snr() <= snr_bound(bandit.p, size) * (1 + 1e-9)


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("log_odds", [-6.0, -1.5, 0.0, 0.7])
def test_two_arms_reach_the_bound(log_odds, size):
    bandit = Bandit([log_odds, 0.0], [1, 0], size)
    assert bandit.snr() == pytest.approx(snr_bound(bandit.p, size))


@given(st.integers(2, 1000))
def test_the_bound_at_its_ends_and_in_the_middle(size):
    assert snr_bound(0, size) == snr_bound(1, size) == 0
    assert snr_bound(1e-9, size) == pytest.approx(size * 1e-9, rel=1e-4)
    assert snr_bound(0.5, size) == pytest.approx(size * (size - 1) / 2)


@given(st.integers(3, 10**6), st.floats(0, 0.2499999))
def test_the_simple_bound_is_above_the_other_in_its_range(size, p):
    for rate in (p, 1 - p):
        assert snr_bound(rate, size) <= simple_snr_bound(rate, size) == pytest.approx(4 * size * rate * (1 - rate))


@given(st.integers(4, 10**4), st.floats(1e-4, 0.9999))
def test_the_simple_bound_fails_in_the_middle(size, p):
    """It holds where p (1 - p) <= 3 (N - 1) / (8 (2N - 3)), which falls to that of p = 1/4."""
    turn = 3 * (size - 1) / (8 * (2 * size - 3))
    if abs(p * (1 - p) - turn) > 1e-6:
        assert (snr_bound(p, size) <= 4 * size * p * (1 - p)) == (p * (1 - p) < turn)
    assert 1 / 4 > turn > 3 / 16


def test_with_three_responses_the_simple_bound_holds_everywhere():
    for p in np.linspace(0.001, 0.999, 999):
        assert snr_bound(p, 3) <= 4 * 3 * p * (1 - p) * (1 + 1e-12)


@pytest.mark.parametrize(("p", "size"), [(0.25, 8), (0.75, 8), (0.5, 3), (0.1, 2), (-0.1, 8), (1.1, 8), (math.nan, 8)])
def test_the_simple_bound_raises_outside_its_range(p, size):
    with pytest.raises(ValueError, match="N >= 3 and 0 <= p < 1/4 or 3/4 < p <= 1"):
        simple_snr_bound(p, size)


@pytest.mark.parametrize(("p", "size"), [(-0.1, 8), (1.1, 8), (math.nan, 8), (0.5, 1)])
def test_the_bound_raises_where_it_means_nothing(p, size):
    with pytest.raises(ValueError, match="0 <= p <= 1 and N >= 2"):
        snr_bound(p, size)


def test_too_few_raise():
    with pytest.raises(ValueError, match="got .*1"):
        leave_one_out_advantages(np.ones(1))
