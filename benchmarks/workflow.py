"""What Snakemake itself takes: a dry run of the preset, and a run with nothing to do."""

import subprocess

from benchmarks.side_by_side import line, seconds


def snakemake(*arguments: str) -> None:
    """One call that must succeed."""
    subprocess.run(["snakemake", *arguments], check=True, capture_output=True)


def main() -> None:
    """Print wall seconds, of the smoke preset for the run with nothing to do, which is made first if need be."""
    snakemake("--config", "preset=smoke")
    measured = seconds(
        {
            "dry run, tiny preset": lambda: snakemake("-n", "--forceall"),
            "nothing to do, smoke preset": lambda: snakemake("--config", "preset=smoke"),
        },
        rounds=5,
    )
    print("workflow: wall seconds")
    for name, values in measured.items():
        print(line(name, values))
