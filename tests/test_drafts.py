"""The draft store: what it keeps, its file, and what it says of a damaged one."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from redraft.errors import UserError
from redraft.rollout.drafts import DraftStore
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


entries = st.dictionaries(
    st.tuples(st.integers(0, 2**40), st.integers(0, 8), st.integers(3, 4)),
    st.tuples(st.integers(0, 20), st.integers(0, 2**31), st.sampled_from(list(Finish)), st.integers(0, 5)),
    max_size=12,
)


@given(entries)
def test_a_store_comes_back_from_its_file(tmp_path_factory, contents):
    file = tmp_path_factory.mktemp("drafts") / "drafts.safetensors"
    store = DraftStore()
    put = {key: make(key[0], key[1], *rest) for key, rest in contents.items()}
    for (_, _, epoch), rollout in put.items():
        store.put(rollout, epoch)
    store.save(file)
    loaded = DraftStore.load(file)
    assert len(loaded) == len(store) == len(put)
    assert all(same(loaded.get(*key), rollout) for key, rollout in put.items())


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
    entries[0, 7] = 9
    save_file(arrays | {"entries": entries}, file)


def too_few_columns(file):
    arrays = load_file(file)
    save_file(arrays | {"entries": np.ascontiguousarray(arrays["entries"][:, :7])}, file)


DAMAGE = [truncated, garbage, nothing, without_tokens, one_log_prob_short, unknown_finish, too_few_columns]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_named(saved, damage):
    damage(saved)
    with pytest.raises(UserError, match="damaged") as error:
        DraftStore.load(saved)
    assert error.value.file == saved


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
