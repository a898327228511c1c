"""A machine with GPUs, which are names in the environment: `snakemake --profile workstation` gives each to one job."""

import json
import subprocess
from datetime import datetime
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from redraft.ops.locking.devices import LOCK_VARIABLE
from redraft.ops.locking.gpus import VISIBLE
from tests.checkout import copy_to
from tests.forked_commands import environment
from tests.test_workflow import CELLS

SEEDS = (0, 1)
MODEL = "results/smoke/models/qwen3-1.7b-base/model.safetensors"
RUNS = [f"results/smoke/runs/spec_rl/{cell}/seed{seed}" for cell in CELLS for seed in SEEDS]
MANIFESTS = [f"{run}/manifest.json" for run in RUNS]
"""Four runs, for two GPUs."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = copy_to(tmp_path_factory.mktemp("workstation"))
    (folder / "workstation").symlink_to("profiles/workstation")
    return folder


@pytest.fixture
def start(checkout, tmp_path):
    """Runs the smoke preset's targets, each run taking so many of the GPUs that are visible."""

    def call(gpus, visible, *targets, options=()):
        file = checkout / "experiments/presets/smoke.yaml"
        preset = yaml.safe_load(file.read_text())
        preset["engine"]["gpus"] = gpus
        file.write_text(yaml.safe_dump(preset, sort_keys=False))
        command = ["snakemake", "--profile", "workstation", "--cores", "4", *options, "--config", "preset=smoke"]
        env = environment() | {VISIBLE: visible, LOCK_VARIABLE: str(tmp_path)}
        command += ["--", *targets]
        return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False)

    return call


def test_a_run_that_needs_more_gpus_than_there_are_is_refused_before_any_job_starts(start, checkout):
    result = start(3, "one,two", *MANIFESTS)
    assert result.returncode == 2
    assert "needs 3 GPUs, but this machine has 2" in result.stderr
    assert "train" in result.stderr
    result = start(2, "one,two", *MANIFESTS, options=["--resources", "gpus=1"])
    assert result.returncode == 2
    assert "needs 2 GPUs, but this machine has 1" in result.stderr, "a limit does not lower a request"
    assert not (checkout / MODEL).exists()
    assert start(3, "one,two", MODEL).returncode == 0, "what needs no GPU is made"


@pytest.mark.servers
def test_two_runs_at_once_have_two_gpus_and_none_waits_for_one_with_a_core_in_hand(start, checkout):
    result = start(1, "one,two", *MANIFESTS)
    assert result.returncode == 0, result.stderr[-3000:]
    assert not [run for run in RUNS if "waiting for" in (checkout / run / "log.txt").read_text()]
    leases = [json.loads(Path(checkout, run, "lease/000001.json").read_text()) for run in RUNS]
    assert {lease["owner"]["devices"] for lease in leases} == {"one", "two"}
    for first, second in combinations(leases, 2):
        assert first["owner"]["devices"] != second["owner"]["devices"] or not overlap(first, second)
    assert any(overlap(*pair) for pair in combinations(leases, 2)), "they were trained two at a time"
    assert start(1, "", *MANIFESTS).returncode == 0, "what is finished needs no GPU"


def overlap(first, second):
    """Whether two held their folders at the same time; times are of whole seconds."""
    began, ended = (
        [datetime.fromisoformat(t) for t in times]
        for times in ((first["owner"]["started"], second["owner"]["started"]), (first["released"], second["released"]))
    )
    return max(began) < min(ended)
