"""Files of results: modes, order of steps, unfinished files."""

import os

import pytest
from safetensors.numpy import save_file

from redraft.errors import UserError
from redraft.files import atomic, atomic_folder, read_json, steps_in, write_json


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def private(file):
    """Write a file as libraries do that go through a temporary file."""
    file.write_text("x")
    file.chmod(0o600)


def test_the_umask_decides_who_reads_a_file(umask, tmp_path):
    with atomic(tmp_path / "file") as temporary:
        private(temporary)
    with atomic_folder(tmp_path / "folder") as unfinished:
        (unfinished / "deeper").mkdir()
        private(unfinished / "deeper" / "file")
        save_file({}, unfinished / "model.safetensors")
    write_json(tmp_path / "x.json", {})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~umask}
    assert os.umask(umask) == umask, "it is not changed"


def test_steps_are_ordered_by_number_however_many_digits_they_have(tmp_path):
    for name in ("step-9990", "step-10000", "step-0100", "step-backup", "step-0001.parquet", ".step-0007"):
        (tmp_path / name).mkdir()
    assert [path.name for path in steps_in(tmp_path).values()] == ["step-0100", "step-9990", "step-10000"]
    assert list(steps_in(tmp_path, ".parquet")) == [1]
    assert steps_in(tmp_path / "nothing") == {}


def test_a_key_that_occurs_twice_is_no_json(tmp_path):
    """Python would keep the last value, and JSON allows no other reading."""
    (tmp_path / "f.json").write_text('{"a": {"b": 1, "b": 2}}')
    with pytest.raises(UserError, match="the key 'b' occurs twice"):
        read_json(tmp_path / "f.json")
