"""Tests without the marker `servers` cannot start a server."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.tiers import MARKER, REFUSED, check_marks, tier_of

START = {
    "vllm": "from vllm.utils.network_utils import get_open_port; get_open_port()",
    "ray": "import ray; ray.init(num_cpus=1)",
}
"""Code that starts each server, or the first step of its start."""


@pytest.mark.parametrize("server", START)
def test_an_unmarked_test_s_processes_start_neither_vllm_nor_ray(server):
    result = subprocess.run([sys.executable, "-c", START[server]], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"refused-to-tests-without-the-marker-{MARKER}" in result.stderr.splitlines()[-1]


def an_item(path, *marks):
    return SimpleNamespace(path=path, nodeid=f"{path.name}::test", get_closest_marker=lambda name: name in marks)


def test_a_marked_test_has_the_environment_as_it_is(tmp_path, monkeypatch):
    for name in REFUSED:
        monkeypatch.delenv(name)
    with tier_of(an_item(tmp_path, MARKER)):
        assert not REFUSED.keys() & os.environ.keys()
    with tier_of(an_item(tmp_path, "parametrize")):
        assert REFUSED.items() <= os.environ.items()
    assert not REFUSED.keys() & os.environ.keys()


@pytest.mark.parametrize(
    "name",
    [
        "from tests" + ".slurm.cluster import Cluster",
        "ROOT / '.venv" + "-lighteval/bin'",
        "ROOT / '.venv" + "-trl/bin'",
        "ROOT / '.venv" + "-vllm-of-gpu/bin'",
    ],
)
def test_a_file_that_starts_slurm_or_another_environment_has_no_unmarked_test(tmp_path, name):
    file = tmp_path / "test_x.py"
    file.write_text(name)
    check_marks([an_item(file, MARKER)])
    with pytest.raises(pytest.UsageError, match=f"test_x.py::test: .* mark it `{MARKER}`"):
        check_marks([an_item(file, MARKER), an_item(file)])
    file.write_text("import tests")
    check_marks([an_item(file)])


def test_a_test_that_hangs_ends_with_its_stack(tmp_path, pytestconfig):
    """By the settings of this project with a shorter limit."""
    assert float(pytestconfig.getini("faulthandler_timeout")) == 2700
    (tmp_path / "test_hangs.py").write_text("import time\n\ndef test_it():\n    time.sleep(60)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 0.5\nfaulthandler_exit_on_timeout = true\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert result.returncode == 1
    assert "Timeout" in result.stderr
    assert "in test_it" in result.stderr
