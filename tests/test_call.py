"""A call of the workflow by `redraft run`: it waits for others, and its processes end with it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from redraft.errors import UserError
from redraft.layout import require, require_writable
from redraft.ops.workflow import call
from redraft.ops.workflow.recover import RunningParts

PARENT = """
import sys
from pathlib import Path
from redraft.ops.workflow.call import call
sys.exit(call([sys.executable, "-c", sys.argv[1]], Path("results")))
"""
CHILD = """
import subprocess, sys, time
inner = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN if {0} else signal.SIG_DFL);"
    "print('ready', flush=True); time.sleep(60)"
)
subprocess.Popen([sys.executable, "-c", inner]); time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, hangup):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(call, "POLL_SECONDS", 0.01)
    return tmp_path


@pytest.mark.parametrize(
    ("number", "send"),
    [
        (signal.SIGTERM, os.kill),
        (signal.SIGHUP, os.kill),
        (signal.SIGHUP, os.killpg),  # as the kernel does when a terminal closes
    ],
)
def test_a_signal_ends_all_processes_of_the_call(folder, number, send):
    command = [sys.executable, "-c", PARENT, CHILD.format(False)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        started = psutil.Process(parent.pid).children(recursive=True)
        send(parent.pid, number)
        assert parent.wait(30) == 128 + number
    assert len(started) == 2
    assert not psutil.wait_procs(started, timeout=5)[1]


ORDERLY = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("unlocked", flush=True), sys.exit(1)))
print("ready", flush=True); time.sleep(60)
"""


def test_when_the_terminal_closes_the_workflow_gets_sigterm_on_which_it_unlocks(folder):
    command = [sys.executable, "-c", PARENT, ORDERLY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGHUP)
        assert parent.stdout.readline() == "unlocked\n"
        assert parent.wait(30) == 128 + signal.SIGHUP


def test_under_nohup_a_call_goes_on_when_the_terminal_closes(folder):
    child = "import time; print('ready', flush=True); time.sleep(0.5); print('done', flush=True)"
    command = ["nohup", sys.executable, "-c", PARENT, child]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGHUP)
        assert parent.stdout.readline() == "done\n"
        assert parent.wait(30) == 0


def test_a_process_that_ignores_sigterm_is_killed(folder, monkeypatch):
    monkeypatch.setattr(call, "GRACE_SECONDS", 0.2)
    with subprocess.Popen([sys.executable, "-c", CHILD.format(True)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        started = [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]
        call.end(process.pid)
        assert not psutil.wait_procs(started, timeout=5)[1]
    call.end(process.pid)  # it has ended already


def test_a_second_call_waits_with_one_line(folder):
    (folder / "results").mkdir()
    lines, ran = [], []
    lock = FileLock(folder / "results" / call.LOCK, thread_local=False)

    def second():
        with call.exclusive(folder / "results", lines.append):
            ran.append(True)

    with lock:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        assert not ran
    thread.join(10)
    assert ran
    assert [line.partition(" in ")[0] for line in lines] == ["waiting for another `redraft run`"]


def test_a_call_waits_for_a_workflow_of_the_folder(folder, monkeypatch):
    found, lines = iter([(7,), (7,), ()]), []
    monkeypatch.setattr(call, "find_running", lambda _: RunningParts(next(found)))
    with call.exclusive(folder / "results", lines.append):
        assert next(found, None) is None
    assert lines == ["waiting for a workflow (process 7) in this folder to end; Ctrl-C ends the wait"]


def test_results_that_cannot_be_written_are_one_error(folder, monkeypatch):
    require_writable(Path("results"))
    Path("results").write_text("")
    with pytest.raises(UserError, match=r"results: results cannot be written here: this is a file"):
        require_writable(Path("results"))
    Path("results").unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=r"this folder is read-only"):
        require_writable(Path("results/tiny"))


def test_a_run_needs_the_workflow_and_not_only_experiments(folder):
    (folder / "experiments/presets").mkdir(parents=True)
    require("results")
    with pytest.raises(UserError, match="no workflow here"):
        require("Snakefile")
