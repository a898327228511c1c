"""Time of Snakemake itself: dry runs of a preset and of the papers' whole campaign, and a run with nothing to do."""

import subprocess

from benchmarks.side_by_side import line, seconds


def snakemake(*arguments: str) -> str:
    """Run Snakemake and return its output; raises if it fails."""
    result = subprocess.run(["snakemake", *arguments], check=True, capture_output=True, text=True)
    return result.stdout + result.stderr


def main() -> None:
    """Print wall seconds; the run with nothing to do takes the tiny preset if it is finished, else smoke."""
    preset = "tiny" if "Nothing to be done" in snakemake("-n") else "smoke"
    snakemake("--config", f"preset={preset}")
    measured = seconds(
        "workflow",
        {
            "dry run, tiny preset": lambda: snakemake("-n", "--forceall"),
            "dry run, paper preset, all cells": lambda: snakemake("-n", "reproduction", "--config", "preset=paper"),
            f"nothing to do, {preset} preset": lambda: snakemake("--config", f"preset={preset}"),
        },
        rounds=5,
    )
    print("workflow: wall seconds")
    for name, values in measured.items():
        print(line(name, values))
