"""What the installer prints: a counter and errors, and none of pip's warnings. Nothing is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests/data/pip.log"
"""Output of `pip install --no-deps` of four packages; a folder of the index lacked each."""
FAILED = "ERROR: No matching distribution found for no-such==1\n"

INTERPRETER = """#!/bin/sh
# Python and pip as far as the installer uses them.
case "$*" in
    --version) echo "Python 3.11.0" ;;
    "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    *" install "*flash*) echo "$*" >> "$PIP_CALLS"; exit "$PIP_ENDS" ;;
    *" install "*) echo "$*" >> "$PIP_CALLS"; cat "$PIP_SAYS"; exit "$PIP_ENDS_OTHERS" ;;
    *" download "*) echo "WARNING: no index" >&2; exit 1 ;;
esac
"""


def counted(log, total, terminal):
    command = ["awk", "-v", f"total={total}", "-v", f"terminal={terminal}", "-f", str(ROOT / "envs/progress.awk")]
    return subprocess.run(command, input=log.encode(), capture_output=True, check=True).stdout.decode()


def test_a_counter_stands_for_the_packages_and_warnings_are_left_out():
    lines = ["tabulate-0.10.0-py3-none-any.whl", "shellingham-1.5.4-py2.py3-none-any.whl", "pyyaml==6.0.2"]
    lines = [f"[{i}/4] {name}" for i, name in enumerate([*lines, "typer==0.20.0"], start=1)] + ["[4/4] unpacking"]
    assert "WARNING" in LOG.read_text()
    assert counted(LOG.read_text(), 4, 0).splitlines() == lines
    assert counted(LOG.read_text(), 4, 1) == "".join(f"\r\x1b[K{line}" for line in lines) + "\n"


def test_a_file_gets_ten_lines_of_a_long_installation_and_every_error():
    log = "".join(f"Collecting name{i}==1 (from -r requirements.lock (line {i}))\n" for i in range(1, 301))
    lines = counted(log + FAILED, 300, 0).splitlines()
    assert lines[0] == "[ 30/300] name30==1"
    assert len(lines) == 11
    assert lines[-1] == FAILED.strip()
    assert counted(log + FAILED, 300, 1).endswith(f"[300/300] name300==1\n{FAILED}")


@pytest.fixture
def install(tmp_path):
    """Call the installer with a pip that says and ends what it is told."""
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.write_text(INTERPRETER)
    python.chmod(0o755)

    def call(says, ends, environment="cpu", flash_attention=0, **variables):
        said = tmp_path / "said"
        said.write_text(says)
        variables |= {"PATH": f"{python.parent}:/usr/bin:/bin", "PIP_SAYS": str(said), "PIP_ENDS_OTHERS": str(ends)}
        variables |= {"PIP_CALLS": str(tmp_path / "calls"), "PIP_ENDS": str(flash_attention)}
        command = ["sh", "envs/install.sh", "venv", environment]
        inherited = {name: value for name, value in os.environ.items() if name != "FLASH_ATTN"}
        return subprocess.run(
            command, cwd=tmp_path, env=inherited | variables, capture_output=True, text=True, check=False
        )

    return call


def test_the_installer_shows_the_counter_and_keeps_all_that_pip_said(install, tmp_path):
    result = install(LOG.read_text(), 0)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stdout + result.stderr
    assert "[4/3" in result.stderr, "four of the lock's three hundred"
    assert (tmp_path / "venv/install.log").read_text().count("WARNING: Location") == 3 * LOG.read_text().count(
        "WARNING"
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.rpartition(" ")[2] for call in calls] == ["envs/cpu/requirements.lock", "envs/slurm.txt", "."]
    assert all("--no-deps" in call for call in calls)
    assert (tmp_path / "venv/.ready").read_text() == "cpu\n"


def test_a_failure_ends_the_installer_with_pip_s_error_and_its_log_named(install, tmp_path):
    result = install(FAILED, 1)
    assert result.returncode == 1
    assert FAILED in result.stderr
    assert result.stderr.splitlines()[-1].endswith("all that pip said is in venv/install.log")
    assert not (tmp_path / "venv/.ready").exists()


WHEEL = "https://mirror.example/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl#sha256=" + 64 * "0"


@pytest.mark.parametrize(
    ("choice", "last"), [(None, "."), ("no", "."), ("build", "envs/gpu/flash-attn.txt"), (WHEEL, WHEEL)]
)
def test_flash_attention_comes_last_and_only_on_request(install, tmp_path, choice, last):
    result = install("", 0, "gpu", **({"FLASH_ATTN": choice} if choice else {}))
    assert result.returncode == 0, result.stderr
    calls = [call.rpartition(" ")[2] for call in (tmp_path / "calls").read_text().splitlines()]
    assert calls == ["envs/gpu/requirements.lock", "envs/slurm.txt", "."] + ([last] if last != "." else [])
    assert ("flash-attn is not installed" in result.stderr) is (last == ".")
    assert (tmp_path / "venv/.ready").read_text() == "gpu\n"


@pytest.mark.parametrize("choice", ["build", WHEEL])
def test_the_environment_is_complete_where_flash_attention_fails(install, tmp_path, choice):
    result = install("", 0, "gpu", flash_attention=1, FLASH_ATTN=choice)
    assert result.returncode == 0
    assert "warning: flash-attn could not be installed" in result.stderr
    assert (tmp_path / "venv/.ready").read_text() == "gpu\n"


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile and an environment that says it is of CPUs."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").write_text("cpu\n")
    return tmp_path


def make(folder, *arguments, **variables):
    command = ["make", "-n", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_another_environment_than_the_installed_one_is_an_error_that_names_both(checkout):
    result = make(checkout, "ENV=gpu", "fast")
    assert result.returncode == 2
    assert all(word in result.stderr for word in ("ENV=gpu", ".venv", "environment cpu", "make clean")), result.stderr
    assert make(checkout, "ENV=gpu", "clean").returncode == 0
    (checkout / ".venv/.ready").write_text("gpu\n")
    assert "ENV=cpu" in make(checkout, "ENV=cpu").stderr


def test_a_shell_s_variable_env_is_ignored(checkout):
    """Lmod sets it to a start-up file of shells."""
    shutil.rmtree(checkout / ".venv")
    shutil.copytree(ROOT / "envs", checkout / "envs")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    assert "sh envs/install.sh .venv cpu" in make(checkout, "fast", ENV="/usr/share/lmod/init/sh").stdout
    assert "sh envs/install.sh .venv gpu" in make(checkout, "ENV=gpu", "fast").stdout
