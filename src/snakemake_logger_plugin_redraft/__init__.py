"""Logger plugin that shows Snakemake's progress at a terminal: running jobs, finished share, time left.

`logger: redraft` in a profile enables it. It writes one line at the start and one at the end of each job. On a cluster
it also writes a line at the submission, and counts waiting and running jobs separately. Errors, warnings and dry runs
keep Snakemake's format; a dry run ends with a summary.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from redraft.messages import echo
from redraft.ops.workflow.time_left import USUAL, Durations, JobGraph, TimeLeft, estimate_time_left

SILENT = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.SHELLCMD,
    LogEvent.PROGRESS,
}
AGGREGATES = {"all", "reproduction", "extras", "timing", "laboratory"}
"""Rules that only collect files; they are not shown."""
LONGEST_LINE = 50_000
"""Characters of a line of a dry run; a job of a large campaign has ten thousands of inputs."""
SITE_NOTES = (
    "No SLURM account given",
    "No account was given",
    "Guessed SLURM account",
    "Unable to guess SLURM account",
    "Both 'sacctmgr' and 'sshare'",
    "The 'sacct' command is not available",
    "MinJobAge",
)
"""Starts of warnings of Snakemake's Slurm plugin about the site, which are the same at each call."""
SHOWN_NOTES = Path(".snakemake/shown-notes.txt")
"""Those that were shown in this checkout."""
SETTLED_SECONDS = 60
"""Time in Slurm's queue after which a job waits for resources, not for Slurm's next scheduling."""
ANSWERS = ("Nothing to be done", "Congratulations")
"""Starts of lines that are all that Snakemake answers: to a finished campaign, and to `--lint`."""
END_OF_DRY_RUN = "This was a dry-run"
"""Start of Snakemake's last line of a dry run."""


