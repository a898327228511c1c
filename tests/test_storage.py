"""Files of groups: what comes back from them, what is said of damaged ones, and the memory they take."""

import errno
import pickle
import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from redraft.errors import UserError
from redraft.rollout import columns
from redraft.rollout.columns import SCHEMA
from redraft.rollout.storage import load_groups, pack_groups, save_groups, unpack_groups
from redraft.rollout.types import Group, Sample, TopLogProbs
from tests.processes import mappings, until
from tests.random_groups import arrays, group, groups, make, peak, same_all

batches = st.lists(groups(), max_size=5)
pieces = st.integers(1, 30)
"""Tokens of a record batch: so few that a file has several and groups are split over them."""


def read(file):
    """A file of groups as a table, by Arrow alone."""
    with pa.ipc.open_file(pa.BufferReader(file.read_bytes())) as reader:
        return reader.read_all()


def saved_in_pieces(file, batch, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "PIECE", piece)
        save_groups(file, batch)


@given(batches)
def test_groups_come_back_from_their_bytes(batch):
    content = pack_groups(batch)
    assert type(content) is bytes
    assert same_all(unpack_groups(content), batch)


@given(batches, pieces)
def test_groups_come_back_from_their_file(tmp_path_factory, batch, piece):
    file = tmp_path_factory.mktemp("groups") / "groups.arrow"
    saved_in_pieces(file, batch, piece)
    back = load_groups(file)
    assert same_all(back, batch)
    assert list(file.parent.iterdir()) == [file]


@given(batches, pieces)
def test_rollouts_that_come_back_own_their_memory(tmp_path_factory, batch, piece):
    file = tmp_path_factory.mktemp("groups") / "groups.arrow"
    saved_in_pieces(file, batch, piece)
    for back in (load_groups(file), unpack_groups(pack_groups(batch))):
        for array in (a for g in back for r in g.rollouts for a in arrays(r)):
            assert array.base is None
            assert array.flags.writeable


@given(batches, pieces)
def test_the_file_is_what_arrow_reads_of_the_groups(tmp_path_factory, batch, piece):
    file = tmp_path_factory.mktemp("groups") / "groups.arrow"
    saved_in_pieces(file, batch, piece)
    table = read(file)
    assert table.schema == SCHEMA
    rows = [(number, g, s) for number, g in enumerate(batch) for s in g.samples]
    assert table.num_rows == len(rows)
    for found, (number, g, s) in zip(table.to_pylist(), rows, strict=True):
        r = s.rollout
        assert (found["group"], found["prompt"], found["visit"], found["sample"]) == (
            number,
            g.prompt,
            g.visit,
            r.sample,
        )
        assert (found["finish"], found["reward"], found["carried"]) == (r.finish, s.reward, s.carried)
        assert (found["use"], found["old_log_probs"]) == (s.use, s.old_log_probs)
        assert [t["token"] for t in found["response"]] == r.tokens.tolist()
        assert [t["log_prob"] for t in found["response"]] == r.log_probs.tolist()
        assert [t["sampled_at"] for t in found["response"]] == r.sampled_at.tolist()
        assert found["top_k"] == (None if r.top is None else r.top.tokens.shape[1])
        assert [t["token"] for t in found["top"]] == ([] if r.top is None else r.top.tokens.ravel().tolist())


def test_adjacent_groups_of_one_prompt_and_visit_stay_apart(tmp_path):
    save_groups(tmp_path / "groups.arrow", twice := [group(seed=1), group(seed=2)])
    assert same_all(load_groups(tmp_path / "groups.arrow"), twice)


def test_a_batch_ends_behind_the_rollout_that_fills_it(tmp_path):
    saved_in_pieces(file := tmp_path / "groups.arrow", [group(rewards=[0] * 5, length=10)], 20)
    with pa.ipc.open_file(pa.BufferReader(file.read_bytes())) as reader:
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [2, 2, 1]


def with_rollout(**changes):
    return Group(7, 0, (Sample(make(7, 0), 0.0), Sample(replace(make(7, 1, top=2), **changes), 0.0)))


