"""The campaign's jobs in Slurm's queue: how many wait, and which of them no waiting helps."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.ops.slurm.jobs import output_of
from redraft.ops.slurm.partitions import partitions
from redraft.ops.slurm.requests import ask_of, candidates, mismatch, on_slurm

SETTLE_SECONDS = 5
"""Time after a submission in which Slurm finds the reason for which a job waits."""
LOOK_SECONDS = 60
"""Longest time between two looks at the queue, which cost its controller little."""
NEVER = re.compile(
    r"PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed"
    r"|QOSNotAllowed|MaxMemPerLimit|QOSMin\w+|(Assoc|QOS)Max\w+PerJob\w*"
)
"""Reasons for which a job waits until somebody changes the job or the cluster (JOB REASON CODES in squeue's manual)."""
SET_BY = (
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
"""Words of a reason, and the key that sets what it is about; the first that is found counts."""


class Queue:
    """The jobs that one campaign has submitted."""

    def __init__(self, executor: Any, stages: Mapping[str, str], site: Path) -> None:
        self.executor = executor
        self.stages = stages
        self.site = site
        self.submitted = threading.Event()
        self.jobs: dict[str, Any] = {}
        self._states: dict[int, str] = {}
        self._said: set[tuple[str, str]] = set()
        self._report = executor.report_job_submission
        executor.report_job_submission = self.report_job_submission

    def report_job_submission(self, info: Any, register_job: bool = True) -> None:
        """Note a submitted job, and do what the executor does with it."""
        self.jobs[info.external_jobid] = info.job
        self.submitted.set()
        self._report(info, register_job=register_job)

    def watch(self) -> None:
        """Look at the queue soon after submissions, and now and then, as long as this process lives."""
        while True:
            self.submitted.wait(LOOK_SECONDS)
            self.submitted.clear()
            time.sleep(SETTLE_SECONDS)
            if self.jobs:
                self.look()

    def look(self) -> None:
        """Tell the progress line which jobs wait, and the user, once, which of them wait in vain."""
        told = output_of("squeue", "--noheader", f"--name={self.executor.run_uuid}", "--format=%i|%T|%r")
        if told is None:
            return
        mine = {job: row for job, row in parse_queue(told).items() if job in self.jobs}
        states = {
            self.jobs[job].jobid: "waiting" if state == "PENDING" else "running" for job, (state, _) in mine.items()
        }
        if states != self._states:
            self._states = states
            waiting = list(states.values()).count("waiting")
            self.executor.logger.info(
                f"Slurm's queue: {waiting} jobs wait, {len(states) - waiting} run", extra={"slurm_states": states}
            )
        vain: dict[tuple[str, str], list[str]] = defaultdict(list)
        for job, (_, reason) in mine.items():
            if NEVER.fullmatch(reason):
                vain[self.stages[self.jobs[job].rule.name], reason].append(job)
        for (stage, reason), jobs in vain.items():
            if (stage, reason) not in self._said and (text := self._in_vain(stage, reason, jobs)):
                self._said.add((stage, reason))
                self.executor.logger.warning(text)

    def _in_vain(self, stage: str, reason: str, jobs: list[str]) -> str | None:
        """What is said of jobs of a stage that wait for one reason; None if waiting may help them after all."""
        ask = ask_of(self.jobs[jobs[0]])
        head = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} of {stage} will never start: {reason} ({jobs[0]}"
        head += " and others); Ctrl-C ends all" if len(jobs) > 1 else "); Ctrl-C ends all"
        where = candidates(ask, partitions())
        if reason == "PartitionNodeLimit" and not any(partition.lacks(ask) for partition in where):
            return None  # nodes that are down or drained, says its manual
        keys = [key for words, key in SET_BY if re.search(words, reason)][:1]
        return f"{head}\n  {stage} {mismatch(stage, ask, where, self.site, keys)}"


def parse_queue(text: str) -> dict[str, tuple[str, str]]:
    """State and reason of jobs by number, of the output of `squeue --noheader --format='%i|%T|%r'`."""
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return {job: (state, reason) for job, state, reason in rows}


def watch_queue(workflow: Any, stages: Mapping[str, str], site: Path) -> None:
    """Look at the queue in the background, if the executor is the plugin for Slurm; call it in `onstart`."""
    if on_slurm(workflow):
        queue = Queue(workflow.scheduler._executor, stages, site)
        threading.Thread(target=queue.watch, name="slurm-queue", daemon=True).start()
