"""The draft store: what it keeps, its file, what it says of a damaged one, and the memory it takes."""

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from redraft.errors import UserError
from redraft.rollout import drafts
from redraft.rollout.drafts import DraftStore, load_rollouts, pack, save_rollouts, unpack
from redraft.rollout.types import Finish, Rollout


def make(prompt=0, sample=0, length=3, seed=0, finish=Finish.EOS, prefix=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, length).astype(np.int32)
    log_probs = -rng.exponential(1.0, length).astype(np.float32)
    sampled_at = rng.integers(0, 50, length).astype(np.int32)
    return Rollout(prompt, sample, tokens, log_probs, sampled_at, finish, prefix, prefix + 1, prefix + 2)


def same(one, other):
    arrays = ("tokens", "log_probs", "sampled_at")
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    assert all(getattr(one, name).dtype == getattr(other, name).dtype for name in arrays)
    for name in ("prompt", "sample", "finish", "prefix_length", "draft_length", "verified"):
        assert getattr(one, name) == getattr(other, name)
    return True


contents = st.tuples(st.integers(0, 20), st.integers(0, 2**31), st.sampled_from(list(Finish)), st.integers(0, 5))
rollouts = st.builds(lambda p, s, rest: make(p, s, *rest), st.integers(0, 2**40), st.integers(0, 8), contents)
batches = st.lists(rollouts, max_size=12)
pieces = st.integers(1, 4)
"""Rollouts written or read at a time: so few that a file has several pieces."""
entries = st.dictionaries(st.tuples(st.integers(0, 2**40), st.integers(0, 8), st.integers(3, 4)), contents, max_size=12)


def same_all(some, others):
    return len(some) == len(others) and all(same(a, b) for a, b in zip(some, others, strict=True))


@given(batches)
def test_rollouts_come_back_from_their_arrays(batch):
    back = unpack(pack(batch))
    assert same_all(back, batch)
    assert all(r.tokens.base is None and r.log_probs.base is None and r.sampled_at.base is None for r in back)


@given(batches, pieces)
def test_rollouts_and_other_arrays_come_back_from_their_file(tmp_path_factory, batch, piece):
    file = tmp_path_factory.mktemp("rollouts") / "rollouts.safetensors"
    more = {"rewards": np.linspace(0, 1, len(batch), dtype=np.float32), "steps": np.arange(6).reshape(2, 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "_PIECE", piece)
        save_rollouts(file, batch, **more)
        loaded, others = load_rollouts(file)
    assert same_all(loaded, batch)
    assert set(others) == set(more)
    assert all(np.array_equal(others[name], more[name]) and others[name].dtype == more[name].dtype for name in more)


@given(batches, pieces)
def test_the_file_is_what_safetensors_would_read_of_the_arrays(tmp_path_factory, batch, piece):
    file = tmp_path_factory.mktemp("rollouts") / "rollouts.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "_PIECE", piece)
        save_rollouts(file, batch)
    arrays, expected = load_file(file), pack(batch)
    assert set(arrays) == set(expected)
    assert all(np.array_equal(arrays[name], expected[name]) for name in expected)
    assert all(arrays[name].dtype == expected[name].dtype for name in expected)


def test_a_rollout_whose_arrays_differ_in_length_is_not_written(tmp_path):
    odd = replace(make(7, 1), log_probs=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="log_probs of prompt 7, sample 1 do not fit its 3 tokens"):
        save_rollouts(tmp_path / "rollouts.safetensors", [make(), odd])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["entries", "tokens", "sampled_at"])
def test_an_array_may_not_be_named_like_a_field(tmp_path, name):
    with pytest.raises(ValueError, match="overlap"):
        save_rollouts(tmp_path / "rollouts.safetensors", [make()], **{name: np.zeros(1)})


def test_an_array_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "rollouts.safetensors"
    save_rollouts(file, [make()])
    before = file.read_bytes()
    with pytest.raises(ValueError, match="names is <U1"):
        save_rollouts(file, [make(), make()], names=np.array(["a", "b"]))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@given(entries, pieces)
