"""The tests of vLLM under another vLLM: the version of the environment for GPUs, in its build for processors."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-vllm-of-gpu/bin/python"
FILES = ("tests/test_vllm_worker.py", "tests/test_vllm_engine.py", "tests/test_engines.py")
"""Without the audit's statistical tests, which take minutes, and those that need verl."""

pytestmark = [
    pytest.mark.servers,
    pytest.mark.thorough,
    pytest.mark.skipif(not PYTHON.exists(), reason="this vLLM's environment is not there; `make vllm-of-gpu` makes it"),
]


def test_the_worker_and_the_engine_work_with_the_vllm_of_the_environment_for_gpus():
    # One process, since a vLLM takes half a minute to start.
    command = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-k", "vllm", *FILES]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
    assert " passed" in ended.stdout
