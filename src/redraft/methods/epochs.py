"""Passes over the data: each takes every prompt once, in a new order; every group is trained on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.schedule import ScheduleMethod, ScheduleState, check_steps

if TYPE_CHECKING:
    from redraft.rollout.types import Group, Task

WAITING = "waiting"


class Epochs(ScheduleMethod):
    """Epochs: each prompt once a pass, in a new order every pass. All groups of a step are trained on."""

    order: ClassVar[int] = 0
    kind: Literal["epochs"] = "epochs"

    def check(self, trainer: TrainerConfig, problems: int) -> None:
        """Reject sizes that do not fit each other.

        Raises:
            UserError: if a step does not divide the data, or a batch is no whole number of steps.
        """
        size, batch = trainer.prompts_per_step, trainer.batch_prompts
        if batch % size:
            raise UserError(
                "a batch must be a whole number of steps, since all groups are trained on",
                key="trainer.prompts_per_batch",
                value=batch,
                allowed=f"multiples of {size}",
            )
        check_steps(trainer, problems)

    def schedule(self, trainer: TrainerConfig, problems: int, seed: int) -> "EpochSchedule":
        """All groups of each step."""
        self.check(trainer, problems)
        return EpochSchedule(trainer, problems, seed)


class EpochSchedule:
    """Whole groups of one or more steps make a batch.

    Args:
        trainer: sizes of steps, batches and groups.
        problems: prompts in the data.
        seed: the run's.
    """

    def __init__(self, trainer: TrainerConfig, problems: int, seed: int) -> None:
        self.trainer, self.problems, self.seed = trainer, problems, seed
        self.batch_prompts = trainer.batch_prompts
        self.steps_per_epoch = trainer.steps_per_epoch(problems)
        self.waiting: list[Group] = []

    def epoch(self, step: int) -> int:
        """Pass that the step belongs to."""
        return step // self.steps_per_epoch

    def next(self, step: int) -> list["Task"]:
        """The next prompts of the pass that the step belongs to."""
        from redraft.rollout.streams import stream
        from redraft.rollout.types import Task

        size = self.trainer.prompts_per_step
        epoch, position = divmod(step, self.steps_per_epoch)
        # Sampled again for each step, so that a run resumes from the number of the step alone.
        order = stream(self.seed, "order", epoch).permutation(self.problems)
        chosen = order[position * size : (position + 1) * size].tolist()
        return [Task(prompt, epoch, self.trainer.group_size) for prompt in chosen]

    def finished(self, groups: Sequence["Group"]) -> None:
        """Take the groups of a step."""
        self.waiting += groups

    def batch(self) -> list["Group"] | None:
        """All groups that wait, once a batch is full."""
        if len(self.waiting) < self.batch_prompts:
            return None
        batch, self.waiting = self.waiting, []
        return batch

    def counts(self) -> Mapping[str, int]:
        """Nothing: every prompt is treated alike."""
        return {}

    def state(self) -> ScheduleState:
        """Groups of a batch that is not full."""
        return ScheduleState({WAITING: list(self.waiting)})

    def restore(self, state: ScheduleState) -> None:
        """Go on from a state."""
        self.waiting = list(state.waiting[WAITING])
