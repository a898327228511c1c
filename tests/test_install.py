"""What the installer prints: a counter and errors, and none of pip's warnings. Nothing is installed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from redraft.ops.doctor.checks import DRIVERS

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests/data/pip.log"
"""Output of `pip install --no-deps` of four packages; a folder of the index lacked each."""
FAILED = "ERROR: No matching distribution found for no-such==1\n"

INTERPRETER = """#!/bin/sh
# Python and pip as far as the installer uses them.
case "$*" in
    --version) echo "Python 3.11.0" ;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "$0" > "$3/base" ;;
    *" install "*gym.txt) echo "$*" >> "$PIP_CALLS"; exit "${PIP_ENDS_GYM:-0}" ;;
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
        variables |= {"PATH": f"{tmp_path}/venv/bin:{python.parent}:/usr/bin:/bin"}
        variables |= {"PIP_SAYS": str(said), "PIP_ENDS_OTHERS": str(ends)}
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
    assert [call.rpartition(" ")[2] for call in calls] == [
        "envs/cpu/requirements.lock",
        "envs/slurm.txt",
        "envs/gym.txt",
        ".",
    ]
    assert all("--no-deps" in call for call in calls)
    assert (tmp_path / "venv/.ready").read_text() == "cpu\n"


def test_the_python_of_a_half_installed_environment_is_not_the_base_of_the_next(install, tmp_path):
    half = tmp_path / "venv/bin/python3.11"
    half.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "bin/python3.11", half)
    assert install("", 0).returncode == 0
    assert not half.exists()
    assert (tmp_path / "venv/base").read_text() == f"{tmp_path}/bin/python3.11\n"


def test_a_failure_ends_the_installer_with_pip_s_error_and_its_log_named(install, tmp_path):
    result = install(FAILED, 1)
    assert result.returncode == 1
    assert FAILED in result.stderr
    assert result.stderr.splitlines()[-1].endswith("all that pip said is in venv/install.log")
    assert not (tmp_path / "venv/.ready").exists()


def test_the_environment_is_complete_where_reasoning_gym_cannot_be_compiled(install, tmp_path):
    result = install("", 0, PIP_ENDS_GYM="1")
    assert result.returncode == 0, result.stderr
    assert "reasoning-gym could not be installed; docs/reasoning-gym.md" in result.stderr
    assert (tmp_path / "calls").read_text().splitlines()[-1].endswith(" -e .")
    assert (tmp_path / "venv/.ready").read_text() == "cpu\n"


WHEEL = "https://mirror.example/flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl#sha256=" + 64 * "0"


@pytest.mark.parametrize(
    ("choice", "last"), [(None, "."), ("no", "."), ("build", "envs/gpu/flash-attn.txt"), (WHEEL, WHEEL)]
)
@pytest.mark.parametrize("environment", ["gpu", "gpu-cuda12"])
def test_flash_attention_comes_last_and_only_on_request(install, tmp_path, environment, choice, last):
    result = install("", 0, environment, **({"FLASH_ATTN": choice} if choice else {}))
    assert result.returncode == 0, result.stderr
    calls = [call.rpartition(" ")[2] for call in (tmp_path / "calls").read_text().splitlines()]
    always = [f"envs/{environment}/requirements.lock", "envs/slurm.txt", "envs/gym.txt", "."]
    assert calls == always + ([last] if last != "." else [])
    assert ("flash-attn is not installed" in result.stderr) is (last == ".")
    assert (tmp_path / "venv/.ready").read_text() == f"{environment}\n"


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
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").write_text("cpu\n")
    return tmp_path


