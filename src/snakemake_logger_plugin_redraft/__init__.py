"""Logger plugin that shows Snakemake's progress at a terminal: running jobs, finished share, time left.

`logger: redraft` in a profile turns it on. It writes one line when a job starts and one when it ends; on a cluster also
one when it is submitted, and it counts jobs that wait apart from those that run. Errors, warnings and dry runs keep
Snakemake's own format; a dry run ends with a summary.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from logging import LogRecord
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from redraft.ops.workflow.time_left import Durations, Left, Plan, left

SILENT = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.SHELLCMD,
    LogEvent.PROGRESS,
}
AGGREGATES = {"all", "reproduction", "extras", "timing", "laboratory"}
"""Rules that only collect files; they are not shown."""
END_OF_DRY_RUN = "This was a dry-run"
"""How Snakemake's last line of a dry run begins."""


def duration(seconds: float) -> str:
    """A duration as text: `40 s`, `3 min` or `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_of(all_jobs: Left) -> str:
    """What a campaign that has not begun takes, as text."""
    text = time_left(all_jobs).replace(" left", "", 1)
    return text if text.startswith("time") else f"time: {text}"


def time_left(rest: Left) -> str:
    """What a campaign still takes, as text; what cannot be known of it makes it a lower bound."""
    if not rest.jobs:
        return "nothing left"
    if not rest.unknown:
        return f"about {duration(max(rest.seconds, 1.0))} left"
    count = sum(rest.unknown.values())
    jobs = "1 job of a kind never timed" if count == 1 else f"{count} jobs of kinds never timed"
    known = f"at least {duration(rest.seconds)} left, not counting {jobs}"
    return known if rest.seconds >= 1 else f"time left not known: {jobs}"


class Campaign:
    """Counts of planned, waiting, running and finished jobs by rule; estimates the time left."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.left: Counter[str] = Counter()
        self.total = 0
        self.submits = False
        self._running: dict[int, tuple[str, float]] = {}
        self._waiting: dict[int, tuple[str, float]] = {}
        self._ended: set[int] = set()
        self._expected: Plan | None = None
        self._durations = Durations({})

    @property
    def done(self) -> int:
        """Number of jobs that have ended."""
        return len(self._ended)

    def plan(self, stats: dict[str, Any]) -> None:
        """Set the planned number of jobs of each rule."""
        self.left = Counter({rule: int(count) for rule, count in stats.items() if rule != "total"})
        self.total = sum(self.left.values())

    def expect(self, plan: Plan, durations: Durations) -> None:
        """Learn which job waits for which, and what kinds of jobs took before."""
        self._expected, self._durations = plan, durations

    def submit(self, job: int, rule: str) -> None:
        """Note that a job has been given to a cluster, where it waits until `queue` says otherwise."""
        self.submits = True
        self._running.pop(job, None)  # of an attempt that failed
        self._waiting[job] = (rule, time.monotonic())

    def queue(self, states: dict[int, str]) -> list[int]:
        """Note which jobs a cluster's queue has as `waiting` or `running`; returns those that began to run."""
        began = [job for job, state in states.items() if state == "running" and job in self._waiting]
        for job in began:
            self.start(job, self._waiting[job][0])
        for job in self._waiting.keys() & states.keys():
            self._waiting[job] = (self._waiting[job][0], time.monotonic())
        return began

    def start(self, job: int, rule: str) -> None:
        """Note that a job has started."""
        self._waiting.pop(job, None)
        self._running[job] = (rule, time.monotonic())

    def fail(self, job: int) -> None:
        """Note that an attempt of a job has failed."""
        self._running.pop(job, None)
        self._waiting.pop(job, None)

    def finish(self, job: int) -> tuple[str, float]:
        """Note that a job has ended; returns its rule and its wall seconds.

        A short job of a cluster may end before it was seen to run: then it began when it was last seen to wait.
        """
        jobs = self._running if job in self._running else self._waiting
        rule, began = jobs.pop(job, ("", time.monotonic()))
        seconds = time.monotonic() - began
        self._durations.add(rule, seconds)
        self._ended.add(job)
        self.left[rule] -= 1
        return rule, seconds

    def counts(self) -> str:
        """Numbers of jobs that run and that wait in a cluster's queue, as text; empty without a cluster."""
        return f"; {len(self._running)} run, {len(self._waiting)} wait" if self.submits else ""

    def rest(self) -> str:
        """Estimate of the time left, as text."""
        if self._expected is None:
            return "time left not known"
        running = {job: time.monotonic() - began for job, (_, began) in self._running.items()}
        return time_left(left(self._expected, self._ended, running, self._durations))


