"""`redraft recover` cleans up after killed processes and leaves alone all that a living one holds."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from redraft.errors import UserError
from redraft.ops.locking.entries import latest
from redraft.ops.locking.lease import acquire, lease
from redraft.ops.locking.owner import EXPIRED_SECONDS
from redraft.ops.slurm import jobs as slurm
from redraft.ops.workflow import recover as recovery
from redraft.ops.workflow.recover import RunningParts, find_running, recover
from tests.test_status import killed

SNAKEFILE = "rule all:\n    output: 'x.txt'\n    shell: 'sleep 600'\n"


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A folder with a workflow and a run, where there is no Slurm."""
    monkeypatch.setattr(slurm, "jobs_of", lambda folder: {})
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "results" / "run").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def results(campaign):
    return campaign / "results"


@pytest.fixture
def start():
    """Start processes that end with the test, with all that they started."""
    started = []

    def begin(command, folder):
        started.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is not None:
            continue
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


def until(condition):
    deadline = time.time() + 60
    while not condition():
        assert time.time() < deadline
        time.sleep(0.05)


def litter(run):
    """Write the files of processes that were killed while they wrote."""
    names = [".steps.jsonl.999999.tmp", "checkpoints/f/.step-000004/model.safetensors", "policies/.step-0004/x.json"]
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("half")
    kept = [
        run / "checkpoints/f/step-000002/state.json",
        run / "steps.jsonl",
        run / "checkpoints/f/damaged-step-000003/x",
    ]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("whole")
    return kept


def test_a_dead_owner_is_released_and_what_it_left_unfinished_removed(campaign, results):
    run = results / "run"
    kept = litter(run)
    killed(run)
    said = recover(results, campaign)
    assert latest(run).free
    assert latest(run).number == 2
    assert sorted(path.name for path in run.rglob(".*")) == []
    assert all(file.read_text() == "whole" for file in kept)
    assert len(said) == 4
    assert "is dead" in said[0]
    assert recover(results, campaign) == [], "there is nothing left to do"


def test_a_living_owner_keeps_its_files(campaign, results):
    run = results / "run"
    litter(run)
    with lease(run):
        said = recover(results, campaign)
        assert latest(run).number == 1
    assert ["kept for process" in line for line in said] == [True]
    assert len(list(run.rglob(".*"))) == 3


def test_one_who_takes_the_folder_meanwhile_keeps_it(campaign, results, monkeypatch):
    run = results / "run"
    litter(run)
    killed(run)
    original, others = recovery.acquire, []

    def late(folder, *arguments, **settings):
        others.append(acquire(folder))
        return original(folder, *arguments, **settings)

    monkeypatch.setattr(recovery, "acquire", late)
    said = recover(results, campaign)
    assert "left alone" in said[0]
    others[0].check()
    assert len(list(run.rglob(".step-*"))) == 2


def test_temporary_files_outside_of_runs_go_when_they_are_old_and_nobody_writes_them(campaign, results):
    old, new, own = (
        results / f".{name}.tmp" for name in ("old.csv.999999", "new.csv.999999", f"own.csv.{os.getpid()}")
    )
    for file in (old, new, own):
        file.write_text("half")
    for file in (old, own):
        os.utime(file, (time.time() - 2 * EXPIRED_SECONDS,) * 2)
    assert recover(results, campaign) == [f"removed {old}, which was unfinished"]
    assert (new.exists(), own.exists()) == (True, True)


def test_a_living_workflow_is_refused_and_a_killed_ones_lock_removed(campaign, results, start):
    run = results / "run"
    killed(run)
    process = start([sys.executable, "-m", "snakemake", "--cores", "1"], campaign)
    locks = campaign / ".snakemake" / "locks"
    until(lambda: locks.is_dir() and any(locks.iterdir()))
    with pytest.raises(UserError, match="a workflow of this folder is running") as error:
        recover(results, campaign)
    assert str(process.pid) in error.value.value
    assert not latest(run).free, "nothing was done"
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):  # it ended with its parent
            child.kill()
    psutil.wait_procs(children)
    said = recover(results, campaign)
    assert said[-1] == f"unlocked {campaign}"
    assert not locks.exists()


