"""Rows of the cache: their order decides the bits of every result, and an open session keeps what it computed."""

import itertools

import numpy as np
import pytest
import torch

from redraft.engines.torch.row_table import DecodeRequest, RowTable, SessionState

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
    return RowTable(Cache(), COUNT, LENGTH, torch.device("cpu"))


def request_of(session, name, prefix=()):
    """A request to decode; the uniforms identify the session."""
    uniforms = np.full(WIDTH, name / 100 + 0.01)
    session.request = DecodeRequest(session, [*session.prompt, *prefix], WIDTH, uniforms, None, None, 0, answer=None)
    return session.request


def occupy(rows, session, row):
    """Give a row, with the keys and values of the prompt, to a session."""
    session.row, rows.sessions[row] = row, session
    session.cached = list(session.prompt)
    rows.cache.slots[row, : len(session.cached)] = session.cached


def prefilled(rows, name, row):
    """A session whose prompt is in the cache and that requests tokens; its own tokens identify it."""
    session = SessionState([100 * name + i for i in range(3 + name % 3)])
    occupy(rows, session, row)
    request_of(session, name)
    return session


def decoding(rows, count):
    names = [prefilled(rows, name, name) for name in range(count)]
    for session in names:
        rows.start(session.request)
    return names


def one_pass(rows):
    """A token for each row: the session's own name."""
    live = rows.sessions[: rows.decoding]
    for session, position in zip(live, rows.positions.tolist(), strict=False):
        rows.cache.slots[session.row, position] = rows.tokens[session.row]
    tokens = torch.tensor([session.prompt[0] // 100 for session in live], dtype=torch.long)
    rows.advance(tokens[:, None], torch.zeros(len(live), 1, 50).log_softmax(-1), torch.ones_like(tokens))


def end(rows, session):
    rows.finish(session.request, rows.out_tokens[session.row, : int(rows.counts[session.row])].tolist())


def cached(rows, session):
    return rows.cache.slots[session.row, : len(session.cached)].tolist()


def order(rows):
    return [request.session.prompt[0] // 100 for request in rows.live]


def free(rows):
    return [row for row in range(rows.decoding, COUNT) if rows.sessions[row] is None]


def check(rows, names):
    """Everything that belongs to a decoding session is in its row."""
    for session in (request.session for request in rows.live):
        name, row = names.index(session), session.row
        assert rows.uniforms[row, 0] == pytest.approx(name / 100 + 0.01)
        count = int(rows.counts[row])
        assert rows.out_tokens[row, :count].tolist() == [name] * count
        assert int(rows.positions[row]) == len(session.prompt) - 1 + count
        known = [*session.prompt, *[name] * count][: int(rows.positions[row])]
        assert rows.cache.slots[row, : len(known)].tolist() == known


def test_the_last_decoding_row_fills_each_gap_from_the_last_gap_on(rows):
    names = decoding(rows, 7)
    one_pass(rows)
    for name in (1, 4, 5):
        end(rows, names[name])
        rows.release(names[name])
    assert order(rows) == [0, 2, 3, 6], "those that are left, until the gaps are closed"
    rows.compact()
    assert order(rows) == [0, 6, 2, 3]
    assert free(rows) == [4, 5, 6, 7]
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
    assert len(free(rows)) == 1 + len(left)
    for name in {1, 4, 5} - set(left):
        assert names[name].cached == [*names[name].prompt, name]
        assert cached(rows, names[name]) == names[name].cached
        assert names[name].row >= rows.decoding
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
                assert cached(rows, names[name]) == names[name].cached == [*names[name].prompt, *[name] * when]


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
    session = names[0]
    rows.start(request_of(session, 0, prefix=[0]))
    assert order(rows) == [3, 1, 2, 0]
    assert cached(rows, session) == session.prompt == session.cached


def test_only_idle_sessions_that_decoded_give_up_their_rows(rows):
    names = decoding(rows, 3)
    scored = SessionState([7])
    occupy(rows, scored, 6)
    one_pass(rows)
    end(rows, names[0])
    rows.compact()
    rows.release_idle()
    assert (names[0].row, names[0].cached) == (-1, [])
    assert order(rows) == [2, 1]
    assert scored.row == 6