def test_a_store_comes_back_from_its_file(tmp_path_factory, contents, piece):
    file = tmp_path_factory.mktemp("drafts") / "drafts.safetensors"
    store = DraftStore()
    put = {key: make(key[0], key[1], *rest) for key, rest in contents.items()}
    for (_, _, epoch), rollout in put.items():
        store.put(rollout, epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "_PIECE", piece)
        store.save(file)
        loaded = DraftStore.load(file)
    assert len(loaded) == len(store) == len(put)
    assert all(same(loaded.get(*key), rollout) for key, rollout in put.items())


puts = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 5)), max_size=30)


@given(puts, st.integers(1, 3))
def test_of_each_key_the_newest_epochs_are_kept(calls, epochs):
    store, last = DraftStore(epochs), {}
    for seed, (prompt, sample, epoch) in enumerate(calls):
        last[prompt, sample, epoch] = make(prompt, sample, seed=seed)
        store.put(last[prompt, sample, epoch], epoch)
    newest = {(p, s): sorted(e for q, t, e in last if (q, t) == (p, s))[-epochs:] for p, s, _ in last}
    for (prompt, sample, epoch), rollout in last.items():
        assert store.get(prompt, sample, epoch) is (rollout if epoch in newest[prompt, sample] else None)
    assert len(store) == sum(map(len, newest.values()))


def test_two_epochs_are_kept_and_no_more():
    store = DraftStore()
    for epoch in range(4):
        store.put(make(seed=epoch), epoch)
    assert store.get(0, 0, 0) is None
    assert store.get(0, 0, 1) is None
    assert same(store.get(0, 0, 2), make(seed=2))
    assert same(store.get(0, 0, 3), make(seed=3))
    assert len(store) == 2


def test_a_rollout_of_the_same_key_and_epoch_is_replaced():
    store = DraftStore()
    store.put(make(seed=1), 0)
    store.put(make(seed=2, length=5), 0)
    assert same(store.get(0, 0, 0), make(seed=2, length=5))
    assert len(store) == 1


def test_prompts_and_samples_are_kept_apart():
    store = DraftStore()
    for prompt in range(2):
        for sample in range(2):
            store.put(make(prompt, sample, seed=10 * prompt + sample), 0)
    assert same(store.get(1, 0, 0), make(1, 0, seed=10))
    assert same(store.get(0, 1, 0), make(0, 1, seed=1))
    assert store.get(2, 0, 0) is None


def test_a_store_that_keeps_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one epoch"):
        DraftStore(epochs=0)


@pytest.fixture
def saved(tmp_path):
    store = DraftStore()
    for sample in range(3):
        store.put(make(sample=sample, seed=sample, length=10), 0)
    file = tmp_path / "drafts.safetensors"
    store.save(file)
    return file


def truncated(file):
    file.write_bytes(file.read_bytes()[:-7])


def garbage(file):
    file.write_bytes(b"\xff" * 500)


def nothing(file):
    file.write_bytes(b"")


def without_tokens(file):
    arrays = load_file(file)
    save_file({name: array for name, array in arrays.items() if name != "tokens"}, file)


def one_log_prob_short(file):
    arrays = load_file(file)
    save_file(arrays | {"log_probs": arrays["log_probs"][:-1]}, file)


def unknown_finish(file):
    arrays = load_file(file)
    entries = arrays["entries"].copy()
    entries[0, 6] = 9
    save_file(arrays | {"entries": entries}, file)


def too_few_columns(file):
    arrays = load_file(file)
    save_file(arrays | {"entries": np.ascontiguousarray(arrays["entries"][:, :6])}, file)


def with_entry(row, column, value):
    def damage(file):
        arrays = load_file(file)
        entries = arrays["entries"].copy()
        entries[row, column] = value
        save_file(arrays | {"entries": entries}, file)

    return damage


def negative_prefix(file):
    with_entry(1, 3, -1)(file)


def lengths_that_are_negative_but_add_up(file):
    with_entry(0, 2, -10)(file)
    with_entry(1, 2, 30)(file)


