"""The protocol of group strategies."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from redraft.rollout.context import RolloutContext
    from redraft.rollout.types import Group, Task


class Strategy(Protocol):
    """A coroutine function that rolls out one prompt; a trainer runs those of a whole batch concurrently."""

    async def __call__(self, task: "Task", context: "RolloutContext") -> "Group":
        """Make the graded group of a task."""
        ...
