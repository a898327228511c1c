"""A run that takes two nodes of a Slurm job: Ray over both, verl and vLLM on it, and the end of all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from redraft.files import read_json, read_json_lines
from tests.slurm.cluster import INSTALLED, Cluster, until
from tests.test_workflow import copy_to, snakemake
from tests.verl_runs import LAYOUT, MODEL

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = INSTALLED

CELL = "spec_rl/grpo-spec-l0.5"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The preset for two cores on two nodes, two steps with a processor on each, which stands for a GPU."""
    folder = copy_to(tmp_path_factory.mktemp("two-nodes"))
    file = folder / "experiments/presets/verl-tiny.yaml"
    preset = yaml.safe_load(file.read_text())
    preset["engine"]["nodes"] = 2
    preset["trainer"] |= {"evaluate_every": 1}
    preset["data"]["deepmath-6k"]["size"] = preset["trainer"]["prompts_per_step"]
    file.write_text(yaml.safe_dump(preset, sort_keys=False))
    made = snakemake(
        folder,
        "--",
        str(MODEL / "model.safetensors"),
        str(LAYOUT.data("deepmath-6k") / "data.json"),
        preset="verl-tiny",
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


def test_verl_trains_over_two_nodes_of_a_job_and_leaves_nothing_behind(checkout, tmp_path):
    run, log = checkout / LAYOUT.run(CELL, 0), tmp_path / "job.log"
    asked = ["--partition=wide", "--nodes=2", "--ntasks=2", "--cpus-per-task=8", "--mem=20000", "--gres=gpu:1"]
    train = f"{sys.executable} -m redraft.cli stage train verl-tiny {CELL} 0 {MODEL} {run}"
    with Cluster(tmp_path, port=27817) as cluster:
        try:
            cluster.submit(*asked, f"--chdir={checkout}", f"--output={log}", "--wrap", train)
        except subprocess.CalledProcessError:
            pytest.fail(log.read_text()[-3000:])
        until(lambda: not cluster.jobs("running", "completing"))
    records = read_json_lines(run / "steps.jsonl")
    assert [record["rollouts"] for record in records] == [64, 64]
    assert records[1]["tokens_reused"] > 0
    assert max(record["log_prob_gap_max"] for record in records) < 1e-3, "else a replica of vLLM kept old weights"
    assert read_json(run / "manifest.json")["processes"][0]["slurm_job"]
    assert (run / "ray.log").read_text().count("Ray runtime started") == 2
    mark = str(tmp_path / "slurm.conf").encode()
    until(lambda: not [p for p in Path("/proc").glob("[0-9]*") if mark in environment(p)], limit=60)


def environment(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
