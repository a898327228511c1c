"""Copies of the repository's workflow, and a finished campaign in one of them."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from filelock import FileLock

from tests.forked_commands import environment, forked_commands
from tests.made_up_papers import DEFAULT, FIRST, WITH_THEM, write_papers

ROOT = Path(__file__).parents[1]
COPIED = ("Snakefile", "config", "workflow", "workflows", "profiles", "experiments", "envs")
SHOWN = {"tables": (1, 3, 4, 10, 101), "figures": (2, 4, 6, 102, 103)}
"""One of each kind; that all of them are made from their data needs no workflow, which takes seconds for each."""


def copy_to(folder):
    """The repository's workflow with some tables and figures."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for kind, numbers in SHOWN.items():
        file = folder / "experiments/spec_rl" / f"{kind}.yaml"
        content = yaml.safe_load(file.read_text())
        content[kind] = [part for part in content[kind] if part["number"] in numbers]
        file.write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def called(folder, *command, limit=600, real=False):
    """End of a command in a folder, in a process of its own, or in a fork of one that has loaded the libraries."""
    variables = os.environ if real else environment()
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False, env=variables
    )


def snakemake(folder, *arguments, preset="smoke", **options):
    return called(folder, "snakemake", "--config", f"preset={preset}", *arguments, **options)


def finished_campaign(folder):
    """Run the smoke preset with SPEC-RL and the made-up papers, unless a process has done so in this folder."""
    with FileLock(f"{folder}.lock"):
        if not (folder / "terminal").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            copy_to(folder)
            write_papers(folder / "experiments")
            preset = folder / "experiments/presets/smoke.yaml"
            preset.write_text(preset.read_text().replace(FIRST, WITH_THEM) + DEFAULT)
            with TemporaryDirectory() as commands, forked_commands(Path(commands)):
                result = snakemake(folder, limit=1800)
            assert result.returncode == 0, result.stderr[-3000:]
            (folder / "terminal").write_text(result.stderr + result.stdout)
    return folder
