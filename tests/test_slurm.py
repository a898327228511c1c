"""Campaigns on a real Slurm on this machine (tests/slurm/up.sh), undisturbed and with all that can happen to one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.slurm.campaign import CELLS, LAUNCHER, SITE, Campaign, end, signal_to
from tests.slurm.cluster import Cluster, trainer, until

MISSING = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name, path="/usr/sbin:/sbin")]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)} (docs/slurm.md)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons run jobs of several users only as root"),
    pytest.mark.skipif(not (LAUNCHER / ".ready").exists(), reason="no environment that submits jobs: make launcher"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A finished campaign, and what was printed."""
    campaign = Campaign(tmp_path_factory.mktemp("campaign"), cluster)
    code, text = campaign.call("reproduction")
    assert code == 0, text[-3000:]
    return campaign, text


@pytest.fixture
def disturbed(undisturbed, cluster, tmp_path):
    """A campaign that has its initial policies and nothing else."""
    campaign = Campaign(tmp_path, cluster)
    shutil.copytree(undisturbed[0].folder / "results/scheduled/models", tmp_path / "results/scheduled/models")
    yield campaign
    campaign.stop()


def assert_ended_alike(campaign, undisturbed):
    """Everything is there, from the same steps to the same weights, and no two worked in one folder at once."""
    for cell in CELLS:
        assert campaign.records(cell) == undisturbed[0].records(cell)
        assert campaign.hashes(cell) == undisturbed[0].hashes(cell) != {}
        assert_one_at_a_time(campaign.leases(cell))


def assert_one_at_a_time(leases):
    assert leases
    for before, after in pairwise(leases):
        left = datetime.fromisoformat(before["released"]).timestamp() if before["released"] else before["beat"]
        assert left <= datetime.fromisoformat(after["owner"]["started"]).timestamp() + 1


def end_of_terminated(process):
    """Snakemake waits for its jobs then; now and then it goes on waiting when they have ended (docs/slurm.md)."""
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_literal_command_runs_a_campaign_to_its_report(undisturbed):
    campaign, text = undisturbed
    assert re.search(r"^\[ *\d+/\d+\] report ", text, flags=re.M)
    assert (campaign.folder / "results/scheduled/report.html").exists()
    for cell in CELLS:
        assert len(campaign.records(cell)) == 12
        assert len(campaign.trainings(cell)) == 1


def test_what_trains_samples_or_grades_is_a_job_and_what_is_light_runs_here(undisturbed, cluster):
    jobs = cluster.jobs("completed").values()
    rules = {re.match(r"rule_([a-z_]+?)(_wildcards|$)", job)[1] for job in jobs}
    assert rules == {"train", "generate", "generate_initial", "grade", "diversity"}
    owners = [undisturbed[0].trainings(cell)[0]["owner"] for cell in CELLS]
    assert {owner["slurm_job"] for owner in owners} <= set(cluster.jobs("completed"))
    assert {owner["devices"] for owner in owners} <= {"0", "1"}


def test_a_cancelled_a_killed_and_a_slow_job_go_on_from_their_checkpoints(disturbed, undisturbed, cluster):
    process = disturbed.start("--retries", "2", "--", *disturbed.manifests())
    killed, cancelled = CELLS
    disturbed.trained(cancelled, 3)
    cluster.ask("scancel", cluster.running(cancelled))
    signal_to(disturbed.trained(killed, 3), signal.SIGKILL)
    until(lambda: len(disturbed.trainings(killed)) == 2)
    disturbed.trained(killed, 6)
    cluster.ask("scontrol", "update", f"jobid={cluster.running(killed)}", "endtime=now")
    code, text = end(process)
    assert code == 0, text[-3000:]
    states = cluster.ask("squeue", "--noheader", "--states=all", "--format=%T").split()
    assert {"CANCELLED", "FAILED", "TIMEOUT"} <= set(states)
    assert [lease["resumed_from"] for lease in disturbed.trainings(cancelled)] == [0, 2]
    first, second, third = (lease["resumed_from"] for lease in disturbed.trainings(killed))
    assert (first, second) == (0, 2)
    assert third >= 4
    assert_ended_alike(disturbed, undisturbed)


