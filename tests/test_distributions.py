"""Log-probabilities of given tokens against the whole distribution."""

import pytest
import torch

from redraft.engines.torch import head as distributions
from redraft.engines.torch.head import given_log_probs

POSITIONS, WIDTH, VOCABULARY = 12, 8, 30


class Head:
    """A head that notes how many rows it is given."""

    def __init__(self, dtype=torch.float32):
        torch.manual_seed(0)
        self.weight, self.calls = torch.randn(VOCABULARY, WIDTH).to(dtype), []

    def __call__(self, hidden):
        self.calls.append(len(hidden))
        return hidden @ self.weight.T


@pytest.fixture
def hidden():
    torch.manual_seed(1)
    return torch.randn(POSITIONS, WIDTH)


@pytest.mark.parametrize("rows_at_once", [1, 4, 5, 100])
@pytest.mark.parametrize("top", [0, 1, 3, VOCABULARY])
def test_tokens_and_tops_are_those_of_the_whole_distribution_whatever_the_chunks(
    top, rows_at_once, hidden, monkeypatch
):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", rows_at_once * VOCABULARY + VOCABULARY - 1)
    head, rows = Head(), torch.tensor([7, 2, 3, 11, 2])
    tokens = torch.tensor([4, 29, 0, 13, 5])
    ids, log_probs = given_log_probs(head, VOCABULARY, hidden[rows], tokens, top)
    distribution = (hidden @ head.weight.T).log_softmax(-1)[rows]
    assert (ids[:, 0].tolist(), ids.dtype, log_probs.dtype) == (tokens.tolist(), torch.int64, torch.float32)
    torch.testing.assert_close(log_probs[:, 0], distribution[range(5), tokens])
    torch.testing.assert_close(log_probs[:, 1:], distribution.sort(descending=True).values[:, :top])
    torch.testing.assert_close(distribution.gather(1, ids), log_probs)
    assert max(head.calls) <= rows_at_once
    assert sum(head.calls) == 5, "each position meets the head once"


def test_a_vocabulary_above_the_limit_is_scored_row_by_row(hidden, monkeypatch):
    monkeypatch.setitem(distributions.LOGITS_AT_ONCE, "cpu", 1)
    head = Head()
    given_log_probs(head, VOCABULARY, hidden[:3], torch.arange(3))
    assert head.calls == [1, 1, 1]


def test_a_distribution_in_bfloat16_is_normalised_in_float32(hidden):
    head, hidden = Head(torch.bfloat16), hidden.bfloat16()
    rows = torch.arange(POSITIONS)
    _, log_probs = given_log_probs(head, VOCABULARY, hidden, rows, VOCABULARY)
    torch.testing.assert_close(log_probs[:, 1:].exp().sum(1), torch.ones(POSITIONS), atol=1e-6, rtol=0)
    assert log_probs.dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_distribution_at_a_temperature_is_that_of_logits_divided_by_it(hidden, temperature):
    head = Head()
    ((places, distribution),) = distributions.distributions(head, VOCABULARY, hidden, temperature)
    assert places == slice(0, POSITIONS)
    torch.testing.assert_close(distribution, (hidden @ head.weight.T / temperature).log_softmax(-1))
    tokens = torch.arange(POSITIONS)
    _, log_probs = given_log_probs(head, VOCABULARY, hidden, tokens, 2, temperature)
    torch.testing.assert_close(log_probs[:, 0], distribution[tokens, tokens])
    torch.testing.assert_close(log_probs[:, 1:], distribution.sort(descending=True).values[:, :2])
