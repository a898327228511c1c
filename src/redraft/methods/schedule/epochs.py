"""Passes over the data: each takes every prompt once, in an order of its own; every group is trained on."""

from collections.abc import Mapping, Sequence

from redraft.config.trainer import Trainer
from redraft.methods.schedule.base import ScheduleState
from redraft.rollout.streams import stream
from redraft.rollout.types import Group, Task

WAITING = "waiting"


class EpochSchedule:
    """Whole groups of one or more steps make a batch.

    Args:
        trainer: sizes of steps, batches and groups.
        problems: prompts in the data.
        seed: the run's.
    """

    def __init__(self, trainer: Trainer, problems: int, seed: int) -> None:
        self.trainer, self.problems, self.seed = trainer, problems, seed
        self.waiting: list[Group] = []

    def epoch(self, step: int) -> int:
        """Pass that the step belongs to."""
        return step // self.trainer.steps_per_epoch(self.problems)

    def next(self, step: int) -> list[Task]:
        """The next prompts of the pass that the step belongs to."""
        size = self.trainer.prompts_per_step
        epoch, position = divmod(step, self.trainer.steps_per_epoch(self.problems))
        order = stream(self.seed, "order", epoch).permutation(self.problems)
        chosen = order[position * size : (position + 1) * size].tolist()
        return [Task(prompt, epoch, self.trainer.group_size) for prompt in chosen]

    def finished(self, groups: Sequence[Group]) -> None:
        """Take the groups of a step."""
        self.waiting += groups

    def batch(self) -> list[Group] | None:
        """All groups that wait, once a batch is full."""
        if len(self.waiting) < self.trainer.batch_prompts:
            return None
        batch, self.waiting = self.waiting, []
        return batch

    def counts(self) -> Mapping[str, int]:
        """Nothing: every prompt is treated alike."""
        return {}

    def state(self) -> ScheduleState:
        """Groups of a batch that is not full."""
        return ScheduleState({WAITING: self.waiting})

    def restore(self, state: ScheduleState) -> None:
        """Go on from a state."""
        self.waiting = list(state.waiting[WAITING])
