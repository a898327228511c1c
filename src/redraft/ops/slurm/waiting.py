"""The campaign's jobs in Slurm's queue: which wait and why, which will never start, and how far trainings are."""

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from redraft.ops.slurm.feasibility import candidates, jobs_in, mismatch, on_slurm, request_of
from redraft.ops.slurm.jobs import output_of
from redraft.ops.slurm.partitions import partitions

SETTLE_SECONDS = 5
"""Time after a submission until Slurm knows why a job waits."""
POLL_SECONDS = 60
"""Longest time between two queries of the queue, rare enough for Slurm's controller."""
QUIET_SECONDS = 60
"""Time without the start or end of a job after which the reasons of waiting jobs are printed."""
STEPS_SECONDS = 60
"""Shortest time between two lines with the steps of running jobs."""
SHOWN_RUNS = 6
"""Largest number of runs, and of drained nodes' reasons, in a line."""
MEANINGS = {
    "Resources": "no node has enough free",
    "Priority": "other jobs are ahead",
    "None": "not considered yet",
    "Reservation": "waits for its reservation",
    "JobHeldUser": "held; `scontrol release` starts it",
    "JobHeldAdmin": "held by an administrator",
}
"""Plain words for Slurm's frequent reasons; the others are clear or mean a limit that they name."""
COLUMNS = "%i|%T|%P|%S|%e|%r"
"""Columns of squeue: number, state, partition, start, end, reason."""
DRAINED = ("sinfo", "--noheader", "--list-reasons", "--format=%N|%t|%E")
"""Command that lists nodes that are down or drained: names, state, reason."""
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
    }
)
"""States of jobs that have ended."""
NEVER_STARTS = re.compile(
    r"PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed"
    r"|QOSNotAllowed|MaxMemPerLimit|QOSMin\w+|(Assoc|QOS)Max\w+PerJob\w*"
)
"""Reasons for which a job waits until someone changes the job or the cluster (JOB REASON CODES in squeue's manual)."""
KEY_BY_REASON = (
    ("Time|Wall", "runtime"),
    ("Cpu", "cpus"),
    ("Mem", "memory_gb"),
    ("GRES", "engine.gpus"),
    ("Node", "engine.nodes"),
    ("Account", "account"),
    ("QOSNot|InvalidQOS", "qos"),
    ("BadConstraints", "constraint"),
    ("PartitionConfig", "partition"),
)
"""Pattern of a reason, and the key of the setting to change; the first match counts."""


@dataclass(frozen=True)
class Row:
    """A job in the output of squeue; `seconds` is the run time of an ended job, None for others."""

    state: str
    partition: str
    seconds: float | None
    reason: str

    @property
    def waits(self) -> bool:
        """Whether it has not started."""
        return self.state == "PENDING"

    @property
    def runs(self) -> bool:
        """Whether it has started and not ended."""
        return not self.waits and self.state not in ENDED


