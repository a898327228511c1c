"""Set-up for tests of training under verl. A start of verl takes a minute or more, so few runs show much each."""

import importlib.util
import subprocess
import sys

import pytest
import yaml

from redraft.files import read_json_lines
from redraft.layout import Layout

WITH_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
LIMIT = 1500
"""Time limit of one run under verl in seconds, for a busy machine."""
LAYOUT = Layout("verl-tiny")
MODEL = LAYOUT.model("qwen3-1.7b-base")


def add_cells(folder, variants):
    """Give a copy of the repository cells of SPEC-RL with 32 problems.

    Args:
        variants: settings of each by its name.
    """
    cells = folder / "experiments/spec_rl/cells.yaml"
    content = yaml.safe_load(cells.read_text())
    shared = {"model": MODEL.name, "data": "deepmath-2k"}
    content["grids"].append({"name": "variants", "beyond_paper": True, "cell": shared, "axes": {"variant": variants}})
    cells.write_text(yaml.safe_dump(content, sort_keys=False))


def total(records, key, epoch):
    return sum(record[key] for record in records if record["epoch"] == epoch)


def gathered(records, prompts=16):
    """Whether DAPO updates at each step: when as many groups as a batch has prompts were informative since the last."""
    waiting, updates = 0, []
    for record in records:
        waiting += round(record["informative"] * prompts)
        updates.append(waiting >= prompts)
        waiting = 0 if updates[-1] else waiting
    return updates


def command(campaign, folder, cell):
    """The command that trains a cell of a copy of the repository."""
    model = campaign / MODEL
    stage = [sys.executable, "-m", "redraft.cli.app", "stage", "redraft.train.job:train"]
    return [*stage, "verl-tiny", cell, "0", str(model), str(folder)]


def train(campaign, folder, cell):
    result = subprocess.run(
        command(campaign, folder, cell), cwd=campaign, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return read_json_lines(folder / "steps.jsonl")