def make(folder, *arguments, driver="", **variables):
    """Call make without running recipes, where `nvidia-smi` says a driver's version."""
    smi = folder / "bin/nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text(f"#!/bin/sh\necho {driver}\n" if driver else "#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    variables |= {"PATH": f"{smi.parent}:{os.environ['PATH']}"}
    # As by itself, also where make runs these tests.
    own = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    command = ["make", "-n", *arguments]
    return subprocess.run(command, cwd=folder, env=own | variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("installed", "arguments", "words"),
    [
        ("cpu", ["ENV=gpu"], ["ENV=gpu", "environment cpu"]),
        ("gpu", ["ENV=cpu"], ["ENV=cpu", "environment gpu"]),
        ("gpu", ["CUDA=12"], ["CUDA=12", "environment gpu"]),
        ("gpu-cuda12", ["ENV=gpu", "CUDA=13"], ["CUDA=13", "environment gpu-cuda12"]),
    ],
)
def test_another_environment_than_the_installed_one_is_an_error_that_names_both(checkout, installed, arguments, words):
    (checkout / ".venv/.ready").write_text(f"{installed}\n")
    result = make(checkout, *arguments, "fast", driver="580.65.06")
    assert result.returncode == 2
    assert all(word in result.stderr for word in [*words, ".venv", "make clean"]), result.stderr
    assert make(checkout, *arguments, "clean").returncode == 0


@pytest.mark.parametrize("installed", ["cpu", "gpu", "gpu-cuda12"])
def test_the_installed_environment_is_the_default_without_a_driver(checkout, installed):
    (checkout / ".venv/.ready").write_text(f"{installed}\n")
    for arguments in [[], ["ENV=gpu"]] if installed != "cpu" else [[]]:
        assert make(checkout, *arguments, "-B", ".venv/.ready").stdout == f"sh envs/install.sh .venv {installed}\n"


def test_variables_of_the_shell_are_ignored(checkout):
    """Lmod sets ENV to a start-up file of shells, and modules may set CUDA."""
    shutil.rmtree(checkout / ".venv")
    assert "sh envs/install.sh .venv cpu" in make(checkout, "fast", ENV="/usr/share/lmod/init/sh", CUDA="/cuda").stdout


CHOICES = {
    "580.65.06": "gpu",
    "595.1": "gpu",
    "575.51.03": "gpu-cuda12",
    "535.183.01": "gpu-cuda12",
    "525.60.13": "gpu-cuda12",
}


@pytest.mark.parametrize(("driver", "environment"), CHOICES.items())
def test_the_driver_chooses_the_lock_and_cuda_has_precedence(checkout, driver, environment):
    shutil.rmtree(checkout / ".venv")
    result = make(checkout, "ENV=gpu", "fast", driver=driver)
    assert f"sh envs/install.sh .venv {environment}\n" in result.stdout
    assert f"{driver}, so the environment is {environment}" in result.stderr
    for cuda, named in (("12", "gpu-cuda12"), ("13", "gpu")):
        chosen = make(checkout, "ENV=gpu", f"CUDA={cuda}", "fast", driver=driver)
        assert f"sh envs/install.sh .venv {named}\n" in chosen.stdout


@pytest.mark.parametrize(
    ("arguments", "driver", "words"),
    [
        (["ENV=gpu"], "", ["no NVIDIA driver", "CUDA=13", "CUDA=12"]),
        (["ENV=gpu"], "470.256.02", ["470.256.02 is too old", "525"]),
        (["ENV=gpu", "CUDA=11"], "470.256.02", ["CUDA=11", "allowed", "CUDA=12"]),
        (["ENV=gpu-cuda12"], "", ["ENV=gpu-cuda12", "allowed", "ENV=gpu CUDA=12"]),
        (["CUDA=12"], "", ["CUDA=12", "ENV=cpu", "ENV=gpu"]),
    ],
)
def test_an_environment_that_cannot_be_chosen_is_an_error_that_says_how(checkout, arguments, driver, words):
    shutil.rmtree(checkout / ".venv")
    result = make(checkout, *arguments, driver=driver)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr


def test_the_installer_and_the_doctor_know_the_same_oldest_drivers():
    text = (ROOT / "envs/choose.sh").read_text()
    assert [int(number) for number in re.findall(r"-(?:ge|lt) (\d+) \]", text)] == [DRIVERS[12], DRIVERS[13]]
