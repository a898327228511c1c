"""DAPO's dynamic sampling (arXiv 2503.14476, §3.2): groups whose rewards are all equal teach nothing and are refilled.

Each step rolls out as many prompts as any other. Informative groups wait until a batch is full; what is over is
dropped, as in verl's DAPO recipe. The policy does not change while groups wait.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from redraft.config.trainer import TrainerConfig
from redraft.methods.epochs import EpochSchedule
from redraft.methods.schedule import ScheduleMethod, check_steps

if TYPE_CHECKING:
    from redraft.rollout.types import Group


class DynamicSampling(ScheduleMethod):
    """DAPO's dynamic sampling (arXiv 2503.14476, §3.2): groups of equal rewards are dropped, the next step refills."""

    order: ClassVar[int] = 10
    kind: Literal["dynamic"] = "dynamic"

    def check(self, trainer: TrainerConfig, problems: int) -> None:
        """Reject sizes that do not fit each other; a batch is gathered over as many steps as it takes.

        Raises:
            UserError: if a step does not divide the data.
        """
        check_steps(trainer, problems)

    def schedule(self, trainer: TrainerConfig, problems: int, seed: int) -> "DynamicSchedule":
        """Informative groups of as many steps as a batch takes."""
        self.check(trainer, problems)
        return DynamicSchedule(trainer, problems, seed)


class DynamicSchedule(EpochSchedule):
    """Passes over the data whose informative groups alone make batches, of any size."""

    def finished(self, groups: Sequence["Group"]) -> None:
        """Keep the informative groups of a step."""
        self.waiting += [group for group in groups if group.informative]

    def batch(self) -> list["Group"] | None:
        """The groups that waited longest, once a batch is full."""
        batch = super().batch()
        # `super().batch` has emptied the queue, so that the rest is dropped.
        return None if batch is None else batch[: self.batch_prompts]