def duration(seconds: float) -> str:
    """A duration as text: `40 s`, `3 min` or `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def total_time_text(all_jobs: TimeLeft) -> str:
    """Expected time of a campaign before its start, as text."""
    text = time_left_text(all_jobs).replace(" left", "", 1)
    return text if text.startswith("time") else f"time: {text}"


def time_left_text(rest: TimeLeft) -> str:
    """Remaining time of a campaign as text; a lower bound if the time of some jobs is unknown."""
    if not rest.jobs:
        return "nothing left"
    if not rest.unknown:
        return f"about {duration(max(rest.seconds, 1.0))} left"
    count = sum(rest.unknown.values())
    jobs = "1 job without a known time" if count == 1 else f"{count} jobs without a known time"
    known = f"at least {duration(rest.seconds)} left, not counting {jobs}"
    return known if rest.seconds >= 1 else f"time left unknown: {jobs}"


def shortened(line: str) -> str:
    """A line without what exceeds `LONGEST_LINE`."""
    left_out = len(line) - LONGEST_LINE
    return f"{line[:LONGEST_LINE]} … ({left_out:,} more characters)" if left_out > 0 else line


def shown_before(text: str) -> bool:
    """Whether a line is one of `SITE_NOTES` and was shown in an earlier call; it is recorded as shown."""
    if not text.startswith(SITE_NOTES):
        return False
    line = " ".join(text.split())
    before = SHOWN_NOTES.read_text(encoding="utf-8").splitlines() if SHOWN_NOTES.exists() else []
    if line not in before:
        SHOWN_NOTES.parent.mkdir(exist_ok=True)
        SHOWN_NOTES.write_text("".join(f"{each}\n" for each in [*before, line]), encoding="utf-8")
    return line in before


class Progress:
    """Counts of planned, waiting, running and finished jobs by rule; estimates the time left."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.left: Counter[str] = Counter()
        self.total = 0
        self.submits = False
        self._running: dict[int, tuple[str, float]] = {}
        self._waiting: dict[int, tuple[str, float]] = {}
        self._submitted: dict[int, float] = {}
        self._queued: set[int] = set()
        self._slurm_seconds: dict[int, float] = {}
        self._ended: set[int] = set()
        self._graph: JobGraph | None = None
        self._durations = Durations({})
        self._recorded: Callable[[int], float | None] = lambda job: None

    @property
    def done(self) -> int:
        """Number of jobs that have ended."""
        return len(self._ended)

    def plan(self, stats: dict[str, Any]) -> None:
        """Set the planned number of jobs of each rule."""
        self.left = Counter({rule: int(count) for rule, count in stats.items() if rule != "total"})
        self.total = sum(self.left.values())

    def expect(
        self, graph: JobGraph, durations: Durations, recorded: Callable[[int], float | None] = lambda job: None
    ) -> None:
        """Set the dependencies of the jobs and the known times of their rules.

        Args:
            graph: all jobs and the resources that they share.
            durations: known times by rule.
            recorded: seconds of an ended job's command, as Snakemake recorded them.
        """
        self._graph, self._durations, self._recorded = graph, durations, recorded

    def submit(self, job: int, rule: str) -> None:
        """Record the submission of a job to a cluster, where it waits until `queue` reports that it runs."""
        self.submits = True
        self._running.pop(job, None)  # from an earlier attempt that failed
        self._waiting[job] = (rule, time.monotonic())
        self._submitted[job] = time.monotonic()

    def queue(self, states: dict[int, str]) -> list[int]:
        """Record the states `waiting` or `running` of a cluster's jobs; returns the jobs that started to run."""
        began = [job for job, state in states.items() if state == "running" and job in self._waiting]
        for job in began:
            self.start(job, self._waiting[job][0])
        self._queued = {job for job, state in states.items() if state == "waiting"}
        for job in self._waiting.keys() & states.keys():
            self._waiting[job] = (self._waiting[job][0], time.monotonic())
        return began

    def slurm_seconds(self, seconds: dict[int, float]) -> None:
        """Record the times of ended jobs according to Slurm, which knows them before Snakemake notices the end."""
        self._slurm_seconds |= seconds

    def start(self, job: int, rule: str) -> None:
        """Record the start of a job."""
        self._waiting.pop(job, None)
        self._running[job] = (rule, time.monotonic())

    def fail(self, job: int) -> None:
        """Record a failed attempt of a job."""
        self._running.pop(job, None)
        self._waiting.pop(job, None)

    def finish(self, job: int) -> tuple[str, float | None]:
        """Record the end of a job; returns its rule and its wall time in seconds.

        Snakemake's `--quiet rules` leaves out the starts of jobs. The rule is then that of the plan, and the time that
        of the job's command, None if it is unknown.

        A short job of a cluster may end before the queue reported it as running. Its start is then the last report of
        it as waiting. Snakemake notices the end of a cluster's jobs late, so that the time according to Slurm has
        precedence, and for the estimate the recorded time of the job's command.
        """
        planned = self._graph.jobs.get(job) if self._graph else None
        started = self._running.pop(job, None) or self._waiting.pop(job, None)
        command = self._recorded(job) if job in self._submitted or started is None else None
        if started is None:
            rule, seconds = planned.rule if planned else "", command
        else:
            rule, seconds = started[0], self._slurm_seconds.get(job, time.monotonic() - started[1])
        if seconds is not None:
            self._durations.add(rule, seconds if command is None else command, planned.work if planned else USUAL)
            if command is not None and job in self._slurm_seconds:
                self._durations.add_overhead(seconds - command)
        self._ended.add(job)
        self.left[rule] -= 1
        return rule, seconds

    def counts(self) -> str:
        """Numbers of running and waiting jobs of a cluster as text; empty without a cluster."""
        return f"; {len(self._running)} run, {len(self._waiting)} wait" if self.submits else ""

    def rest(self) -> str:
        """Estimate of the time left, as text."""
        if self._graph is None:
            return "time left unknown"
        running = {job: time.monotonic() - began for job, (_, began) in self._running.items()}
        latest = time.monotonic() - SETTLED_SECONDS
        waiting = [job for job in self._waiting.keys() & self._queued if self._submitted[job] <= latest]
        return time_left_text(estimate_time_left(self._graph, self._ended, running, self._durations, waiting))


