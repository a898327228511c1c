"""Campaigns on a real Slurm on this machine (tests/slurm/up.sh), undisturbed and under faults."""

import os
import re
import shutil
import signal
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.slurm.campaign import CELLS, MARKS, SITE, STEPS, Campaign, end, signal_to
from tests.slurm.cluster import Cluster, trainer, until

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A finished campaign and its output."""
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
    """Records and weights equal those of an undisturbed campaign, and no two processes held a folder at once."""
    for cell in CELLS:
        assert campaign.records(cell) == undisturbed[0].records(cell)
        assert campaign.hashes(cell) == undisturbed[0].hashes(cell) != {}
        assert_one_at_a_time(campaign.leases(cell))


def assert_one_at_a_time(leases):
    assert leases
    for before, after in pairwise(leases):
        left = datetime.fromisoformat(before["released"]).timestamp() if before["released"] else before["beat"]
        assert left <= datetime.fromisoformat(after["owner"]["started"]).timestamp() + 1


def assert_later_and_later(resumed, attempts):
    """Each attempt resumed from a checkpoint of the one before."""
    assert len(resumed) == attempts
    assert resumed[0] == 0
    assert all(step >= 2 for step in resumed[1:])
    assert resumed == sorted(resumed)


def frozen(campaign):
    """Hash of the one frozen copy from which a campaign ran."""
    (copy,) = (campaign.folder / "results/scheduled/code").iterdir()
    return copy.name


def test_the_literal_command_runs_a_campaign_to_its_report(undisturbed):
    campaign, text = undisturbed
    assert re.search(r"^\[ *\d+/\d+\] report ", text, flags=re.M)
    assert (campaign.folder / "results/scheduled/report.html").exists()
    for cell in CELLS:
        assert len(campaign.records(cell)) == STEPS
        assert len(campaign.trainings(cell)) == 1


def test_what_trains_samples_or_grades_is_a_job_and_what_is_light_runs_here(undisturbed, cluster):
    jobs = cluster.jobs("completed").values()
    rules = {re.match(r"rule_([a-z_]+?)(_wildcards|$)", job)[1] for job in jobs}
    assert rules == {"make_model", "train", "generate", "generate_initial", "grade", "diversity"}
    owners = [undisturbed[0].trainings(cell)[0]["owner"] for cell in CELLS]
    assert {owner["slurm_job"] for owner in owners} <= set(cluster.jobs("completed"))
    assert {owner["devices"] for owner in owners} <= {"0", "1"}


def test_a_cancelled_a_killed_and_a_slow_job_go_on_from_their_checkpoints(disturbed, undisturbed, cluster):
    process = disturbed.start("--retries", "2", "--", *disturbed.manifests())
    killed, cancelled = CELLS
    halted = disturbed.halted(3)
    for file in ("src/redraft/train/job.py", "src/redraft/cli/app.py", "Snakefile", "workflows/rules/train.smk"):
        (disturbed.folder / file).write_text("an edit that nothing in flight may see\n")
    cluster.ask("scancel", cluster.running(cancelled))
    signal_to(halted[killed], signal.SIGKILL)
    until(lambda: len(disturbed.resumed(killed)) == 2)
    disturbed.halted(disturbed.resumed(killed)[1] + 2, [killed])
    cluster.ask("scontrol", "update", f"jobid={cluster.running(killed)}", "endtime=now")
    code, text = end(process)
    assert code == 0, text[-3000:]
    states = cluster.ask("squeue", "--noheader", "--states=all", "--format=%T").split()
    assert {"CANCELLED", "FAILED", "TIMEOUT"} <= set(states)
    assert_later_and_later(disturbed.resumed(cancelled), attempts=2)
    assert_later_and_later(disturbed.resumed(killed), attempts=3)
    assert_ended_alike(disturbed, undisturbed)
    assert {manifest["git"]["code"] for manifest in map(disturbed.manifest, CELLS)} == {frozen(disturbed)}
    killed_run = disturbed.manifest(killed)
    assert killed_run["preemptions"] == 2
    assert len({part["slurm_job"] for part in killed_run["processes"]}) == 3
    assert killed_run["node"]["slurm_job"] == killed_run["processes"][-1]["slurm_job"]


def test_preempted_jobs_go_on_from_their_checkpoints(disturbed, undisturbed, cluster):
    process = disturbed.start("--", *disturbed.manifests())
    disturbed.halted(3)
    cluster.submit("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap", "true")
    code, text = end(process)
    assert code == 0, text[-3000:]
    assert cluster.ask("squeue", "--noheader", "--states=preempted", "--format=%T").split() == ["PREEMPTED"] * 2
    for cell in CELLS:
        assert_later_and_later(disturbed.resumed(cell), attempts=2)
        assert disturbed.manifest(cell)["preemptions"] == 1
    assert_ended_alike(disturbed, undisturbed)


def test_a_campaign_outlives_its_controller_and_waits_for_a_drained_node(disturbed, undisturbed, cluster):
    scores = [str(Path(name).with_name("scores.json")) for name in disturbed.manifests()]
    process = disturbed.start("--", *scores)
    halted = disturbed.halted(3)
    assert sorted(disturbed.trainings(cell)[0]["owner"]["devices"] for cell in CELLS) == ["0", "1"], "both run now"
    # Drained while both train: after that, a job that becomes ready would start at once.
    cluster.ask("scontrol", "update", "nodename=one", "state=drain", "reason=test")
    try:
        cluster.stop_controller()
        for training in halted.values():
            signal_to(training, signal.SIGCONT)
        until(lambda: not any(trainer(disturbed.folder, cell) for cell in CELLS))
        cluster.start_controller()
        until(lambda: any("rule_generate" in job for job in cluster.jobs("pending").values()))
        assert process.poll() is None
    finally:
        cluster.ask("scontrol", "update", "nodename=one", "state=resume")
    code, text = end(process)
    assert code == 0, text[-3000:]
    assert [len(disturbed.trainings(cell)) for cell in CELLS] == [1, 1]
    assert_ended_alike(disturbed, undisturbed)


def test_snakemake_may_be_interrupted_killed_and_terminated_and_memory_may_run_out(disturbed, undisturbed, cluster):
    targets = disturbed.manifests()
    process = disturbed.start("--", *targets)
    disturbed.halted(3)
    process.send_signal(signal.SIGINT)
    code, text = end(process)
    assert code != 0
    assert "stopping (Ctrl-C): 2 jobs on Slurm are cancelled" in text, text
    assert "Error in rule" not in text
    until(lambda: not cluster.jobs("running", "pending", "completing"))

    process = disturbed.start("--", *targets)
    orphans = disturbed.halted(5)
    os.killpg(process.pid, signal.SIGKILL)
    end(process)
    before = {cell: disturbed.records(cell) for cell in CELLS}
    for unlocked in (False, True):
        if unlocked:
            assert disturbed.call("--unlock")[0] == 0
        code, text = disturbed.call("--retries", "0", "--", *targets)
        assert code != 0
        assert "jobs of an earlier call are still in Slurm's queue" in text, text
        assert "redraft recover --cancel" in text
        assert "--unlock" not in text
    assert len(cluster.jobs("running", "pending", "completing")) == len(orphans), "nothing was submitted"
    assert before == {cell: disturbed.records(cell) for cell in CELLS}
    assert all(Path(f"/proc/{orphan}").exists() for orphan in orphans.values())
    cluster.cancel_all()

    disturbed.site(**SITE | {"memory_gb": 0.25})
    code, text = disturbed.call("--retries", "0", "--", *targets)
    assert code != 0
    logs = [log.read_text() for log in (disturbed.folder / ".snakemake/slurm_logs").rglob("*.log")]
    assert sum("memory limit" in log for log in logs) == len(CELLS), text[-3000:]
    assert not any((disturbed.folder / target).exists() for target in targets)
    disturbed.site(**SITE)

    process = disturbed.start("--", *targets)
    disturbed.halted(7)
    process.send_signal(signal.SIGTERM)
    code, text = end(process)
    assert code != 0
    assert "stopping (SIGTERM): 2 jobs on Slurm are cancelled" in text, text
    assert "Traceback" not in text
    until(lambda: not cluster.jobs("running", "pending", "completing"))
    finished = {
        file: (disturbed.folder / file).stat().st_mtime_ns for file in targets if (disturbed.folder / file).exists()
    }
    code, text = disturbed.call("--", *targets)
    assert code == 0, text[-3000:]
    assert finished == {file: (disturbed.folder / file).stat().st_mtime_ns for file in finished}
    assert_ended_alike(disturbed, undisturbed)