class Queue:
    """Submitted jobs of one campaign.

    Args:
        executor: Snakemake's plugin for Slurm.
        stages: stage of the site file by rule.
        site: the site file, for messages.
        steps: name, finished steps and number of steps of a job that trains; None for other jobs.
    """

    def __init__(
        self,
        executor: Any,
        stages: Mapping[str, str],
        site: Path,
        steps: Callable[[Any], tuple[str, int, int] | None] = lambda job: None,
    ) -> None:
        self.executor = executor
        self.stages = stages
        self.site = site
        self.steps = steps
        self.submitted = threading.Event()
        self.jobs: dict[str, Any] = {}
        self._states: dict[int, str] = {}
        self._warned: set[tuple[str, str]] = set()
        self._started: set[str] = set()
        self._running: set[str] = set()
        self._progressed = self._stepped = time.monotonic()
        self._printed = {"reasons": "", "steps": ""}
        self._report = executor.report_job_submission
        executor.report_job_submission = self.report_job_submission

    def report_job_submission(self, info: Any, register_job: bool = True) -> None:
        """Record a submitted job, and pass it on to the executor."""
        self.jobs[info.external_jobid] = info.job
        self.submitted.set()
        self._report(info, register_job=register_job)

    def watch(self) -> None:
        """Check the queue soon after submissions and at least every `POLL_SECONDS`, until this process ends."""
        while True:
            self.submitted.wait(POLL_SECONDS)
            # Before the queue is read: a later submission then leads to another check at once.
            self.submitted.clear()
            time.sleep(SETTLE_SECONDS)
            if self.jobs:
                self.check()

    def check(self) -> None:
        """Log the states of jobs for the progress line, why they wait and how far they are; warn once about jobs that
        will never start."""
        # Also ended jobs, for the times that they ran.
        output = output_of(
            "squeue", "--noheader", "--states=all", f"--name={self.executor.run_uuid}", f"--format={COLUMNS}"
        )
        if output is None:
            return
        mine = {job: row for job, row in parse_queue(output).items() if job in self.jobs}
        self._log_states(mine)
        self._log_reasons(mine)
        self._log_steps(mine)
        stuck: dict[tuple[str, str], list[str]] = defaultdict(list)
        for job, row in mine.items():
            if row.waits and NEVER_STARTS.fullmatch(row.reason):
                rule = jobs_in(self.jobs[job])[0].rule.name
                # A Snakefile that uses this workflow as a module may have other rules.
                stuck[self.stages.get(rule, rule), row.reason].append(job)
        for (stage, reason), jobs in stuck.items():
            if (stage, reason) not in self._warned and (text := self._warning(stage, reason, jobs)):
                self._warned.add((stage, reason))
                self.executor.logger.warning(text)

    def _log_states(self, rows: Mapping[str, Row]) -> None:
        started = {job for job, row in rows.items() if not row.waits}
        if started - self._started or any(not rows[job].runs for job in started & self._running):
            self._progressed = time.monotonic()
        self._started |= started
        self._running = {job for job, row in rows.items() if row.runs}
        states = {
            part.jobid: "waiting" if row.waits else "running"
            for job, row in rows.items()
            if row.waits or row.runs
            for part in jobs_in(self.jobs[job])
        }
        if states == self._states:
            return
        self._states = states
        waiting = list(states.values()).count("waiting")
        # Not of groups, whose jobs share the time of their submission.
        alone = {job: row for job, row in rows.items() if row.seconds is not None and not self.jobs[job].is_group()}
        seconds = {self.jobs[job].jobid: row.seconds for job, row in alone.items()}
        self.executor.logger.info(
            f"Slurm's queue: {waiting} jobs wait, {len(states) - waiting} run",
            extra={"slurm_states": states, "slurm_seconds": seconds},
        )

    def _log_reasons(self, rows: Mapping[str, Row]) -> None:
        """Print why jobs wait if none has started or ended for some time, and again only if the reasons change."""
        waiting = [row for row in rows.values() if row.waits]
        if waiting and time.monotonic() - self._progressed >= QUIET_SECONDS:
            nodes = output_of(*DRAINED, f"--partition={','.join(sorted({row.partition for row in waiting}))}")
            self._print("reasons", reasons_text([row.reason for row in waiting], nodes or ""))

    def _log_steps(self, rows: Mapping[str, Row]) -> None:
        if time.monotonic() - self._stepped < STEPS_SECONDS:
            return
        self._stepped = time.monotonic()
        known = (self.steps(part) for job, row in rows.items() if row.runs for part in jobs_in(self.jobs[job]))
        if runs := [each for each in known if each]:
            self._print("steps", steps_text(runs))

    def _print(self, kind: str, text: str) -> None:
        if text != self._printed[kind]:
            self._printed[kind] = text
            self.executor.logger.info(text, extra={"always_shown": True})

    def _warning(self, stage: str, reason: str, jobs: list[str]) -> str | None:
        """Warning about jobs of a stage that wait for one reason; None if they may start after all."""
        request = request_of(self.jobs[jobs[0]].resources)
        head = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} of {stage} will never start: {reason} ({jobs[0]}"
        head += " and others); Ctrl-C ends all" if len(jobs) > 1 else "); Ctrl-C ends all"
        allowed = candidates(request, partitions())
        if reason == "PartitionNodeLimit" and not any(partition.shortfalls(request) for partition in allowed):
            return None  # squeue's manual: also if nodes are down or drained
        keys = [key for words, key in KEY_BY_REASON if re.search(words, reason)][:1]
        return f"{head}\n  {stage} {mismatch(stage, request, allowed, self.site, keys)}"


def parse_queue(text: str) -> dict[str, Row]:
    """Jobs by number, from the output of squeue with `COLUMNS`."""
    lines = [line.split("|", 5) for line in text.splitlines() if line.count("|") >= 5]
    return {
        job: Row(state, partition, _seconds(start, end) if state in ENDED else None, reason)
        for job, state, partition, start, end, reason in lines
    }


def _seconds(start: str, end: str) -> float | None:
    """Seconds between two of Slurm's times; None if one is `N/A`."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except ValueError:
        return None


def reasons_text(reasons: list[str], drained: str) -> str:
    """A line with the number of waiting jobs by reason, and nodes that are down or drained.

    Args:
        reasons: Slurm's reason of each waiting job.
        drained: output of `DRAINED`.
    """
    counts = [
        f"{count} {'job' if count == 1 else 'jobs'} {reason}" + (f" ({MEANINGS[reason]})" if reason in MEANINGS else "")
        for reason, count in Counter(reasons).most_common()
    ]
    rows = [line.split("|", 2) for line in drained.splitlines() if line.count("|") >= 2]
    nodes = _first([f"{names} {state} ({reason})" for names, state, reason in rows])
    return f"in Slurm's queue: {', '.join(counts)}" + (f"; nodes without new jobs: {nodes}" if nodes else "")


def steps_text(runs: list[tuple[str, int, int]]) -> str:
    """A line with the steps of running trainings, by name, finished steps and number of steps."""
    shown = _first([f"{name} step {done} of {total}" for name, done, total in runs])
    return f"  train  {shown}"


def _first(texts: list[str]) -> str:
    others = [f"{len(texts) - SHOWN_RUNS} others"] if len(texts) > SHOWN_RUNS else []
    return ", ".join([*texts[:SHOWN_RUNS], *others])


def watch_queue(
    workflow: Any, stages: Mapping[str, str], site: Path, steps: Callable[[Any], tuple[str, int, int] | None]
) -> None:
    """Watch the queue in a background thread, if the executor is the plugin for Slurm; call this in `onstart`.

    The arguments after the workflow are those of `Queue`.
    """
    if on_slurm(workflow):
        queue = Queue(workflow.scheduler._executor, stages, site, steps)
        threading.Thread(target=queue.watch, name="slurm-queue", daemon=True).start()