class LogHandler(LogHandlerBase):
    """Handler that writes one line per start and end of a job to stderr."""

    writes_to_stream = True
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.progress = Progress()
        self.names: dict[int, str] = {}
        self._summarise: Callable[[Callable[[TimeLeft], str]], str] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Show only what the project itself logs from now on, since jobs that the user ends are no errors."""
        self._stopped = True

    def end_dry_run(self, summarise: Callable[[Callable[[TimeLeft], str]], str]) -> None:
        """Set the function that makes the summary of a dry run; its argument formats the expected time."""
        self._summarise = summarise

    def expect(self, graph: JobGraph, durations: Durations, recorded: Callable[[int], float | None]) -> None:
        """Set the planned jobs before the first one starts, and print the expected time; see `Progress.expect`."""
        self.progress.expect(graph, durations, recorded)
        self._write(f"  {self.progress.rest()}")

    def emit(self, record: LogRecord) -> None:
        """Write a record of a job as one line, and other records in Snakemake's format."""
        event = getattr(record, "event", None)
        if self._stopped and not hasattr(record, "always_shown"):
            return
        if (states := getattr(record, "slurm_states", None)) is not None:  # empty once the last active job has ended
            for job in self.progress.queue(states):
                self._write(f"  start  {self.names[job]}")
            self.progress.slurm_seconds(getattr(record, "slurm_seconds", {}))
            return
        if event == LogEvent.JOB_ERROR:
            self.progress.fail(record.jobid)  # type: ignore[attr-defined]
        shown = {*SILENT, LogEvent.RUN_INFO, LogEvent.JOB_INFO, LogEvent.JOB_FINISHED}
        if self.common_settings.dryrun or event not in shown:
            chatter = event is None and record.levelno <= logging.INFO and not hasattr(record, "always_shown")
            text = self.format(record).strip()
            if self.common_settings.dryrun:
                text = "\n".join(shortened(line) for line in text.splitlines())
            quiet = chatter and not self.common_settings.dryrun and not text.startswith(ANSWERS)
            if text and not quiet and not shown_before(text):
                self._write(text)
            if text.startswith(END_OF_DRY_RUN) and self._summarise:
                self._write("\n" + self._summarise(total_time_text))
        elif event == LogEvent.RUN_INFO:
            self.progress.plan(record.stats)  # type: ignore[attr-defined]
            jobs = ", ".join(f"{count} {rule}" for rule, count in self.progress.left.items() if rule not in AGGREGATES)
            self._write(f"{self.progress.total} jobs: {jobs}")
        elif event == LogEvent.JOB_INFO:
            self._started(record)
        elif event == LogEvent.JOB_FINISHED:
            self._finished(record)

    def _started(self, record: LogRecord) -> None:
        job, rule = record.jobid, record.rule_name  # type: ignore[attr-defined]
        self.names[job] = " ".join([rule, *map(str, (record.wildcards or {}).values())])  # type: ignore[attr-defined]
        local = record.local  # type: ignore[attr-defined]
        (self.progress.start if local else self.progress.submit)(job, rule)
        if rule not in AGGREGATES:
            self._write(f"  {'start' if local else 'queue'}  {self.names[job]}")

    def _finished(self, record: LogRecord) -> None:
        job = record.job_id  # type: ignore[attr-defined]
        rule, seconds = self.progress.finish(job)
        elapsed = duration(time.monotonic() - self.progress.began)
        head = f"[{self.progress.done:>3}/{self.progress.total}]"
        took = "" if seconds is None else f" ({duration(seconds)})"
        if rule and rule not in AGGREGATES:  # a target has no rule in the plan
            self._write(
                f"{head} {self.names.get(job, rule)}{took}; {elapsed} elapsed, {self.progress.rest()}"
                f"{self.progress.counts()}"
            )

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal may be closed; Snakemake still has to wait for jobs and unlock
            echo(text, err=True)
