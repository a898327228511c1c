"""Estimate of a campaign's remaining time: simulate its jobs with the mean wall time of each rule.

The means come from finished jobs of this and earlier campaigns of the same results. A rule without finished jobs uses
`workflows/seconds.yaml`, which was measured on another machine and is scaled to this one.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

OVERDUE = 0.1
"""Expected remaining time of a job that has run longer than its rule's mean, as a share of that mean."""


@dataclass(frozen=True)
class Job:
    """A job of a campaign.

    Attributes:
        rule: name of its rule; empty for a target, which runs nothing.
        needs: numbers of the jobs that must end before it starts.
        uses: amounts of the resources that it occupies while it runs.
    """

    rule: str
    needs: frozenset[int] = frozenset()
    uses: tuple[tuple[str, int], ...] = ()


class JobGraph(NamedTuple):
    """Jobs of a campaign, and the resources that they share."""

    jobs: Mapping[int, Job]
    """Jobs by Snakemake's numbers."""
    capacity: Mapping[str, int]
    """Amounts of the shared resources."""


class Durations:
    """Mean wall time of a job in seconds by rule; a prior counts as one job.

    Args:
        priors: mean seconds by rule, measured on another machine.
    """

    def __init__(self, priors: Mapping[str, float]) -> None:
        self._priors = dict(priors)
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, rule: str, seconds: float) -> None:
        """Add a finished job."""
        self._seconds[rule].append(seconds)

    def mean(self, rule: str) -> float | None:
        """Mean seconds of a rule; None without any measurement."""
        values = [*self._seconds.get(rule, ())]
        if rule in self._priors:
            values.append(self._priors[rule] * self._pace)
        return sum(values) / len(values) if values else None

    @property
    def guessed(self) -> bool:
        """Whether all means are priors, since no job has finished here."""
        return bool(self._priors) and not self._seconds

    @property
    def _pace(self) -> float:
        """Ratio of the measured times to the priors, over rules that have both."""
        known = {rule: seconds for rule, seconds in self._seconds.items() if self._priors.get(rule)}
        expected = sum(self._priors[rule] * len(seconds) for rule, seconds in known.items())
        return sum(map(sum, known.values())) / expected if expected else 1.0


class TimeLeft(NamedTuple):
    """Remaining time and jobs of a campaign."""

    seconds: float
    """Wall time in seconds, without jobs of unknown rules."""
    jobs: int
    """Number of jobs that have not ended."""
    unknown: Mapping[str, int]
    """Number of jobs by rule without any measurement."""


def estimate_time_left(
    graph: JobGraph, done: Iterable[int], running: Mapping[int, float], durations: Durations
) -> TimeLeft:
    """Estimate the remaining time of a campaign.

    Args:
        graph: all jobs.
        done: numbers of the finished jobs.
        running: elapsed seconds of the running jobs.
        durations: mean times by rule.
    """
    ended = set(done)
    jobs = {number: job for number, job in graph.jobs.items() if number not in ended}
    means = {rule: 0.0 if rule == "" else durations.mean(rule) for rule in {job.rule for job in jobs.values()}}
    rest = {
        number: max((mean := means[jobs[number].rule] or 0.0) - elapsed, OVERDUE * mean)
        for number, elapsed in running.items()
        if number in jobs
    }
    unknown = Counter(job.rule for job in jobs.values() if means[job.rule] is None)
    seconds = makespan(JobGraph(jobs, graph.capacity), rest, lambda rule: means[rule] or 0.0)
    return TimeLeft(seconds, sum(job.rule != "" for job in jobs.values()), unknown)


def makespan(graph: JobGraph, running: Mapping[int, float], seconds: Callable[[str], float]) -> float:
    """Wall time in seconds until all jobs have ended, if each starts as soon as its needs and resources permit.

    Args:
        graph: jobs that have not ended; other jobs that they need have ended.
        running: remaining seconds of the running jobs.
        seconds: mean seconds of a rule.
    """
    free = Counter(graph.capacity)
    for number in running:
        free.subtract(dict(graph.jobs[number].uses))
    blocked = {
        number: len(job.needs & graph.jobs.keys()) for number, job in graph.jobs.items() if number not in running
    }
    followers = defaultdict(list)
    for number in blocked:
        for need in graph.jobs[number].needs & graph.jobs.keys():
            followers[need].append(number)
    ready: dict[tuple[tuple[str, int], ...], deque[int]] = defaultdict(deque)  # by the resources that they use
    for number in sorted(number for number, count in blocked.items() if not count):
        ready[graph.jobs[number].uses].append(number)
    ends = [(time, number) for number, time in running.items()]
    heapq.heapify(ends)
    now = 0.0
    while True:
        for uses, queue in ready.items():
            while queue and all(free[name] >= amount for name, amount in uses):
                number = queue.popleft()
                free.subtract(dict(uses))
                heapq.heappush(ends, (now + seconds(graph.jobs[number].rule), number))
        if not ends:
            return now
        now, ended = heapq.heappop(ends)
        free.update(dict(graph.jobs[ended].uses))
        for number in followers[ended]:
            blocked[number] -= 1
            if not blocked[number]:
                ready[graph.jobs[number].uses].append(number)
