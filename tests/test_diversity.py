"""Diversity and overlap, against numbers worked out by hand."""

import numpy as np
import pytest

from redraft.evaluate.diversity import distinct_1, rouge_1, self_bleu


def test_distinct_1_is_unique_over_all_tokens():
    assert distinct_1([[1, 2, 2], [2, 3]]) == pytest.approx(3 / 5)
    assert distinct_1([]) == distinct_1([[]]) == 0.0


@pytest.mark.parametrize(
    ("response", "earlier", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2], [3, 4], 0.0),
        # Two of the three 5s are shared; precision 2/3, recall 2/2.
        ([5, 5, 5], [5, 5], 0.8),
        ([12], [1, 2], 0.0),
        ([], [], 1.0),
        ([1], [], 0.0),
    ],
)
def test_rouge_1_counts_tokens(response, earlier, expected):
    assert rouge_1(np.array(response, dtype=np.int32), np.array(earlier, dtype=np.int32)) == pytest.approx(expected)


def test_self_bleu_is_one_for_copies_and_zero_for_strangers():
    copies = [[1, 2, 3, 4, 5, 6]] * 3
    strangers = [[i * 10 + j for j in range(6)] for i in range(3)]
    assert self_bleu(copies, seed=0) == pytest.approx(1.0)
    assert self_bleu(strangers, seed=0) < 0.05
    assert self_bleu(copies[:1], seed=0) == 0.0
    mixed = [[1, 2, 3, 4, 5, 9], *copies[:2]]
    assert self_bleu(strangers, seed=0) < self_bleu(mixed, seed=0) < 1


def test_self_bleu_is_of_a_seeded_sample():
    rng = np.random.default_rng(0)
    responses = [rng.integers(0, 9, 20) for _ in range(60)]
    assert self_bleu(responses, seed=1) == self_bleu(responses, seed=1)
    assert self_bleu(responses, seed=1) != self_bleu(responses, seed=2)
