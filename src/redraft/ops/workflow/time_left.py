"""Estimate of a campaign's remaining time: simulate its jobs with the mean wall time of each rule.

A run that is larger than the preset's usual ones takes so many times the mean as its size says, until runs of its cell
have finished, whose mean replaces that. The means come from finished jobs of this and earlier campaigns of the same
results. A rule without finished jobs uses `workflows/seconds.yaml`, which was measured on another machine and is scaled
to this one.

A job starts as soon as the jobs that it needs have ended and the resources that it uses are free. On this machine these
are cores and GPUs; on Slurm the profile's number of jobs, and the processors, memory and GPUs of the job's partition
(`available`). A job on Slurm takes its rule's mean and the overhead of a job, and the jobs that need it start
`NOTICE_SECONDS` after its end.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

OVERDUE = 0.1
"""Expected remaining time of a job that has run longer than its rule's mean, as a share of that mean."""
JOBS = "jobs"
"""Resource that only submitted jobs use, one each; its amount is the profile's `jobs`."""
OVERHEAD_SECONDS = 15.0
"""Time of a Slurm job in addition to its command, before one was measured: it starts Snakemake twice."""
NOTICE_SECONDS = 30.0
"""Time from the end of a Slurm job to the start of a job that needs it: half of the 40 s between two queries of
states, and ten seconds until the next job is submitted and Slurm has started it."""


class Work(NamedTuple):
    """What a job works on."""

    of: str = ""
    """Name that it shares with jobs of its rule that take as long; empty if all of the rule do."""
    size: float = 1.0
    """Expected time relative to the rule's mean."""


USUAL = Work()


@dataclass(frozen=True)
class Job:
    """A job of a campaign.

    Attributes:
        rule: name of its rule; empty for a target, which runs nothing.
        needs: numbers of the jobs that must end before it starts.
        uses: amounts of the resources that it occupies while it runs.
        work: what it works on.
    """

    rule: str
    needs: frozenset[int] = frozenset()
    uses: tuple[tuple[str, int], ...] = ()
    work: Work = USUAL

    @property
    def submitted(self) -> bool:
        """Whether it runs on a cluster."""
        return any(name == JOBS for name, _ in self.uses)


class JobGraph(NamedTuple):
    """Jobs of a campaign, and the resources that they share."""

    jobs: Mapping[int, Job]
    """Jobs by Snakemake's numbers."""
    capacity: Mapping[str, int]
    """Amounts of the shared resources."""


class Durations:
    """Mean wall time of a job's command in seconds by rule, for jobs of size 1; a prior counts as one job.

    Args:
        priors: mean seconds by rule, measured on another machine.
    """

    def __init__(self, priors: Mapping[str, float]) -> None:
        self._priors = dict(priors)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._alike: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._overheads = [OVERHEAD_SECONDS]

    def add_overhead(self, seconds: float) -> None:
        """Add the time that a finished job of a cluster took in addition to its command."""
        self._overheads.append(max(seconds, 0.0))

    @property
    def overhead(self) -> float:
        """Mean overhead of a job on a cluster in seconds; `OVERHEAD_SECONDS` counts as one job."""
        return sum(self._overheads) / len(self._overheads)

    def add(self, rule: str, seconds: float, work: Work = USUAL) -> None:
        """Add a finished job."""
        self._seconds[rule].append(seconds / work.size)
        if work.of:
            self._alike[rule, work.of].append(seconds)

    def of_job(self, job: Job) -> float | None:
        """Expected seconds of a job, from finished ones like it or else from its size; None without any measurement."""
        if not job.rule:
            return 0.0
        if alike := self._alike.get((job.rule, job.work.of)):
            return sum(alike) / len(alike)
        mean = self.mean(job.rule)
        return None if mean is None else mean * job.work.size

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


