"""One fault at a time: a copy of the tree gets it, and the tests that should notice run there, in a forked process.

Libraries that take seconds to load are loaded before the fork; this project's modules never are.
"""

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
from enum import StrEnum
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from mutants.faults import ROOT, Fault

COPIED = ("src", "analysis", "tests", "experiments", "docs", "workflows", "workstation", "profiles", "benchmarks",
          "envs", "slurm", "Snakefile", "Makefile", "pyproject.toml", "README.md")  # fmt: skip
OURS = ("redraft", "analysis", "tests", "benchmarks")
LIBRARIES = ("numpy", "pandas", "scipy.stats", "torch", "transformers", "pyarrow.parquet", "hypothesis", "pydantic",
             "yaml", "matplotlib.pyplot", "math_verify", "sacrebleu", "verl.trainer.ppo.core_algos",
             "verl.workers.config", "transformers.models.qwen3.modeling_qwen3")  # fmt: skip
SECONDS = 300
"""Limit of a trial; tests that hang have noticed."""
FORK = multiprocessing.get_context("fork")


class Outcome(StrEnum):
    """What the tests said of a fault."""

    FOUND = "found"
    SURVIVED = "survived"
    BROKEN = "broken"
    """No test could run."""


def load_libraries() -> None:
    """Load what all trials share."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", MPLBACKEND="Agg")
    for name in LIBRARIES:
        importlib.import_module(name)


def copy_tree(folder: Path, root: Path = ROOT) -> Path:
    """A copy of what tests need, with the times of its files, so that compiled files of the unchanged stay valid."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def trial(fault: Fault, copy: Path) -> Outcome:
    """Whether the tests of a fault notice it.

    Args:
        fault: what to change.
        copy: a copy of the tree, which is as before afterwards.
    """
    file = copy / fault.file
    aside = shutil.copy2(file, copy / "unchanged")
    file.write_text(fault.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
    try:
        return outcome(run_tests(fault.tests, copy))
    finally:
        shutil.copy2(aside, file)
        # Tests compile what they import: the next fault, of the same size within a second, would be taken for this one.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def outcome(code: int | None) -> Outcome:
    """What pytest's exit code, None if it hung, says of a fault."""
    if code in (None, pytest.ExitCode.TESTS_FAILED):
        return Outcome.FOUND
    return Outcome.SURVIVED if code == pytest.ExitCode.OK else Outcome.BROKEN


def run_tests(tests: tuple[str, ...], copy: Path, seconds: float = SECONDS) -> int | None:
    """Exit code of the tests in a copy; None if they take too long. What they say is in its file `output`."""
    process = FORK.Process(target=_pytest, args=(tests, copy))
    process.start()
    process.join(seconds)
    hung = process.is_alive()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # with what the tests left behind
    process.join()
    return None if hung else process.exitcode


def _pytest(tests: tuple[str, ...], copy: Path) -> None:
    """Run in the forked process: the copy's modules take the places of this tree's."""
    os.setpgid(0, 0)
    os.chdir(copy)
    output = os.open(copy / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:] = [str(copy / "src"), str(copy), *(path for path in sys.path if Path(path) not in (ROOT, ROOT / "src"))]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    # A file that is changed and changed back within a second would be taken for the one that was compiled.
    sys.dont_write_bytecode = (copy / "compiled").exists()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1" if sys.dont_write_bytecode else ""
    chosen = [str(Path("tests") / test) for test in tests]
    options = ["-x", "-q", "--rootdir", str(copy), "-p", "no:cacheprovider", "-m", "not servers"]
    code = pytest.main([*options, *chosen])
    sys.stdout.flush()
    os._exit(int(code))
