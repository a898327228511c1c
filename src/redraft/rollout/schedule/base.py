"""The protocol of schedules. Their state is groups that wait; all else follows from the step."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from redraft.rollout.types import Group, Task


class Schedule(Protocol):
    """Decides, in the process that drives a run, what is rolled out and what is trained on."""

    def next(self, step: int) -> list[Task]:
        """Tasks of a step, from 0; no prompt twice."""
        ...

    def finished(self, groups: Sequence[Group]) -> None:
        """Take the groups of those tasks, in their order."""
        ...

    def batch(self) -> list[Group] | None:
        """Groups to update from, or None while there are not enough; asked once a step, behind `finished`."""
        ...

    def state(self) -> Mapping[str, Sequence[Group]]:
        """Groups that wait, by what for."""
        ...

    def restore(self, state: Mapping[str, Sequence[Group]]) -> None:
        """Go on from a state."""
        ...
