"""Ctrl-C and SIGTERM to a campaign: a line that says what happens, an orderly end, and no traceback.

Both end a campaign in the same way. Snakemake (9.27) by itself prints a traceback after a second Ctrl-C; on SIGTERM it
waits for the end of all running jobs, and may wait for its own lock.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import psutil  # type: ignore[import-untyped]

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
GRACE_SECONDS = 10.0
"""Time that local jobs get to end after Ctrl-C, which a terminal also sends to them, before they receive SIGTERM."""
RESUME = "the same command goes on later, trainings from their last checkpoint"
RECOVER = "`redraft recover --cancel` cancels those that are left"


class Stop:
    """Signal handler of one call of Snakemake."""

    def __init__(self, workflow: Any) -> None:
        self.workflow = workflow
        self.stopping = False

    def install(self) -> None:
        """Handle both signals from now on; Snakemake's scheduler sets its own handler of SIGTERM when it is made."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self)

    def __call__(self, number: int, _: FrameType | None) -> NoReturn:
        """End the campaign in order at the first signal, at once at the second."""
        if self.stopping:
            self._end_at_once(number)
        self.stopping = True
        scheduler = self.workflow.scheduler
        running = list(scheduler.running) if scheduler else []
        here = sum(job.is_local for job in running)
        _write(stop_text(SIGNALS[signal.Signals(number)], here, len(running) - here))
        for handler in self.workflow.logger_manager.get_log_handlers():
            # This project's logger then leaves out the errors of the jobs that end here.
            if hasattr(handler, "stop"):
                handler.stop()
        if here:
            # Listed before any job ends: then its children would no longer be descendants of this process.
            processes = psutil.Process().children(recursive=True)
            # SIGTERM, unlike Ctrl-C, has not reached the jobs, so they get it at once.
            grace = GRACE_SECONDS if number == signal.SIGINT else 0.0
            threading.Thread(target=_terminate, args=(processes, grace), daemon=True).start()
        sys.exit(128 + number)  # the scheduler cancels its jobs, as after KeyboardInterrupt

    def _end_at_once(self, number: int) -> NoReturn:
        submits = not self.workflow.local_exec
        _write("stopped without waiting" + (f"; jobs may be left in Slurm's queue: {RECOVER}" if submits else ""))
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(Exception):
            self.workflow.persistence.unlock()
        # Not by an exception, after which Snakemake would wait for its jobs.
        os._exit(128 + number)


def stop_text(cause: str, here: int, submitted: int) -> str:
    """Line about what a stop does.

    Args:
        cause: name of the signal.
        here: number of jobs that run on this machine.
        submitted: number of jobs on Slurm.
    """
    if not here + submitted:
        return f"stopping ({cause}): no job runs"
    jobs = []
    if submitted:
        jobs.append(f"{submitted} {'job on Slurm is' if submitted == 1 else 'jobs on Slurm are'} cancelled")
    if here:
        jobs.append(f"{here} running {'job ends' if here == 1 else 'jobs end'} now")
    again = f"exits without waiting for Slurm; {RECOVER}" if submitted else "kills them without waiting"
    return f"stopping ({cause}): {', '.join(jobs)}; {RESUME}. Ctrl-C again {again}"


def _terminate(processes: Sequence[psutil.Process], grace: float) -> None:
    time.sleep(grace)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()


def _write(line: str) -> None:
    """Write a line to stderr, also if the signal interrupted a write to it, which `print` rejects."""
    with suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
