"""The literal command on a Slurm that the campaign's user has told nothing about, and what he is told of it."""

import re
import shutil
import signal

import pytest

from tests.slurm.campaign import CELLS, MARKS, STEPS, Campaign, end
from tests.slurm.cluster import Cluster

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("slurm"), port=22817) as running:
        yield running


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    """A campaign without GPUs and with an empty site file, run to its end, and its output."""
    campaign = Campaign(tmp_path_factory.mktemp("campaign"), cluster, gpus=0)
    campaign.site()
    code, text = campaign.call("--local-cores", "1", "reproduction")
    assert code == 0, text[-3000:]
    return campaign, text


@pytest.fixture
def campaign(finished, cluster, tmp_path):
    """The same with its initial policies and nothing else."""
    made = Campaign(tmp_path, cluster, gpus=0)
    shutil.copytree(finished[0].folder / "results/scheduled/models", tmp_path / "results/scheduled/models")
    yield made
    made.stop()


def test_the_command_runs_to_its_end_and_its_jobs_ask_for_no_more_than_their_preset_needs(finished, cluster):
    campaign, text = finished
    assert (campaign.folder / "results/scheduled/report.html").exists()
    assert all(len(campaign.records(cell)) == STEPS for cell in CELLS)
    asked = cluster.ask("squeue", "--noheader", "--states=completed", "--format=%C %m %l").splitlines()
    assert set(asked) == {"1 3G 1:00:00"}
    assert "never start" not in text


def test_the_progress_counts_jobs_that_wait_apart_from_those_that_run(finished):
    lines = finished[1].splitlines()
    for cell in CELLS:
        (queued,) = [i for i, line in enumerate(lines) if re.match(rf"  queue  train \S+ {cell} ", line)]
        assert any(re.match(rf"  start  train \S+ {cell} ", line) for line in lines[queued:])
    ends = [line for line in lines if line.startswith("[")]
    assert all(re.search(r"; \d+ run, \d+ wait$", line) for line in ends[1:])
    assert ends[-1].endswith("; 0 run, 0 wait")


def test_jobs_beside_snakemake_are_no_more_at_once_than_its_cores(finished):
    running, queued, most = set(), set(), 0
    for line in finished[1].splitlines():
        if found := re.match(r"  (queue|start)  (.+)", line):
            (queued if found[1] == "queue" else running).add(found[2])
        elif found := re.match(r"\[.*?\] (.+?) \(", line):
            running.discard(found[1])
        most = max(most, len(running - queued))
    assert most == 1


def test_light_jobs_share_a_submission_in_groups(finished, cluster, campaign):
    """All grades and diversities of a finished campaign again, in one job of Slurm."""
    results = campaign.folder / "results"
    shutil.copytree(finished[0].folder / "results", results, dirs_exist_ok=True)
    graded = sorted(results.rglob("scores.json"))
    scores = {file: file.read_bytes() for file in graded}
    for file in graded:
        file.unlink()
    shutil.rmtree(results / "scheduled/collected")  # or Snakemake needs no scores
    listed = ("squeue", "--noheader", "--states=all", "--format=%i")
    before = set(cluster.ask(*listed).split())
    groups = ("--groups", "grade=grading", "diversity=grading", "--group-components=grading=20")
    code, text = campaign.call("reproduction", *groups)
    assert code == 0, text[-3000:]
    assert {file: file.read_bytes() for file in graded} == scores
    assert len(graded) > 1
    assert len(set(cluster.ask(*listed).split()) - before) == 1, text


def test_what_could_never_start_is_refused_with_the_keys_to_set_before_anything_is_submitted(campaign, cluster):
    before = cluster.jobs()
    campaign.site(stages={"train": {"runtime": "2h", "cpus": 9}, "grade": {"partition": "grande"}})
    code, text = campaign.call("reproduction")
    assert code != 0
    assert "train requests 9 processors, 3 GiB for 2 hours" in text, text[-3000:]
    assert "partition gpu (the default): 1 hour at most; 1 node of 8 processors, 19.53 GiB, 2 GPUs (pretended)" in text
    assert (
        "set stages.train.runtime and stages.train.cpus, or else stages.train.partition, in profiles/slurm/site.yaml"
        in text
    )
    assert "grade uses partition grande, which does not exist; set partition to one of gpu, urgent, wide" in text
    assert "evaluate" not in text
    assert cluster.jobs() == before


def test_a_job_that_waits_in_vain_is_named_with_its_reason_at_once(campaign):
    """Some qualities of service lift a partition's limits, so that only Slurm knows that this one does not."""
    campaign.site(stages={"train": {"runtime": "2h", "qos": "normal"}})
    process = campaign.start("--", *campaign.manifests())
    said = "".join(line for line in up_to(process.stdout, "profiles/slurm/site.yaml"))
    process.send_signal(signal.SIGINT)
    end(process)
    assert re.search(
        r"^2 jobs of train will never start: PartitionTimeLimit \(\d+ and others\); Ctrl-C ends all$", said, re.M
    )
    assert "train requests 1 processor, 3 GiB for 2 hours" in said
    assert "partition gpu (the default): 1 hour at most" in said
    assert "set stages.train.runtime, or else stages.train.partition, in profiles/slurm/site.yaml" in said


def up_to(lines, text):
    for line in lines:
        yield line
        if text in line:
            return
