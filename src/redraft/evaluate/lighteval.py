"""IFEval graded by lighteval too, in its own environment, beside our verdicts on the same generations."""

import subprocess
from pathlib import Path

from redraft.errors import UserError
from redraft.evaluate.compare_ifeval import write_comparison
from redraft.tasks.sentences import sentence_splitter

PYTHON = Path(".venv-lighteval/bin/python")
SCRIPT = Path("workflows/lighteval/grade.py")


def grade_again(generations: Path, grades: Path, comparison: Path) -> None:
    """Replay generations through lighteval and compare its verdicts with ours.

    Writes `lighteval.parquet` and `lighteval.json` beside `comparison`.

    Raises:
        UserError: if lighteval's environment is missing, or it fails.
    """
    if not PYTHON.exists():
        raise UserError("lighteval's environment is not there", file=PYTHON, allowed="after `make lighteval`")
    splitter = sentence_splitter()  # before the other process starts, which inherits the choice
    theirs = comparison.with_name("lighteval.parquet")
    result = subprocess.run([PYTHON, SCRIPT, generations, theirs], capture_output=True, text=True, check=False)
    if result.returncode:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise UserError(f"lighteval could not grade these generations ({said[-1]})", file=generations)
    write_comparison(grades, theirs, splitter, comparison)
