"""Machines that differ from the developer's: long temporary folders, closed or narrow outputs, users without a name."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from redraft import provenance
from redraft.cli.process import commands_on_path
from redraft.errors import UserError
from redraft.files import socket_folder
from redraft.ops.locking import devices
from redraft.ops.slurm import jobs
from redraft.tasks.workers import LONGEST_FOLDER
from redraft.train.verl.settings import SOCKETS, socket_variables

ROOT = Path(__file__).parents[1]


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
    """A folder of temporary files with a name of 120 bytes or more, as of a cluster's job."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run(command, **variables):
    """A finished `sh -c` with this Python in $PYTHON and `redraft` as its module."""
    env = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables
    return subprocess.run(["sh", "-c", command], env=env, cwd=ROOT, capture_output=True, check=False, timeout=120)


def test_sockets_go_where_names_are_short(long_folder):
    assert socket_folder(LONGEST_FOLDER) == "/tmp"
    assert socket_folder(200) == str(long_folder)
    assert socket_variables({}) == dict.fromkeys(SOCKETS, "/tmp")
    assert "RAY_TMPDIR" not in socket_variables({"RAY_TMPDIR": "/data/ray"})


def test_without_a_short_folder_the_error_names_the_limit(long_folder, monkeypatch):
    monkeypatch.setattr("redraft.files.SHORT_FOLDERS", ("/nonexistent",))
    with pytest.raises(UserError, match=r"(?s)TMPDIR.*at most 75 bytes"):
        socket_folder(LONGEST_FOLDER)


def test_a_short_folder_of_temporary_files_is_kept(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert socket_folder(LONGEST_FOLDER) == "/var/tmp"
    assert socket_variables({}) == {}


def test_graders_start_with_a_long_temporary_folder(long_folder, tmp_path):
    """The path of multiprocessing's socket there would have more than 107 bytes."""
    script = tmp_path / "grade.py"
    script.write_text(
        "from redraft.tasks import workers\n"
        "if __name__ == '__main__':\n"
        "    print(workers.run(abs, [-3], 1, 60, lambda item, error: repr(error)))\n"
    )
    result = run(f"$PYTHON -P {script}", TMPDIR=str(long_folder))
    assert (result.stdout, result.returncode) == (b"[3]\n", 0), result.stderr.decode()


CLAIMS = "$PYTHON -P -m redraft claims spec_rl --reported"


def test_a_closed_standard_output_is_no_error():
    result = run(f"{CLAIMS} >&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert run(f"{CLAIMS} >&- 2>&- <&-").returncode == 0


def test_an_output_that_is_not_utf_8_gets_escapes():
    result = run(CLAIMS, PYTHONIOENCODING="latin-1")
    assert result.returncode == 0, result.stderr
    assert b"\\u201c" in result.stdout
    assert "§".encode("latin-1") in result.stdout


def test_commands_of_this_environment_are_found_without_activation(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    commands_on_path()
    commands_on_path()
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UserError, match=r"(?s)a\.lock: .*supports no locks \(No locks available\).*REDRAFT_LOCKS"):
        devices.lock(tmp_path / "a.lock", "me", wait=False)


def test_slurm_is_asked_for_the_number_of_a_user_who_may_have_no_name(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(jobs.shutil, "which", lambda name: name)
    monkeypatch.setattr(jobs, "_answer", lambda *command, seconds: commands.append(command))
    monkeypatch.delenv("USER", raising=False)
    with pytest.raises(UserError, match="Slurm does not answer"):
        jobs.jobs_of(tmp_path)
    assert commands[0][:4] == ("squeue", "--noheader", "--user", str(os.getuid()))


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize(("top", "known"), [("copy", True), (".", False)])
def test_the_commit_of_a_repository_around_the_checkout_is_not_this_code_s(top, known, tmp_path, monkeypatch):
    """Also where that repository tracks the copy."""
    file = tmp_path / "copy/src/redraft/provenance.py"
    file.parent.mkdir(parents=True)
    file.touch()
    shutil.copy(ROOT / "src/redraft/archive_commit.txt", file.parent)
    git(tmp_path / top, "init")
    git(tmp_path / top, "add", ".")
    git(tmp_path / top, "commit", "-m", "a")
    monkeypatch.setattr(provenance, "__file__", str(file))
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    assert (provenance.git_state()["commit"] is not None) is known


def test_a_download_of_a_commit_knows_it(tmp_path, monkeypatch):
    checkout, download = tmp_path / "checkout", tmp_path / "download"
    for name in (".gitattributes", "src/redraft/archive_commit.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "a")
    git(checkout, "archive", "--output", str(tmp_path / "a.tar"), "HEAD")
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(download, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    monkeypatch.setattr(provenance, "__file__", str(download / "src/redraft/provenance.py"))
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    assert provenance.git_state() == {"commit": commit.stdout.strip(), "modified": None}


def test_without_git_the_commit_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    assert provenance.git_state() == {"commit": None, "modified": None}


@pytest.mark.parametrize("file", ["Makefile", "envs/install.sh"])
def test_pip_never_installs_for_the_user(file):
    """pip refuses that in a virtual environment; both files export the variable before they call it."""
    text = (ROOT / file).read_text()
    assert text.index("export PIP_USER") < text.index("-m pip")
