"""A run on two nodes of a Slurm job: Ray on both, verl and vLLM on Ray, and the end of all their processes."""

from pathlib import Path

import pytest
import yaml

from redraft.config import Experiments
from redraft.files import read_json, read_json_lines
from tests.slurm.campaign import MARKS, copy_to, end, site, start
from tests.slurm.cluster import Cluster, until
from tests.verl_runs import LAYOUT, WITH_VLLM

pytestmark = [*MARKS, WITH_VLLM]

RUN = LAYOUT.run("spec_rl/grpo-spec-l0.5", 0)


@pytest.fixture
def checkout(tmp_path):
    """The preset for two cores on two nodes, two steps, with a processor on each that stands for a GPU."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    copy_to(folder)
    site(folder, partition="wide", cpus=8, memory_gb=19, runtime="20m")
    file = folder / "experiments/presets/verl-tiny.yaml"
    preset = yaml.safe_load(file.read_text())
    preset["engine"]["nodes"] = 2
    preset["trainer"]["evaluate_every"] = 1
    trainer = Experiments(folder).run("spec_rl/grpo-vanilla", 0, "verl-tiny").trainer
    preset["data"]["deepmath-6k"]["size"] = trainer.prompts_per_step
    file.write_text(yaml.safe_dump(preset, sort_keys=False))
    return folder


def test_verl_trains_over_two_nodes_of_a_job_and_leaves_nothing_behind(checkout, tmp_path):
    run = checkout / RUN
    with Cluster(tmp_path / "slurm", port=27817) as cluster:
        process = start(cluster, checkout, "--config", "preset=verl-tiny", "--", str(RUN / "manifest.json"))
        code, text = end(process)
        assert code == 0, text[-3000:]
        ended = cluster.ask("squeue", "--noheader", "--states=completed", "--format=%D %N").splitlines()
        # Slurm forgets the job of the initial policy after five minutes, which a run on a quick machine does not take.
        assert "2 one,two" in ended
    records = read_json_lines(run / "steps.jsonl")
    assert [record["rollouts"] for record in records] == [64, 64]
    assert records[1]["tokens_reused"] > 0
    assert max(record["log_prob_gap_max"] for record in records) < 1e-3, "else a replica of vLLM kept old weights"
    assert read_json(run / "manifest.json")["node"]["slurm_job"]
    assert (run / "ray.log").read_text().count("Ray runtime started") == 2
    until(lambda: not left_of(checkout), limit=60)


def left_of(checkout):
    """Processes of the run, which all have its folder among their words or their environment."""
    mark, found = str(checkout).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] * (mark in (process / "environ").read_bytes())
        except OSError:  # it ended, or is not ours
            continue
    return found