def test_a_campaign_outlives_its_controller_and_waits_for_a_drained_node(disturbed, undisturbed, cluster):
    scores = [str(Path(name).with_name("scores.json")) for name in disturbed.manifests()]
    process = disturbed.start("--", *scores)
    halted = [disturbed.trained(cell, 3) for cell in CELLS]
    assert sorted(disturbed.trainings(cell)[0]["owner"]["devices"] for cell in CELLS) == ["0", "1"], "both run now"
    cluster.stop_controller()
    for training in halted:
        signal_to(training, signal.SIGCONT)
    until(lambda: not any(trainer(disturbed.folder, cell) for cell in CELLS))
    cluster.start_controller()
    cluster.ask("scontrol", "update", "nodename=one", "state=drain", "reason=test")
    until(lambda: any("rule_generate" in job for job in cluster.jobs("pending").values()))
    assert process.poll() is None
    cluster.ask("scontrol", "update", "nodename=one", "state=resume")
    code, text = end(process)
    assert code == 0, text[-3000:]
    assert [len(disturbed.trainings(cell)) for cell in CELLS] == [1, 1]
    assert_ended_alike(disturbed, undisturbed)


def test_snakemake_may_be_interrupted_killed_and_terminated_and_memory_may_run_out(disturbed, undisturbed, cluster):
    targets = disturbed.manifests()
    process = disturbed.start("--", *targets)
    for cell in CELLS:
        disturbed.trained(cell, 3)
    process.send_signal(signal.SIGINT)
    assert end(process)[0] != 0
    until(lambda: not cluster.jobs("running", "pending", "completing"))

    process = disturbed.start("--", *targets)
    orphans = [disturbed.trained(cell, 5) for cell in CELLS]
    os.killpg(process.pid, signal.SIGKILL)
    end(process)
    assert disturbed.call("--unlock")[0] == 0
    before = {cell: disturbed.records(cell) for cell in CELLS}
    disturbed.site(**SITE | {"partition": "wide"})  # where there are GPUs that the two still running do not hold
    code, text = disturbed.call("--retries", "0", "--", *targets)
    assert code != 0
    assert "another process works in this folder" in text, text[-3000:]
    assert before == {cell: disturbed.records(cell) for cell in CELLS}
    assert all(Path(f"/proc/{orphan}").exists() for orphan in orphans)
    cluster.cancel_all()

    disturbed.site(**SITE | {"memory_gb": 0.25})
    code, _ = disturbed.call("--retries", "0", "--", *targets)
    assert code != 0
    assert not any((disturbed.folder / target).exists() for target in targets)
    disturbed.site(**SITE)

    process = disturbed.start("--", *targets)
    halted = [disturbed.trained(cell, 7) for cell in CELLS]
    process.send_signal(signal.SIGTERM)
    for training in halted:
        signal_to(training, signal.SIGCONT)
    until(lambda: not cluster.jobs("running", "pending", "completing"))
    end_of_terminated(process)
    disturbed.call("--unlock")
    finished = {
        file: (disturbed.folder / file).stat().st_mtime_ns for file in targets if (disturbed.folder / file).exists()
    }
    code, text = disturbed.call("--", *targets)
    assert code == 0, text[-3000:]
    assert finished == {file: (disturbed.folder / file).stat().st_mtime_ns for file in finished}
    assert_ended_alike(disturbed, undisturbed)


ON_TWO_NODES = """
import os, subprocess, sys
from pathlib import Path
from redraft.train.verl.ray_cluster import ray_cluster

ASKED = "import json, ray; ray.init(address='auto', log_to_driver=False); print(json.dumps(ray.nodes()))"
with ray_cluster(2, Path(sys.argv[1])) as variables:
    nodes = subprocess.run([sys.executable, "-c", ASKED], env=os.environ | variables, check=True, stdout=-1)
Path(sys.argv[1], "nodes.json").write_bytes(nodes.stdout)
"""


def test_ray_starts_on_all_nodes_of_a_job_and_ends_with_it(cluster, tmp_path):
    (tmp_path / "job.py").write_text(ON_TWO_NODES)
    asked = [
        "--partition=wide",
        "--nodes=2",
        "--ntasks=2",
        "--cpus-per-task=4",
        "--mem=3000",
        "--gres=gpu:2",
        "--time=5",
    ]
    command = f"{sys.executable} job.py {tmp_path}"
    cluster.submit(*asked, f"--chdir={tmp_path}", f"--output={tmp_path}/job.log", "--wrap", command)
    nodes = json.loads((tmp_path / "nodes.json").read_text().splitlines()[-1])
    assert [node["Alive"] for node in nodes] == [True, True]
    assert [node["Resources"]["GPU"] for node in nodes] == [2, 2]
    assert (tmp_path / "ray.log").exists()
    until(lambda: not cluster.jobs("running", "completing"))
