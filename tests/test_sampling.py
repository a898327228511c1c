"""Sampling by inversion: its exact distribution, top-p, and that one row never depends on another."""

import math

import numpy as np
import pytest
import torch

from redraft.engines.torch import sampling
from redraft.engines.torch.sampling import log_probs_of, sample_specially
from redraft.rollout.engine import Residual

PROBABILITIES = [0.05, 0.5, 0.0, 0.15, 0.3]
GRID = 20_000


def logits_of(probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def sample(logits, uniforms, temperature, top_p):
    """Tokens, and their log-probabilities under the policy."""
    log_probs = log_probs_of(logits, temperature)
    tokens = sampling.sample(log_probs, uniforms, top_p=top_p)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def distribution(probabilities, temperature=1.0, top_p=1.0):
    """Share of an even grid of uniforms that gives each token."""
    u = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    logits = logits_of(probabilities).expand(GRID, -1)
    tokens, _ = sample(logits, u, temperature, top_p)
    return np.bincount(tokens.numpy(), minlength=len(probabilities)) / GRID


def test_each_token_gets_the_share_of_uniforms_that_is_its_probability():
    np.testing.assert_allclose(distribution(PROBABILITIES), PROBABILITIES, atol=1 / GRID + 1e-7)


def test_tokens_too_rare_for_single_precision_keep_their_share():
    """In float32 the sum of the first two is that of the first one alone, and the second could not be sampled."""
    log_probs = torch.tensor([[0.75, 1e-9, 2e-9, 0.25]] * 4).log()
    weights = log_probs[0].exp().double()
    middles = (weights.cumsum(0) - weights / 2) / weights.sum()
    assert sampling.sample(log_probs, middles).tolist() == [0, 1, 2, 3]


def test_log_probabilities_of_half_precision_logits_are_computed_in_single():
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).mul(5).to(torch.bfloat16)
    found = log_probs_of(logits, 0.7)
    exact = torch.log_softmax(logits.double() / 0.7, dim=-1)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5


def test_temperature_changes_the_distribution_as_a_power():
    powers = np.array(PROBABILITIES) ** (1 / 0.5)
    np.testing.assert_allclose(
        distribution(PROBABILITIES, temperature=0.5), powers / powers.sum(), atol=1 / GRID + 1e-6
    )


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [1]), (0.6, [1, 4]), (0.79, [1, 4]), (0.81, [1, 3, 4]), (0.94, [1, 3, 4]), (0.96, [0, 1, 3, 4])],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_their_proportions(top_p, kept):
    expected = np.where(np.isin(range(5), kept), PROBABILITIES, 0.0)
    np.testing.assert_allclose(
        distribution(PROBABILITIES, top_p=top_p), expected / expected.sum(), atol=1 / GRID + 1e-6
    )


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("probabilities", [[0, 0.5, 0, 0.5, 0], [0.5, 0, 0, 0, 0.5], [0, 0, 1.0, 0, 0]])
def test_a_token_of_probability_zero_is_never_sampled(probabilities, top_p):
    edges = np.cumsum(probabilities)
    u = [5e-324, 2**-53, 1.0, 1 - 2**-53, *edges[edges > 0], *np.nextafter(edges[edges > 0], 0)]
    tokens, log_probs = sample(logits_of(probabilities).expand(len(u), -1), torch.tensor(u), 1.0, top_p)
    assert {probabilities[token] for token in tokens.tolist()} <= {0.5, 1.0}
    assert torch.isfinite(log_probs).all()


def test_log_probs_are_those_of_the_temperature_before_top_p():
    logits = logits_of(PROBABILITIES).expand(50, -1)
    tokens, log_probs = sample(logits, torch.linspace(0.01, 1, 50, dtype=torch.float64), 2.0, 0.5)
    assert torch.equal(log_probs, log_probs_of(logits, 2.0).gather(1, tokens[:, None])[:, 0])
    roots = np.sqrt(PROBABILITIES)
    expected = [math.log(roots[token] / roots.sum()) for token in tokens.tolist()]
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_a_row_is_sampled_as_if_it_were_alone(top_p):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40, 17, generator=generator)
    u = 1 - torch.rand(40, dtype=torch.float64, generator=generator)
    together = sample(logits, u, 1.0, top_p)[0].tolist()
    assert together == [int(sample(logits[i : i + 1], u[i : i + 1], 1.0, top_p)[0]) for i in range(40)]
    assert len(set(together)) > 5


def test_a_residual_is_normalised():
    """An even grid of uniforms gives each token its probability times the share that is left, over the sum of these."""
    count, left = 1000, np.array([1.0, 0.2, 1.0, 0.5, 0.0])
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    first = Residual(np.array([1, 3, 4]), left[[1, 3, 4]])
    log_probs = log_probs_of(logits_of(PROBABILITIES), 1.0).expand(count, -1)
    positions = torch.zeros(count, dtype=torch.long)
    tokens = sample_specially(log_probs, [first] * count, u, [None] * count, positions)
    expected = np.array(PROBABILITIES) * left
    shares = np.bincount(tokens.numpy(), minlength=len(PROBABILITIES)) / count
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=1 / count + 1e-6)