def available(graph: JobGraph, running: Iterable[int], waiting: Iterable[int]) -> Mapping[str, int]:
    """Amounts of the shared resources, as far as a cluster's queue shows them.

    While jobs wait in the queue, the campaign gets no more of their partition than its running jobs use, since other
    users or limits have the rest. A job that still has to run fits in any case.

    Args:
        graph: jobs that have not ended.
        running: numbers of the running jobs.
        waiting: numbers of the jobs that have waited in the queue for some time.
    """
    used = _sums(graph.jobs[number].uses for number in running if graph.jobs[number].submitted)
    short = {name for number in waiting for name, _ in graph.jobs[number].uses}
    if len(short) > 1:
        short.discard(JOBS)  # jobs of other sizes may be more at once
    capacity = dict(graph.capacity)
    for name in short & used.keys():
        largest = max(amount for job in graph.jobs.values() for used_name, amount in job.uses if used_name == name)
        capacity[name] = min(capacity[name], max(used[name], largest))
    return capacity


def _sums(uses: Iterable[tuple[tuple[str, int], ...]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in uses:
        total.update(dict(each))
    return total


def estimate_time_left(
    graph: JobGraph,
    done: Iterable[int],
    running: Mapping[int, float],
    durations: Durations,
    waiting: Iterable[int] = (),
) -> TimeLeft:
    """Estimate the remaining time of a campaign.

    Args:
        graph: all jobs.
        done: numbers of the finished jobs.
        running: elapsed seconds of the running jobs.
        durations: mean times by rule.
        waiting: numbers of the jobs that have waited in a cluster's queue for some time.
    """
    ended = set(done)
    jobs = {number: job for number, job in graph.jobs.items() if number not in ended}
    # By kind: thousands of jobs have few kinds.
    means = {kind: durations.of_job(Job(kind[0], work=kind[1])) for kind in {(j.rule, j.work) for j in jobs.values()}}

    def mean(job: Job) -> float:
        return means[job.rule, job.work] or 0.0

    overhead = durations.overhead
    rest = {}
    for number, elapsed in running.items():
        if number in jobs:
            expected = mean(jobs[number]) + overhead * jobs[number].submitted
            rest[number] = max(expected - elapsed, OVERDUE * expected)
    unknown = Counter(job.rule for job in jobs.values() if means[job.rule, job.work] is None)
    left = JobGraph(jobs, graph.capacity)
    capacity = available(left, rest, (number for number in waiting if number in jobs))
    seconds = makespan(JobGraph(jobs, capacity), rest, mean, overhead)
    return TimeLeft(seconds, sum(job.rule != "" for job in jobs.values()), unknown)


def makespan(
    graph: JobGraph, running: Mapping[int, float], seconds: Callable[[Job], float], overhead: float = 0.0
) -> float:
    """Wall time in seconds until all jobs have ended, if each starts as soon as its needs and resources permit.

    Args:
        graph: jobs that have not ended; other jobs that they need have ended.
        running: remaining seconds of the running jobs.
        seconds: expected seconds of a job.
        overhead: seconds that a submitted job takes in addition.
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
    # Jobs with equal uses share a queue: if its first job does not fit, none of them does.
    ready: dict[tuple[tuple[str, int], ...], deque[int]] = defaultdict(deque)  # by the resources that they use
    for number in sorted(number for number, count in blocked.items() if not count):
        ready[graph.jobs[number].uses].append(number)
    events = [(time, number, True) for number, time in running.items()]  # time, job, whether it ends or is noticed
    heapq.heapify(events)
    now = 0.0
    while True:
        for uses, queue in ready.items():
            while queue and all(free[name] >= amount for name, amount in uses):
                number = queue.popleft()
                free.subtract(dict(uses))
                job = graph.jobs[number]
                heapq.heappush(events, (now + seconds(job) + overhead * job.submitted, number, True))
        if not events:
            return now
        now, number, ends = heapq.heappop(events)
        if ends:
            free.update(dict(graph.jobs[number].uses))
            if graph.jobs[number].submitted:
                heapq.heappush(events, (now + NOTICE_SECONDS, number, False))
                continue
        for follower in followers[number]:
            blocked[follower] -= 1
            if not blocked[follower]:
                ready[graph.jobs[follower].uses].append(follower)
