"""The campaign's jobs in Slurm's queue: how many wait, and which of them will never start."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.ops.slurm.feasibility import candidates, jobs_in, mismatch, on_slurm, request_of
from redraft.ops.slurm.jobs import output_of
from redraft.ops.slurm.partitions import partitions

SETTLE_SECONDS = 5
"""Time after a submission until Slurm knows why a job waits."""
POLL_SECONDS = 60
"""Longest time between two queries of the queue, rare enough for Slurm's controller."""
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


class Queue:
    """Submitted jobs of one campaign."""

    def __init__(self, executor: Any, stages: Mapping[str, str], site: Path) -> None:
        self.executor = executor
        self.stages = stages
        self.site = site
        self.submitted = threading.Event()
        self.jobs: dict[str, Any] = {}
        self._states: dict[int, str] = {}
        self._warned: set[tuple[str, str]] = set()
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
            self.submitted.clear()
            time.sleep(SETTLE_SECONDS)
            if self.jobs:
                self.check()

    def check(self) -> None:
        """Log the states of jobs for the progress line, and warn once about jobs that will never start."""
        output = output_of("squeue", "--noheader", f"--name={self.executor.run_uuid}", "--format=%i|%T|%r")
        if output is None:
            return
        mine = {job: row for job, row in parse_queue(output).items() if job in self.jobs}
        states = {
            part.jobid: "waiting" if state == "PENDING" else "running"
            for job, (state, _) in mine.items()
            for part in jobs_in(self.jobs[job])
        }
        if states != self._states:
            self._states = states
            waiting = list(states.values()).count("waiting")
            self.executor.logger.info(
                f"Slurm's queue: {waiting} jobs wait, {len(states) - waiting} run", extra={"slurm_states": states}
            )
        stuck: dict[tuple[str, str], list[str]] = defaultdict(list)
        for job, (_, reason) in mine.items():
            if NEVER_STARTS.fullmatch(reason):
                stuck[self.stages[jobs_in(self.jobs[job])[0].rule.name], reason].append(job)
        for (stage, reason), jobs in stuck.items():
            if (stage, reason) not in self._warned and (text := self._warning(stage, reason, jobs)):
                self._warned.add((stage, reason))
                self.executor.logger.warning(text)

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


def parse_queue(text: str) -> dict[str, tuple[str, str]]:
    """State and reason of jobs by number, from the output of `squeue --noheader --format='%i|%T|%r'`."""
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return {job: (state, reason) for job, state, reason in rows}


def watch_queue(workflow: Any, stages: Mapping[str, str], site: Path) -> None:
    """Watch the queue in a background thread, if the executor is the plugin for Slurm; call this in `onstart`."""
    if on_slurm(workflow):
        queue = Queue(workflow.scheduler._executor, stages, site)
        threading.Thread(target=queue.watch, name="slurm-queue", daemon=True).start()
