"""Passes over the data: each takes every prompt once, in an order of its own; every group is trained on."""

from collections.abc import Mapping, Sequence

from redraft.config.trainer import Trainer
from redraft.errors import UserError
from redraft.rollout.streams import stream
from redraft.rollout.types import Group, Task

WAITING = "waiting"


class EpochSchedule:
    """Whole groups of one or more steps make a batch.

    Args:
        trainer: sizes of steps, batches and groups.
        problems: prompts in the data.
        seed: the run's.

    Raises:
        UserError: if a step does not divide the data, or a batch is no whole number of steps.
    """

    def __init__(self, trainer: Trainer, problems: int, seed: int) -> None:
        self.trainer, self.problems, self.seed = trainer, problems, seed
        self.waiting: list[Group] = []
        self._check_batch()
        if problems % trainer.prompts_per_step:
            raise UserError("prompts_per_step must divide the number of problems", key="trainer.prompts_per_step",
                            value=trainer.prompts_per_step, allowed=f"divisors of {problems}")  # fmt: skip

    def _check_batch(self) -> None:
        size, batch = self.trainer.prompts_per_step, self.trainer.batch_prompts
        if batch % size:
            raise UserError("a batch must be a whole number of steps, since all groups are trained on",
                            key="trainer.prompts_per_batch", value=batch, allowed=f"multiples of {size}")  # fmt: skip

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

    def state(self) -> Mapping[str, Sequence[Group]]:
        """Groups of a batch that is not full."""
        return {WAITING: self.waiting}

    def restore(self, state: Mapping[str, Sequence[Group]]) -> None:
        """Go on from a state."""
        self.waiting = list(state[WAITING])
