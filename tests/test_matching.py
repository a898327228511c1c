"""Proposals by matching are those of a search through all occurrences."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.rollout.matching import SuffixIndex, ngram_proposal

TOKENS = st.lists(st.integers(0, 2), max_size=14)
"""Few tokens, so that long matches and ties are common."""


def following(sequences: list[list[int]], wanted: list[int]) -> list[tuple[int, int]]:
    """Each token that follows an occurrence, with the position among all tokens."""
    found, before = [], 0
    for sequence in sequences:
        for end in range(len(wanted), len(sequence)):
            if sequence[end - len(wanted) : end] == wanted:
                found.append((sequence[end], before + end))
        before += len(sequence)
    return found


def occurrences(sequences: list[list[int]], wanted: list[int]) -> int:
    """How often a string occurs."""
    ends = [(sequence, end) for sequence in sequences for end in range(len(wanted), len(sequence) + 1)]
    return sum(sequence[end - len(wanted) : end] == wanted for sequence, end in ends)


def searched(
    sequences: list[list[int]], context: list[int], n: int, longest: int, shortest: int, least_share: float
) -> list[int]:
    """What `SuffixIndex.propose` promises, by search."""
    for length in range(min(longest, len(context)), shortest - 1, -1):
        matched = context[len(context) - length :]
        if following(sequences, matched):
            break
    else:
        return []
    proposed: list[int] = []
    while len(proposed) < n and (edges := following(sequences, matched + proposed)):
        best = max(
            {token for token, _ in edges},
            key=lambda token: (sum(t == token for t, _ in edges), max(at for t, at in edges if t == token)),
        )
        if occurrences(sequences, [*matched, *proposed, best]) < least_share * occurrences(sequences, matched):
            break
        proposed.append(best)
    return proposed


@given(
    st.lists(TOKENS, max_size=5),
    TOKENS,
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4, 0.9]),
)
def test_an_index_proposes_what_a_search_finds(
    sequences: list[list[int]], context: list[int], n: int, longest: int, shortest: int, least_share: float
) -> None:
    index = SuffixIndex(max(n + longest, 1))
    for epoch, sequence in enumerate(sequences):
        # Asked between additions too: nothing is prepared that a later addition would outdate.
        index.propose(context, n, longest, shortest)
        index.add(sequence, epoch)
    assert index.propose(context, n, longest, shortest, least_share) == searched(
        sequences, context, n, longest, shortest, least_share
    )
    assert index.tokens == sum(map(len, sequences))


def test_a_repeated_token_takes_no_quadratic_time_and_a_longer_string_is_not_counted() -> None:
    seconds = []
    for sequence in (list(range(3000)), [1] * 3000):
        index, began = SuffixIndex(8), time.process_time()
        index.add(sequence, 0)
        index.add(sequence, 0)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 20 * seconds[0]
    assert index.propose([1] * 9, 4, 4) == [1] * 4
    with pytest.raises(ValueError, match=r"up to 8 tokens are counted, not of 5 \+ 4"):
        index.propose([1], 4, 5)


def test_the_longest_counted_strings_decide_too() -> None:
    """Match and proposal together are as long as strings are counted; 2 and 3 also occur alone."""
    index = SuffixIndex(2)
    for sequence in ([2], [3], [1, 3], [1, 2], [1, 2]):
        index.add(sequence, 0)
    assert index.propose([1], 1, 1) == [2]


@given(st.lists(st.tuples(st.integers(0, 3), TOKENS), max_size=6), TOKENS, st.integers(0, 4))
def test_forgotten_epochs_propose_nothing(added: list[tuple[int, list[int]]], context: list[int], before: int) -> None:
    index = SuffixIndex(11)
    for epoch, sequence in added:
        index.add(sequence, epoch)
    index.forget(before)
    kept = [sequence for epoch, sequence in added if epoch >= before]
    assert index.propose(context, 5, 6) == searched(kept, context, 5, 6, 1, 0.0)
    assert index.tokens == sum(map(len, kept))


@given(TOKENS, st.integers(0, 6), st.integers(1, 5), st.integers(1, 3))
def test_an_ngram_is_continued_as_it_was_last(context: list[int], n: int, longest: int, shortest: int) -> None:
    expected: list[int] = []
    for length in range(min(longest, len(context) - 1), shortest - 1, -1):
        ends = [e for e in range(length, len(context)) if context[e - length : e] == context[len(context) - length :]]
        if ends:
            while len(expected) < n:
                expected.append([*context, *expected][ends[-1] + len(expected)])
            break
    assert ngram_proposal(context, n, longest, shortest) == expected


@pytest.mark.parametrize(
    ("context", "proposal"),
    [
        ([7, 8, 9], []),  # nothing repeats
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),  # and the repetition goes on beyond the context's end
        ([5, 1, 2, 6, 1, 2, 7, 5, 1, 2], [6, 1, 2, 7]),  # the longer match, not the more recent one
        ([1, 2, 6, 1, 2, 7, 1, 2], [7, 1, 2, 7]),  # the more recent of equally long ones
    ],
)
def test_examples_of_ngrams(context: list[int], proposal: list[int]) -> None:
    assert ngram_proposal(context, 4, 3, 2) == proposal
