"""A run on two nodes of a Slurm job: Ray on both, verl and vLLM on Ray, and the end of all their processes."""

from pathlib import Path

import pytest
import yaml

from redraft.files import read_json, read_json_lines
from tests.slurm.campaign import MARKS, copy_to, end, site, start
from tests.slurm.cluster import Cluster, until
from tests.verl_runs import LAYOUT, LIMIT, WITH_VLLM, add_cells, gathered, total

pytestmark = [*MARKS, pytest.mark.thorough, WITH_VLLM]

VARIANT = "dapo-weighted"
RUN = LAYOUT.run(f"spec_rl/{VARIANT}", 0)


@pytest.fixture
def checkout(tmp_path):
    """The preset for two cores on two nodes, each with a processor in place of a GPU, and a cell of four steps."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    copy_to(folder)
    site(folder, partition="wide", cpus=8, memory_gb=19, runtime="60m")
    file = folder / "experiments/presets/verl-tiny.yaml"
    preset = yaml.safe_load(file.read_text())
    preset["engine"]["nodes"] = 2
    file.write_text(yaml.safe_dump(preset, sort_keys=False))
    add_cells(
        folder,
        {VARIANT: {"algorithm": {"kind": "dapo"}, "reuse": {"kind": "weighted"}, "trainer": {"temperature": 0.7}}},
    )
    return folder


def test_verl_trains_over_two_nodes_of_a_job_and_leaves_nothing_behind(checkout, tmp_path):
    run = checkout / RUN
    with Cluster(tmp_path / "slurm", port=27817) as cluster:
        process = start(
            cluster, checkout, "--config", "preset=verl-tiny", "--", str(RUN / "manifest.json"), limit=2 * LIMIT
        )
        code, text = end(process)
        assert code == 0, text[-3000:]
        ended = cluster.ask("squeue", "--noheader", "--states=completed", "--format=%D %N").splitlines()
        # Slurm forgets the job of the initial policy after five minutes, which a run on a quick machine does not take.
        assert "2 one,two" in ended
    records = read_json_lines(run / "steps.jsonl")
    assert [(r["step"], r["epoch"], r["rollouts"]) for r in records] == [(i, i // 2, 64) for i in range(4)]
    assert total(records, "tokens_reused", 0) == 0 < total(records, "tokens_reused", 1)
    updates = [record for record in records if record["updated"]]
    assert [r["updated"] for r in records] == gathered(records)
    assert [r["training_step"] for r in updates] == list(range(1, len(updates) + 1))
    assert max(r["log_prob_gap_max"] for r in updates) < 1e-3, "else a replica of vLLM kept old weights"
    assert any(r["gradient_norm"] > 0 for r in updates)
    weights = [record["mean_weight"] for record in updates]
    of_drafts = [weight for record, weight in zip(updates, weights, strict=True) if record["tokens_reused"]]
    assert any(abs(weight - 1) > 1e-3 for weight in of_drafts)
    assert all(0.2 < weight < 5 for weight in weights)
    assert all(weight == pytest.approx(1, abs=1e-3) for weight in weights if weight not in of_drafts)
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