UNFIT = {
    "log_probs of prompt 7, sample 1 do not fit its 3 tokens": {"log_probs": np.zeros(2, np.float32)},
    "log_weights of prompt 7, sample 1 do not fit its 3 tokens": {"log_weights": np.zeros(2, np.float32)},
    "sampled_at of prompt 7, sample 1 do not fit its 3 tokens": {"sampled_at": np.zeros((3, 1), np.int32)},
    "top tokens of prompt 7, sample 1 do not fit its 3 tokens": {
        "top": TopLogProbs(np.zeros((2, 2), np.int32), np.zeros((3, 2), np.float32))
    },
    "top log_probs of prompt 7, sample 1 do not fit its 3 tokens": {
        "top": TopLogProbs(np.zeros((3, 2), np.int32), np.zeros((3, 1), np.float32))
    },
    "top tokens of prompt 7, sample 1 do not fit": {"top": TopLogProbs(np.zeros(3, np.int32), np.zeros(3, np.float32))},
    "prompt 8, sample 1 is in a group of prompt 7": {"prompt": 8},
}


@pytest.mark.parametrize(("reason", "changes"), UNFIT.items())
def test_a_rollout_that_does_not_fit_together_is_not_written(tmp_path, reason, changes):
    with pytest.raises(ValueError, match=reason):
        save_groups(tmp_path / "groups.arrow", [with_rollout(**changes)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=reason):
        pack_groups([with_rollout(**changes)])


def test_a_group_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    save_groups(file := tmp_path / "groups.arrow", [group()])
    before = file.read_bytes()
    with pytest.raises(ValueError, match="do not fit"):
        saved_in_pieces(file, [group(), with_rollout(log_probs=np.zeros(2, np.float32))], 1)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_named_and_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    save_groups(file := tmp_path / "groups.arrow", [group()])
    before = file.read_bytes()
    on_disk = pa.OSFile
    monkeypatch.setattr(pa, "OSFile", lambda path, mode: on_disk("/dev/full", mode))
    with pytest.raises(UserError, match="no space left") as error:
        saved_in_pieces(file, [group(seed=seed, length=1000) for seed in range(20)], 10)
    monkeypatch.undo()
    assert error.value.file == file
    assert file.read_bytes() == before


@pytest.fixture
def saved(tmp_path):
    """A file of one group of three rollouts of ten tokens."""
    save_groups(file := tmp_path / "groups.arrow", [group(rewards=(0.0, 1.0, 0.0), length=10)])
    return file


def truncated(file):
    file.write_bytes(file.read_bytes()[:-7])


def garbage(file):
    file.write_bytes(b"\xff" * 500)


def nothing(file):
    file.write_bytes(b"")


def write(file, table):
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)


def with_column(name, values):
    """A function that replaces a column's values in a file, and its type where an Arrow array is given."""

    def damage(file):
        table = read(file)
        number = table.schema.get_field_index(name)
        field = table.schema.field(name)
        if isinstance(values, pa.Array):
            write(file, table.set_column(number, field.with_type(values.type), values))
        else:
            write(file, table.set_column(number, field, pa.array(values, field.type)))

    damage.__name__ = f"{name} {values}"[:60]
    return damage


def without_tokens(file):
    write(file, read(file).drop_columns(["response"]))


def a_column_more(file):
    table = read(file)
    write(file, table.append_column("more", table["prompt"]))


def with_offsets(*offsets):
    """A function that replaces the ends of the responses, which are 0, 10, 20, 30."""

    def damage(file):
        old, new = struct.pack("<4q", 0, 10, 20, 30), struct.pack("<4q", *offsets)
        content = file.read_bytes()
        assert content.count(old) == 1
        file.write_bytes(content.replace(old, new))

    damage.__name__ = f"offsets {offsets}"
    return damage


def batches_out_of_order(file):
    table = read(file)
    write(file, table.set_column(0, SCHEMA.field(0), pa.array([0, 1, 0])))


