"""The protocol of schedules. Their state is groups that wait and counters; all else follows from the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from redraft.rollout.types import Group, Task


@dataclass(frozen=True)
class ScheduleState:
    """What a schedule goes on from.

    Attributes:
        waiting: groups, by what they wait for.
        counters: by name.
    """

    waiting: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


class Schedule(Protocol):
    """Decides, in the process that drives a run, what is rolled out and what is trained on."""

    def epoch(self, step: int) -> int:
        """Pass over the data, from 0, that the next step is in."""
        ...

    def next(self, step: int) -> list[Task]:
        """Tasks of a step, from 0; no prompt twice. Asking changes nothing."""
        ...

    def finished(self, groups: Sequence[Group]) -> None:
        """Take the groups of those tasks, in their order."""
        ...

    def batch(self) -> list[Group] | None:
        """Groups to update from, or None while there are not enough; asked once a step, behind `finished`."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Counts of the step that was finished last, for its record."""
        ...

    def state(self) -> ScheduleState:
        """All that the next step depends on, but for its number."""
        ...

    def restore(self, state: ScheduleState) -> None:
        """Go on from a state."""
        ...
