"""Random streams: the same name gives the same numbers, any other name others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.rollout.streams import stream, uniforms

names = st.tuples(
    st.integers(0, 5),
    st.sampled_from(["rollout/sampling", "rollout/acceptance", "fresh/sampling", "order", "a", "a/b"]),
    st.lists(st.integers(0, 12), max_size=3).map(tuple),
)


def numbers(name, count=4):
    seed, purpose, position = name
    return tuple(uniforms(seed, purpose, *position, count=count))


@given(names, names)
def test_names_and_numbers_correspond(one, other):
    assert (numbers(one) == numbers(other)) == (one == other)


def test_seed_purpose_and_every_position_matter():
    changed = [
        (1, "p", (2, 3)),
        (0, "q", (2, 3)),
        (0, "p", (9, 3)),
        (0, "p", (2, 9)),
        (0, "p", (3, 2)),
        (0, "p", (23,)),
    ]
    assert len({numbers(name) for name in [(0, "p", (2, 3)), *changed]}) == len(changed) + 1


def test_what_was_drawn_before_does_not_matter():
    first = stream(0, "p", 1)
    first.random(100)
    assert stream(0, "p", 1).random(3).tolist() == stream(0, "p", 1).random(3).tolist()
    assert first.random(3).tolist() != stream(0, "p", 1).random(3).tolist()


def test_a_longer_draw_begins_as_a_shorter_one():
    assert numbers((0, "p", (1,)), 8)[:5] == numbers((0, "p", (1,)), 5)


def test_numbers_are_the_same_on_every_machine():
    expected = [0.3190194075, 0.8288360988, 0.4090733402]
    assert uniforms(0, "rollout/acceptance", 1, 2, 3, count=3) == pytest.approx(expected, abs=1e-8)


def test_steps_are_fresh_and_uncorrelated():
    table = np.array([uniforms(0, "rollout/acceptance", step, 0, 0, count=200) for step in range(50)])
    correlations = np.corrcoef(table)[~np.eye(50, dtype=bool)]
    assert np.abs(correlations).max() < 0.35  # five standard deviations of 1/sqrt(200)


def test_uniforms_are_uniform_on_zero_to_one_without_zero(monkeypatch):
    u = uniforms(0, "p", count=100_000)
    assert u.dtype == np.float64
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() <= 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-square with 19 degrees of freedom, p < 1e-4

    class Zero:
        def random(self, count):
            return np.zeros(count)

    monkeypatch.setattr("redraft.rollout.streams.stream", lambda *_: Zero())
    assert uniforms(0, "p", count=2).tolist() == [1.0, 1.0], "a zero draw becomes one"


@pytest.mark.parametrize("purpose", ["a/1", "12", "evaluate/-3"])
def test_a_purpose_that_looks_like_a_position_is_refused(purpose):
    with pytest.raises(ValueError, match="must not end in a number"):
        stream(0, purpose, 2)