class LogHandler(LogHandlerBase):
    """Handler that writes one line per start and end of a job to stderr."""

    writes_to_stream = True
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.campaign = Campaign()
        self.names: dict[int, str] = {}
        self._summarise: Callable[[Callable[[Left], str]], str] | None = None

    def end_dry_run(self, summarise: Callable[[Callable[[Left], str]], str]) -> None:
        """Learn how a dry run is summed up, by a function that puts its time into words."""
        self._summarise = summarise

    def expect(self, plan: Plan, durations: Durations) -> None:
        """Learn what is to come, before the first job starts, and say how long it takes."""
        self.campaign.expect(plan, durations)
        self._write(f"  {self.campaign.rest()}")

    def emit(self, record: LogRecord) -> None:
        """Write a record as one line, or in Snakemake's format if it is of another kind."""
        event = getattr(record, "event", None)
        if states := getattr(record, "slurm_states", None):
            for job in self.campaign.queue(states):
                self._write(f"  start  {self.names[job]}")
            return
        if event == LogEvent.JOB_ERROR:
            self.campaign.fail(record.jobid)  # type: ignore[attr-defined]
        shown = {*SILENT, LogEvent.RUN_INFO, LogEvent.JOB_INFO, LogEvent.JOB_FINISHED}
        if self.common_settings.dryrun or event not in shown:
            chatter = event is None and record.levelno <= logging.INFO
            text = self.format(record).strip()
            if text and (not chatter or self.common_settings.dryrun or text.startswith("Nothing to be done")):
                self._write(text)
            if text.startswith(END_OF_DRY_RUN) and self._summarise:
                self._write("\n" + self._summarise(time_of))
        elif event == LogEvent.RUN_INFO:
            self.campaign.plan(record.stats)  # type: ignore[attr-defined]
            jobs = ", ".join(f"{count} {rule}" for rule, count in self.campaign.left.items() if rule not in AGGREGATES)
            self._write(f"{self.campaign.total} jobs: {jobs}")
        elif event == LogEvent.JOB_INFO:
            self._started(record)
        elif event == LogEvent.JOB_FINISHED:
            self._finished(record)

    def _started(self, record: LogRecord) -> None:
        job, rule = record.jobid, record.rule_name  # type: ignore[attr-defined]
        self.names[job] = " ".join([rule, *map(str, (record.wildcards or {}).values())])  # type: ignore[attr-defined]
        local = record.local  # type: ignore[attr-defined]
        (self.campaign.start if local else self.campaign.submit)(job, rule)
        if rule not in AGGREGATES:
            self._write(f"  {'start' if local else 'queue'}  {self.names[job]}")

    def _finished(self, record: LogRecord) -> None:
        job = record.job_id  # type: ignore[attr-defined]
        rule, seconds = self.campaign.finish(job)
        gone = duration(time.monotonic() - self.campaign.began)
        head = f"[{self.campaign.done:>3}/{self.campaign.total}]"
        if rule not in AGGREGATES:
            self._write(
                f"{head} {self.names.get(job, rule)} ({duration(seconds)}); {gone} gone, {self.campaign.rest()}"
                f"{self.campaign.counts()}"
            )

    def _write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
