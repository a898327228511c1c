"""IFEval graded by lighteval too, in its own environment, beside our verdicts on the same generations."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.evaluate.compare_ifeval import write_comparison
from redraft.layout import code_root
from redraft.tasks.sentences import sentence_splitter

PYTHON = Path(".venv-lighteval/bin/python")
SCRIPT = code_root() / "workflows/lighteval/grade.py"


def check_lighteval(benchmarks: Mapping[str, Benchmark]) -> None:
    """Refuse, before anything is sampled, what cannot be graded by lighteval afterwards.

    Raises:
        UserError: if no benchmark is of instructions, or lighteval's environment is missing.
    """
    if all(benchmark.grading != "instructions" for benchmark in benchmarks.values()):
        raise UserError("lighteval grades instructions only, and no benchmark has any", key="lighteval", value=True,
                        allowed="with ifeval among the benchmarks")  # fmt: skip
    if not PYTHON.exists():
        raise UserError("lighteval's environment is not there", file=PYTHON, allowed="after `make lighteval`")


def grade_again(generations: Path, grades: Path, comparison: Path) -> None:
    """Replay generations through lighteval and compare its verdicts with ours.

    Writes `lighteval.parquet` and `lighteval.json` beside `comparison`.

    Raises:
        UserError: if lighteval fails.
    """
    splitter = sentence_splitter()  # before the other process starts, which inherits the choice
    theirs = comparison.with_name("lighteval.parquet")
    result = subprocess.run([PYTHON, SCRIPT, generations, theirs], capture_output=True, text=True, check=False)
    if result.returncode:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise UserError(f"lighteval could not grade these generations ({said[-1]})", file=generations)
    write_comparison(grades, theirs, splitter, comparison)
