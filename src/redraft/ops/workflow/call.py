"""A call of Snakemake by `redraft run`: one at a time in a folder, and its processes end with it."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from redraft.messages import echo
from redraft.ops.locking.termination import exit_on_signal, ignore_hangup
from redraft.ops.workflow.recover import find_running

LOCK = ".run.lock"
"""File in the folder of results that a call holds while it runs."""
POLL_SECONDS = 2.0
GRACE_SECONDS = 30.0
"""Time that processes get to end after SIGTERM; training writes nothing in it that would be lost."""


def call(command: Sequence[str], results: Path, stdout: TextIO | None = None) -> int:
    """Run a command that calls Snakemake in the working directory, and return its exit code.

    SIGTERM and SIGHUP end all of its processes, so that no training goes on without its command. The processes
    themselves ignore SIGHUP, since Snakemake would end at once and keep its lock: this process sends them SIGTERM.

    Args:
        command: command line.
        results: folder of results.
        stdout: standard output of the command; this process's if None.
    """
    with exclusive(results, lambda line: echo(line, err=True)), exit_on_signal():
        process = subprocess.Popen(command, stdout=stdout, preexec_fn=ignore_hangup)  # noqa: PLW1509, no thread runs
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has sent it to all processes
            process.wait()
            raise
        except SystemExit:
            end(process.pid)
            raise


@contextmanager
def exclusive(results: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other call and no other workflow runs in the working directory, since Snakemake locks it.

    Args:
        results: folder of results.
        report: gets one line if there is something to wait for.
    """
    results.mkdir(parents=True, exist_ok=True)
    lock, waiting = FileLock(results / LOCK), False
    while True:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            reason = "another `redraft run`"
        else:
            # A `snakemake` that was called directly does not hold this lock.
            if not (workflows := find_running(Path.cwd()).workflows):
                break
            lock.release()
            reason = f"a workflow (process {workflows[0]})"
        if not waiting:
            report(f"waiting for {reason} in this folder to end; Ctrl-C ends the wait")
            waiting = True
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def end(pid: int) -> None:
    """End a process and its descendants by SIGTERM, and after `GRACE_SECONDS` by SIGKILL."""
    try:
        top = psutil.Process(pid)
        # Listed before any of them ends: children of an ended process are no longer its descendants.
        processes = [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        return
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                signal(process)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
