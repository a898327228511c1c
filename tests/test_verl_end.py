"""verl's processes end with their launcher, however that ends, whatever their main thread does meanwhile."""

import os
import subprocess
import sys

from tests.processes import processes_of, until

DEAF = """
import signal, subprocess, sys, threading, time
from redraft.train.verl.__main__ import _end_with_the_launcher
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
threading.Thread(target=_end_with_the_launcher, daemon=True).start()
time.sleep(600)
"""
"""A trainer that hears no signal, as one that is stuck in Ray's shutdown, and a worker that looks after no parent."""

LAUNCHER = f"""
import os, sys, time
from pathlib import Path
from redraft.train.verl.launch import _process
with _process([sys.executable, "-c", {DEAF!r}], dict(os.environ), Path(sys.argv[1])):
    time.sleep(600)
"""


def test_a_trainer_that_ends_while_it_is_watched_ends_well():
    ends = (
        DEAF[: DEAF.index("signal.signal")]
        + "threading.Thread(target=_end_with_the_launcher, daemon=True).start()\ntime.sleep(1)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", ends], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with trainer:
        trainer.wait(timeout=60)
        assert (trainer.returncode, trainer.stderr.read()) == (0, b"")


def test_no_process_outlives_a_killed_launcher(tmp_path):
    marked = os.environ | {"REDRAFT_TEST": str(tmp_path)}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path / "log")], env=marked)
    until(lambda: len(processes_of(str(tmp_path))) == 3, 60, launcher)
    launcher.kill()
    launcher.wait()
    until(lambda: not processes_of(str(tmp_path)), 20)
