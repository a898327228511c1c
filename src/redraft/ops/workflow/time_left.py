"""Time that a campaign will still take: its jobs are played through, each as long as its kind has taken so far.

A kind of job is a rule. What it takes is known from jobs of this campaign, from those of earlier ones of the same
results, and before that from `workflows/seconds.yaml`, which was measured on another machine and is scaled to this one.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

OVERDUE = 0.1
"""What a job that has outlasted its kind's mean is expected to take still, as a share of that mean."""


@dataclass(frozen=True)
class Job:
    """A job of a campaign.

    Attributes:
        rule: its kind; empty for a target, which runs nothing.
        needs: numbers of the jobs that end before it starts.
        takes: resources that it holds while it runs, with amounts.
    """

    rule: str
    needs: frozenset[int] = frozenset()
    takes: tuple[tuple[str, int], ...] = ()


class Plan(NamedTuple):
    """All jobs of a campaign, and what they run on."""

    jobs: Mapping[int, Job]
    """By Snakemake's numbers."""
    capacity: Mapping[str, int]
    """Resources that jobs share, with amounts."""


class Durations:
    """Mean wall seconds of a job by kind; a prior counts as one job of its kind.

    Args:
        priors: mean seconds by kind, measured elsewhere.
    """

    def __init__(self, priors: Mapping[str, float]) -> None:
        self._priors = dict(priors)
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, rule: str, seconds: float) -> None:
        """Count a job that has ended."""
        self._seconds[rule].append(seconds)

    def mean(self, rule: str) -> float | None:
        """Mean seconds of a kind; None if nothing is known of it."""
        found = [*self._seconds.get(rule, ())]
        if rule in self._priors:
            found.append(self._priors[rule] * self._pace)
        return sum(found) / len(found) if found else None

    @property
    def guessed(self) -> bool:
        """Whether no job has ended here, so that all follows from the priors."""
        return bool(self._priors) and not self._seconds

    @property
    def _pace(self) -> float:
        """How much longer jobs take here than the priors say."""
        known = {rule: seconds for rule, seconds in self._seconds.items() if self._priors.get(rule)}
        expected = sum(self._priors[rule] * len(seconds) for rule, seconds in known.items())
        return sum(map(sum, known.values())) / expected if expected else 1.0


class Left(NamedTuple):
    """What a campaign still takes."""

    seconds: float
    """Wall seconds, with jobs of unknown kinds counted as none."""
    jobs: int
    """Jobs that have not ended."""
    unknown: Mapping[str, int]
    """Those of kinds of which nothing is known, by kind."""


def left(plan: Plan, done: Iterable[int], running: Mapping[int, float], durations: Durations) -> Left:
    """Estimate what a campaign still takes; `running` are jobs with the seconds that they have run for."""
    ended = set(done)
    jobs = {number: job for number, job in plan.jobs.items() if number not in ended}
    means = {rule: 0.0 if rule == "" else durations.mean(rule) for rule in {job.rule for job in jobs.values()}}
    rest = {
        number: max((mean := means[jobs[number].rule] or 0.0) - gone, OVERDUE * mean)
        for number, gone in running.items()
        if number in jobs
    }
    unknown = Counter(job.rule for job in jobs.values() if means[job.rule] is None)
    seconds = makespan(Plan(jobs, plan.capacity), rest, lambda rule: means[rule] or 0.0)
    return Left(seconds, sum(job.rule != "" for job in jobs.values()), unknown)


def makespan(plan: Plan, running: Mapping[int, float], seconds: Callable[[str], float]) -> float:
    """Wall seconds until all jobs have ended, if each starts as soon as it may and there is room for it.

    Args:
        plan: jobs that have not ended; what they need besides has ended.
        running: jobs that run, and the seconds that they will still take.
        seconds: seconds of a kind of job.
    """
    free = Counter(plan.capacity)
    for number in running:
        free.subtract(dict(plan.jobs[number].takes))
    blocked = {number: len(job.needs & plan.jobs.keys()) for number, job in plan.jobs.items() if number not in running}
    followers = defaultdict(list)
    for number in blocked:
        for need in plan.jobs[number].needs & plan.jobs.keys():
            followers[need].append(number)
    ready: dict[tuple[tuple[str, int], ...], deque[int]] = defaultdict(deque)  # by what they take
    for number in sorted(number for number, count in blocked.items() if not count):
        ready[plan.jobs[number].takes].append(number)
    ends = [(time, number) for number, time in running.items()]
    heapq.heapify(ends)
    now = 0.0
    while True:
        for takes, queue in ready.items():
            while queue and all(free[name] >= amount for name, amount in takes):
                number = queue.popleft()
                free.subtract(dict(takes))
                heapq.heappush(ends, (now + seconds(plan.jobs[number].rule), number))
        if not ends:
            return now
        now, ended = heapq.heappop(ends)
        free.update(dict(plan.jobs[ended].takes))
        for number in followers[ended]:
            blocked[number] -= 1
            if not blocked[number]:
                ready[plan.jobs[number].takes].append(number)
