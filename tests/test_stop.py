"""Ctrl-C and SIGTERM to a campaign."""

import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from redraft.ops.slurm import jobs
from redraft.ops.workflow.stop import RECOVER, RESUME, stop_text

CALL = """
import signal, subprocess, sys, threading, time
from types import SimpleNamespace
from redraft.ops.workflow import stop

stop.GRACE_SECONDS = float(sys.argv[1])
job = subprocess.Popen(sys.argv[3:])
handler = SimpleNamespace(stop=lambda: print("quiet", flush=True))
workflow = SimpleNamespace(
    scheduler=SimpleNamespace(running=[SimpleNamespace(is_local=True)]),
    logger_manager=SimpleNamespace(get_log_handlers=lambda: [handler, object()]),
    persistence=SimpleNamespace(unlock=lambda: print("unlocked", flush=True)),
    local_exec=sys.argv[2] == "here",
)
signal.signal(signal.SIGTERM, lambda *_: print("Snakemake's"))
stop.Stop(workflow).install()
try:
    print(job.pid, flush=True)
    while True:
        time.sleep(60)
except SystemExit:  # Snakemake's scheduler cancels its jobs, and its executor waits for them
    print("job ended with", job.wait(), flush=True)
    raise
"""
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"]


@pytest.fixture
def campaign():
    """Starts a call with one running job, which may be one on Slurm; returns the call and the job's process id."""
    calls = []

    def start(job, grace=300.0, where="here"):
        command = [sys.executable, "-c", CALL, str(grace), where, *job]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        calls.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in calls:
        process.kill()


@pytest.mark.parametrize(("number", "grace"), [(signal.SIGTERM, 300.0), (signal.SIGINT, 0.1)])
def test_a_signal_says_what_it_does_and_ends_jobs_that_run_here(campaign, number, grace):
    process, _ = campaign(["sleep", "300"], grace)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert output.splitlines() == ["quiet", f"job ended with {-signal.SIGTERM}"]
    cause = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number]
    assert errors == f"\n{stop_text(cause, 1, 0)}\n", "and no traceback"


@pytest.mark.parametrize(
    ("where", "left"), [("here", ""), ("slurm", f"; jobs may be left in Slurm's queue: {RECOVER}")]
)
def test_a_second_ctrl_c_kills_and_unlocks_without_a_traceback(campaign, where, left):
    process, job = campaign(STUBBORN, where=where)
    process.send_signal(signal.SIGINT)
    assert "stopping (Ctrl-C)" in process.stderr.readline() + process.stderr.readline()
    time.sleep(0.2)
    assert process.poll() is None, "it waits for its job"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "unlocked"
    left = f"; jobs may be left in Slurm's queue: {RECOVER}"
    assert errors == f"\nstopped without waiting{left if where == 'slurm' else ''}\n"
    state = subprocess.run(["ps", "-o", "stat=", str(job)], capture_output=True, text=True, check=False).stdout
    # `ZN` if the tests run under nice.
    assert state.strip()[:1] in ("", "Z"), "it ignores SIGTERM"


def test_what_slurm_prints_in_another_encoding_is_read(tmp_path):
    program = tmp_path / "sinfo"
    program.write_text("#!/bin/sh\nprintf 'node1|drained|Speicher pr\\374fen\\n'\n")
    program.chmod(0o755)
    assert jobs.output_of(str(program)) == "node1|drained|Speicher pr\N{REPLACEMENT CHARACTER}fen\n"


def test_the_line_of_a_stop():
    assert stop_text("Ctrl-C", 0, 0) == "stopping (Ctrl-C): no job runs"
    assert stop_text("Ctrl-C", 2, 0) == (
        f"stopping (Ctrl-C): 2 running jobs end now; {RESUME}. Ctrl-C again kills them without waiting"
    )
    assert stop_text("SIGTERM", 1, 64) == (
        f"stopping (SIGTERM): 64 jobs on Slurm are cancelled, 1 running job ends now; {RESUME}. "
        f"Ctrl-C again exits without waiting for Slurm; {RECOVER}"
    )


def test_a_stop_submits_no_further_jobs_and_cancels_all_by_their_common_name(monkeypatch):
    done, warnings, answers = [], [], [""]
    asleep = threading.Thread(target=time.sleep, args=(300,), daemon=True)
    asleep.start()
    executor = SimpleNamespace(
        run_uuid="u",
        wait_thread=asleep,
        _job_submission_executor=SimpleNamespace(shutdown=lambda **options: done.append(options)),
        logger=SimpleNamespace(warning=lambda text, extra: warnings.append((text, extra))),
    )

    def output_of(*command, seconds):
        done.append(command)
        return answers[0]

    monkeypatch.setattr(jobs, "output_of", output_of)
    jobs.cancel_whole_call(SimpleNamespace(scheduler=SimpleNamespace(_executor=executor)))
    executor.cancel_jobs([])
    assert done == [{"wait": True, "cancel_futures": True}, ("scancel", "--name=u")]
    assert not warnings
    executor.wait_thread.join()
    assert asleep.is_alive(), "the end does not wait for it"
    answers[0] = None
    executor.cancel_jobs([])
    ((text, extra),) = warnings
    assert "redraft recover --cancel" in text
    assert extra == {"always_shown": True}, "the progress shows nothing else after a stop"
    local = SimpleNamespace()
    jobs.cancel_whole_call(SimpleNamespace(scheduler=SimpleNamespace(_executor=local)))
    assert vars(local) == {}
