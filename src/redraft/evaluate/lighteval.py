"""Second grading of IFEval by lighteval, in an environment of its own, and the comparison with our verdicts."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from redraft.config.data import Benchmark
from redraft.errors import UserError
from redraft.layout import code_root

PYTHON = Path(".venv-lighteval/bin/python")
SCRIPT = code_root() / "workflows/lighteval/grade.py"


def check_lighteval(benchmarks: Mapping[str, Benchmark]) -> None:
    """Check before sampling that lighteval will be able to grade.

    Raises:
        UserError: if no benchmark has instructions, or lighteval's environment is missing.
    """
    if all(benchmark.grading != "instructions" for benchmark in benchmarks.values()):
        raise UserError("lighteval grades instructions only, and none of the benchmarks has any", key="lighteval",
                        value=True, allowed="true only with a benchmark of instructions, such as ifeval")  # fmt: skip
    if not PYTHON.exists():
        raise UserError("lighteval's environment is missing", file=PYTHON, hint="`make lighteval` makes it")


def grade_again(generations: Path, grades: Path, comparison: Path) -> None:
    """Grade generations by lighteval and compare its verdicts with ours.

    Writes `lighteval.parquet` and `lighteval.json` beside `comparison`.

    Args:
        generations: file of `redraft.evaluate.generate`.
        grades: our grades.parquet.
        comparison: the JSON file to write.

    Raises:
        UserError: if lighteval fails, or the verdicts cannot be compared.
    """
    from redraft.evaluate.compare_ifeval import write_comparison  # here, so that a check takes no second to import
    from redraft.tasks.sentences import sentence_splitter

    splitter = sentence_splitter()  # chosen before the other process starts, which inherits the choice
    theirs = comparison.with_name("lighteval.parquet")
    result = subprocess.run([PYTHON, SCRIPT, generations, theirs], capture_output=True, text=True, check=False)
    if result.returncode:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise UserError(f"lighteval could not grade these generations ({said[-1]})", file=generations)
    write_comparison(grades, theirs, splitter, comparison)