def test_a_job_of_slurms_on_this_machine_is_no_workflow(campaign, start):
    """It is a snakemake too, which the one that submitted it has told to run one job."""
    (campaign / "snakemake.py").write_text("import time; time.sleep(600)")
    (campaign / "redraft.py").write_text("import time; time.sleep(600)")
    job = start([sys.executable, "-m", "snakemake", "--mode", "remote", "--cores", "1"], campaign)
    orphan = start([sys.executable, "-m", "redraft", "stage"], campaign)
    until(lambda: find_running(campaign).stages == (orphan.pid,))
    assert find_running(campaign).workflows == ()
    assert job.poll() is None


def test_a_stage_without_a_workflow_is_named_and_the_lock_stays(campaign, results, start):
    (campaign / ".snakemake" / "locks").mkdir(parents=True)
    lock = campaign / ".snakemake" / "locks" / "0.output.lock"
    lock.write_text("x")
    (campaign / "redraft.py").write_text("import time; time.sleep(600)")
    orphan = start([sys.executable, "-m", "redraft", "stage"], campaign)
    until(lambda: find_running(campaign).stages == (orphan.pid,))
    said = recover(results, campaign)
    assert said[0].startswith(f"process {orphan.pid} runs without a workflow")
    assert "lock" in said[-1]
    assert lock.exists()
    assert orphan.poll() is None


def test_processes_of_another_folder_are_none_of_this_campaign(campaign, results, start, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "redraft.py").write_text("import time; time.sleep(600)")
    orphan = start([sys.executable, "-m", "redraft", "stage"], other)
    until(lambda: find_running(other).stages == (orphan.pid,))
    assert find_running(campaign) == RunningParts()


SQUEUE = """#!/bin/sh
case "$*" in
*%Z*) cat {queue} 2>/dev/null ;;
*) cut -d'|' -f1 {queue} 2>/dev/null ;;
esac
exit 0
"""


@pytest.fixture
def queue(campaign, monkeypatch):
    """A queue of Slurm's as a file: job, state, name and working directory a line."""
    monkeypatch.undo()
    file, bin_folder = campaign / "queue", campaign / "bin"
    bin_folder.mkdir()
    (bin_folder / "squeue").write_text(SQUEUE.format(queue=file))
    (bin_folder / "scancel").write_text(f'#!/bin/sh\nfor job; do sed -i "/^$job|/d" {file}; done\n')
    for program in bin_folder.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    name = "50aa64e8-0d6c-4f1e-9a3b-2f7d1c5e8b90"
    file.write_text(
        f"7|RUNNING|{name}|{campaign}\n8|RUNNING|{name}|/elsewhere\n9|PENDING|nightly_{name}|{campaign}\n"
        f"10|RUNNING|interactive|{campaign}\n"
    )
    return file


def test_jobs_of_this_folder_are_named_and_cancelled_only_when_asked(queue, campaign, results):
    said = recover(results, campaign)
    assert said[:2] == [f"Slurm job {job} is in the queue; --cancel cancels it" for job in (7, 9)]
    assert len(queue.read_text().splitlines()) == 4
    assert recover(results, campaign, cancel=True) == ["cancelled Slurm jobs 7, 9"]
    assert [line.split("|")[0] for line in queue.read_text().splitlines()] == ["8", "10"]


def test_a_job_that_ends_before_it_is_cancelled_is_no_error(queue, campaign, results):
    scancel = campaign / "bin" / "scancel"
    scancel.write_text(f"{scancel.read_text()}echo 'Invalid job id specified' >&2\nexit 1\n")
    assert recover(results, campaign, cancel=True) == ["cancelled Slurm jobs 7, 9"]


def test_a_silent_slurm_during_a_cancellation_is_named(queue, campaign, results, monkeypatch):
    monkeypatch.setattr("redraft.ops.slurm.jobs.CANCEL_SECONDS", 1)
    (campaign / "bin" / "scancel").write_text(f"#!/bin/sh\nprintf '#!/bin/sh\\nexit 1\\n' > {campaign}/bin/squeue\n")
    with pytest.raises(UserError, match="cancelled jobs do not end"):
        recover(results, campaign, cancel=True)


def test_without_an_answer_of_slurms_nothing_is_done(queue, campaign, results):
    (campaign / "bin" / "squeue").write_text("#!/bin/sh\necho down >&2\nexit 1\n")
    killed(results / "run")
    with pytest.raises(UserError, match="Slurm does not answer"):
        recover(results, campaign)
    assert not latest(results / "run").free


def test_nothing_to_do_says_nothing(campaign, results):
    assert recover(results, campaign) == []
    assert recover(campaign / "no results yet", Path(campaign)) == []