def lengths_that_add_up_if_they_wrap_around(file):
    arrays = load_file(file)
    entries = arrays["entries"].repeat(2, axis=0)[:5]
    entries[:, 2] = [2**62, 2**62, 2**62, 2**62, 30]
    save_file(arrays | {"entries": entries, "epochs": np.zeros(5, np.int64)}, file)


def tokens_of_another_type(file):
    arrays = load_file(file)
    save_file(arrays | {"tokens": arrays["tokens"].astype(np.int64)}, file)


def entries_of_another_type(file):
    arrays = load_file(file)
    save_file(arrays | {"entries": arrays["entries"].astype(np.float64)}, file)


def the_same_rollout_twice(file):
    with_entry(1, 1, 0)(file)


def one_epoch_short(file):
    arrays = load_file(file)
    save_file(arrays | {"epochs": arrays["epochs"][:-1]}, file)


def without_epochs(file):
    arrays = load_file(file)
    save_file({name: array for name, array in arrays.items() if name != "epochs"}, file)


DAMAGE = {
    truncated: "not fully covered",
    garbage: "header too large",
    nothing: "header too small",
    without_tokens: "tokens",
    one_log_prob_short: "lengths do not add up",
    unknown_finish: "a finish is unknown",
    too_few_columns: "entries are int64",
    negative_prefix: "entries are negative",
    lengths_that_are_negative_but_add_up: "entries are negative",
    lengths_that_add_up_if_they_wrap_around: "lengths do not add up",
    tokens_of_another_type: "tokens is int64, not int32",
    entries_of_another_type: "entries are float64",
    the_same_rollout_twice: "a rollout stands there twice",
    one_epoch_short: "epochs are int64 (2,), not int64 (3,)",
    without_epochs: "epochs",
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE])
def test_a_damaged_file_is_named_and_its_damage(saved, damage, reason):
    damage(saved)
    with pytest.raises(UserError, match="damaged") as error:
        DraftStore.load(saved)
    assert error.value.file == saved
    assert reason in error.value.message


@given(st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("drafts") / "drafts.safetensors"
    save_rollouts(file, data.draw(batches))
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(UserError, match="damaged"):
        load_rollouts(file)


@given(st.data())
def test_arrays_with_another_length_are_refused(data):
    batch = data.draw(st.lists(rollouts, min_size=1, max_size=5))
    arrays = pack(batch)
    row = data.draw(st.integers(0, len(batch) - 1))
    arrays["entries"][row, 2] = data.draw(st.integers(0, 40).filter(lambda length: length != batch[row].length))
    with pytest.raises(ValueError, match="lengths do not add up"):
        unpack(arrays)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="missing") as error:
        DraftStore.load(tmp_path / "drafts.safetensors")
    assert error.value.file == tmp_path / "drafts.safetensors"


class Bomb:
    """Does harm when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_loading_never_unpickles(tmp_path):
    file, harm = tmp_path / "drafts.safetensors", tmp_path / "harm"
    file.write_bytes(pickle.dumps(Bomb(harm)))
    with pytest.raises(UserError, match="damaged"):
        DraftStore.load(file)
    assert not harm.exists()
    pickle.loads(file.read_bytes()).close()
    assert harm.exists(), "the bomb of this test works"


ROLLOUTS, LENGTH = 6000, 100


@pytest.fixture
def large():
    store = DraftStore()
    for prompt in range(ROLLOUTS):
        store.put(make(prompt, length=LENGTH), 0)
    return store


def peak(work):
    """Bytes allocated at most at a time while working."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_saving_holds_no_second_copy(large, tmp_path):
    assert peak(lambda: large.save(tmp_path / "drafts.safetensors")) < 12 * ROLLOUTS * LENGTH / 2


def test_loading_holds_one_copy_and_little_more(large, tmp_path):
    file = tmp_path / "drafts.safetensors"
    large.save(file)
    one = peak(lambda: [make(prompt, length=LENGTH) for prompt in range(ROLLOUTS)])
    assert peak(lambda: DraftStore.load(file)) < 1.5 * one
