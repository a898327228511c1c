"""Rows of the cache: their order decides the bits of every result, and an open session keeps what it computed."""

import itertools

import numpy as np
import pytest
import torch

from redraft.engines.torch.rows import Decoding, Row, Rows
from redraft.rollout.engine import Inversion

COUNT, LENGTH, WIDTH = 8, 40, 6


class Cache:
    """A cache whose slots hold tokens, not keys and values."""

    def __init__(self):
        self.slots = np.full((COUNT, LENGTH), -1)

    def clear(self):
        self.slots[:] = -1

    def move(self, source, target, length):
        self.slots[target, :length] = self.slots[source, :length]

    def swap(self, first, second, length):
        self.slots[[first, second], :length] = self.slots[[second, first], :length]


@pytest.fixture
def rows():
    return Rows(Cache(), COUNT, LENGTH, torch.device("cpu"))


def prefilled(rows, name, slot):
    """A session whose prompt is in the cache and that wants to decode; tokens tell sessions apart."""
    row = Row([100 * name + i for i in range(3 + name % 3)])
    row.held = list(row.prompt)
    rows.take(row, slot)
    rows.cache.slots[slot, : len(row.held)] = row.held
    draws = Inversion(np.full(WIDTH, name / 100 + 0.01))
    row.asked = Decoding(np.zeros(0, dtype=np.int32), WIDTH, draws, None, 0, answer=None)
    return row


def decoding(rows, count):
    names = [prefilled(rows, name, name) for name in range(count)]
    for row in names:
        rows.start(row)
    return names


def one_pass(rows):
    """A token for each row: the session's own name."""
    live = rows.live
    for row, position in zip(live, rows.positions.tolist(), strict=False):
        rows.cache.slots[row.slot, position] = rows.tokens[row.slot]
    tokens = torch.tensor([row.prompt[0] // 100 for row in live], dtype=torch.long)
    rows.advance(tokens[:, None], torch.zeros(len(live), 1, 50).log_softmax(-1), torch.ones_like(tokens))


def end(rows, row):
    rows.finish(row, rows.out_tokens[row.slot, : int(rows.counts[row.slot])].tolist())


def held(rows, row):
    return rows.cache.slots[row.slot, : len(row.held)].tolist()


def order(rows):
    return [row.prompt[0] // 100 for row in rows.live]


def check(rows, names):
    """Everything that belongs to a decoding session is in its row."""
    for row in rows.live:
        name = names.index(row)
        assert rows.uniforms[row.slot, 0] == pytest.approx(name / 100 + 0.01)
        count = int(rows.counts[row.slot])
        assert rows.out_tokens[row.slot, :count].tolist() == [name] * count
        assert int(rows.positions[row.slot]) == len(row.prompt) - 1 + count
        known = [*row.prompt, *[name] * count][: int(rows.positions[row.slot])]
        assert rows.cache.slots[row.slot, : len(known)].tolist() == known


def test_the_last_decoding_row_fills_each_gap_from_the_last_gap_on(rows):
    names = decoding(rows, 7)
    one_pass(rows)
    for name in (1, 4, 5):
        end(rows, names[name])
        rows.release(names[name])
    assert order(rows) == [0, 2, 3, 6], "those that are left, until the gaps are closed"
    rows.compact()
    assert order(rows) == [0, 6, 2, 3]
    assert rows.free == [4, 5, 6, 7]
    check(rows, names)


@pytest.mark.parametrize("left", [(), (1,), (4, 5), (1, 4, 5)], ids=str)
def test_open_sessions_keep_what_they_computed_and_change_no_order(rows, left):
    names = decoding(rows, 7)
    one_pass(rows)
    one_pass(rows)
    for name in (1, 4, 5):
        end(rows, names[name])
    for name in left:
        rows.release(names[name])
    rows.compact()
    assert order(rows) == [0, 6, 2, 3]
    assert len(rows.free) == 1 + len(left)
    for name in {1, 4, 5} - set(left):
        assert names[name].held == [*names[name].prompt, name]
        assert held(rows, names[name]) == names[name].held
        assert names[name].slot >= rows.decoding
    one_pass(rows)
    check(rows, names)


def test_any_sessions_may_end_in_any_pass(rows):
    for ending in itertools.product(range(3), repeat=5):
        rows.clear()
        names = decoding(rows, 5)
        for number in range(2):
            one_pass(rows)
            for name, when in enumerate(ending):
                if when == number:
                    end(rows, names[name])
                    if name % 2:
                        rows.release(names[name])
            rows.compact()
            check(rows, names)
        for name, when in enumerate(ending):
            if when < 2 and not name % 2:
                assert held(rows, names[name]) == names[name].held == [*names[name].prompt, *[name] * when]


def test_a_session_that_is_left_while_it_decodes_leaves_a_gap(rows):
    names = decoding(rows, 4)
    one_pass(rows)
    rows.release(names[1])
    rows.compact()
    assert order(rows) == [0, 3, 2]
    check(rows, names)


def test_a_session_that_decodes_again_goes_to_the_end_of_the_decoding_rows(rows):
    names = decoding(rows, 4)
    one_pass(rows)
    end(rows, names[0])
    rows.compact()
    assert order(rows) == [3, 1, 2]
    row = names[0]
    row.asked = Decoding(np.array([0], dtype=np.int32), WIDTH, Inversion(np.full(WIDTH, 0.01)), None, 0, None)
    rows.start(row)
    assert order(rows) == [3, 1, 2, 0]
    assert held(rows, row) == row.prompt == row.held


def test_only_idle_sessions_that_decoded_give_up_their_rows(rows):
    names = decoding(rows, 3)
    scored = Row([7])
    scored.held = [7]
    rows.take(scored, 6)
    one_pass(rows)
    end(rows, names[0])
    rows.compact()
    rows.give_up_idle()
    assert (names[0].slot, names[0].held) == (-1, [])
    assert order(rows) == [2, 1]
    assert scored.slot == 6
