"""Files that Snakemake would make again, by its own plan."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from redraft.config import own
from redraft.messages import echo

RECORDS = Path(".snakemake/metadata")
"""Snakemake's records of the params and inputs from which files were made."""
PENDING = "update pending"
"""Plan of such a file in the output of `snakemake --summary`."""


def files_to_make(preset: str, files: Sequence[str]) -> set[str] | None:
    """Files that Snakemake would make for these files of a preset in the working directory, including their inputs.

    None without a workflow or without records; then Snakemake would compare times only. A mistake that prevents the
    plan is printed to stderr and also gives None. It takes some seconds, and a minute for 10,000 runs.
    """
    if not (RECORDS.is_dir() and Path("Snakefile").exists() and importlib.util.find_spec("snakemake")):
        return None
    cells = os.environ.get(own.VARIABLE)
    config = [f"preset={preset}", *([f"cells={cells}"] if cells else [])]
    command = [sys.executable, "-m", "snakemake", "--summary", "--config", *config, "--", *files]
    plan = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if plan.returncode:
        echo(
            f"Snakemake cannot plan these runs, so that their states are of their own files:\n{plan.stderr.strip()}",
            err=True,
        )
        return None
    rows = [line.split("\t") for line in plan.stdout.splitlines()]
    return {row[0] for row in rows if row[-1] == PENDING}