DAMAGE = {
    truncated: "Not an Arrow file",
    garbage: "Not an Arrow file",
    nothing: "File is too small",
    without_tokens: "its columns are not those of this version",
    a_column_more: "its columns are not those of this version",
    with_column("prompt", pa.array([0.0] * 3)): "its columns are not those of this version",
    with_column("reward", pa.array([0.0] * 3, pa.float32())): "its columns are not those of this version",
    with_column("finish", ["eos", "end", "eos"]): "'end' is not a valid Finish",
    with_column("use", ["trained on", "", "trained on"]): "'' is not a valid Use",
    with_column("old_log_probs", ["stored", "stored", "made up"]): "'made up' is not a valid OldLogProbs",
    with_column("prefix_length", [0, -1, 0]): "prefix_length is negative",
    with_column("sample", [-1, 0, 1]): "sample is negative",
    with_column("visit", [0, 0, 1]): "a group has two prompts or visits",
    with_column("prompt", [0, 1, 1]): "a group has two prompts or visits",
    with_column("group", [1, 1, 1]): "groups are not in order",
    with_column("group", [0, 2, 2]): "groups are not in order",
    batches_out_of_order: "groups are not in order",
    with_column("reward", [0.0, None, 1.0]): "reward is null",
    with_column("finish", [None, "eos", "eos"]): "finish is null",
    with_column("top_k", [None, 1, None]): "a top distribution does not fit its response",
    with_column("top_k", [None, 2**62, None]): "a top distribution does not fit its response",
    with_column("top_k", [-1, None, None]): "top_k is negative",
    with_offsets(0, 10, 20, 31): "In column 12",
    with_offsets(0, 10, 20, 2**62): "In column 12",
    with_offsets(0, 2**62, 2**62, 30): "In column 12",
    with_offsets(0, -10, 20, 30): "In column 12",
    with_offsets(0, 20, 10, 30): "In column 12",
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE])
def test_a_damaged_file_is_named_and_its_damage(saved, damage, reason):
    damage(saved)
    with pytest.raises(UserError, match="damaged") as error:
        load_groups(saved)
    assert error.value.file == saved
    assert reason in error.value.message
    assert "\n" not in error.value.message
    if damage is not nothing:
        with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
            unpack_groups(saved.read_bytes())


@given(st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("groups") / "groups.arrow"
    saved_in_pieces(file, data.draw(batches), data.draw(pieces))
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(UserError, match="damaged"):
        load_groups(file)


@given(st.data())
def test_altered_bytes_are_refused_or_read_but_claim_no_memory(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("groups") / "groups.arrow"
    saved_in_pieces(file, [group(seed=seed, length=8, top=2) for seed in range(3)], 50)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    file.write_bytes(content)

    def attempt():
        with suppress(UserError):
            load_groups(file)

    assert peak(attempt) < 2**20


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="missing") as error:
        load_groups(tmp_path / "groups.arrow")
    assert error.value.file == tmp_path / "groups.arrow"


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, saved, monkeypatch):
    with pytest.raises(IsADirectoryError):
        load_groups(tmp_path)

    def failing(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pa, "memory_map", failing)
    with pytest.raises(OSError, match="Input/output error"):
        load_groups(saved)


def test_a_file_of_an_earlier_version_is_named_as_such(tmp_path):
    save_file({"entries": np.zeros((0, 7), np.int64), "tokens": np.zeros(0, np.int32)}, file := tmp_path / "drafts")
    with pytest.raises(UserError, match="safetensors, the format of an earlier version") as error:
        load_groups(file)
    assert error.value.file == file
    assert "Arrow" in error.value.allowed


class Bomb:
    """Does harm when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_loading_never_unpickles(tmp_path):
    file, harm = tmp_path / "groups.arrow", tmp_path / "harm"
    file.write_bytes(pickle.dumps(Bomb(harm)))
    with pytest.raises(UserError, match="damaged"):
        load_groups(file)
    with pytest.raises(ValueError, match="Not an Arrow file"):
        unpack_groups(file.read_bytes())
    assert not harm.exists()
    pickle.loads(file.read_bytes()).close()
    assert harm.exists(), "the bomb of this test works"


GROUPS, LENGTH, TOP = 100, 400, 4
BYTES = GROUPS * 10 * LENGTH * (12 + 8 * TOP)


def large():
    return [group(prompt, rewards=[0.0] * 10, length=LENGTH, top=TOP) for prompt in range(GROUPS)]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(columns, "PIECE", 2**17)


@pytest.mark.usefixtures("small_pieces")
def test_saving_holds_no_second_copy(tmp_path):
    batch = large()
    assert peak(lambda: save_groups(tmp_path / "groups.arrow", batch)) < BYTES / 4


@pytest.mark.usefixtures("small_pieces")
def test_loading_holds_one_copy_and_little_more(tmp_path):
    save_groups(file := tmp_path / "groups.arrow", large())
    assert peak(lambda: load_groups(file)) < 1.25 * peak(large)


@pytest.mark.usefixtures("small_pieces")
def test_no_file_stays_mapped_and_no_two_batches_are_mapped_at_once(tmp_path, monkeypatch):
    save_groups(file := tmp_path / "groups.arrow", large())
    open_map, opened = pa.memory_map, []

    def mapped(path):
        until(lambda: mappings(file) <= 1, seconds=10)  # the last batch's lives until the next batch is there
        opened.append(path)
        return open_map(path)

    monkeypatch.setattr(pa, "memory_map", mapped)
    kept = load_groups(file)
    assert len(opened) > 10
    until(lambda: not mappings(file), seconds=10)
    assert len(kept) == GROUPS
