"""DAPO's dynamic sampling (arXiv 2503.14476, §3.2): groups whose rewards are all equal teach nothing and are refilled.

Each step rolls out as many prompts as any other. Informative groups wait until a batch is full; what is over is
dropped, as in verl's DAPO recipe. The policy does not change while groups wait.
"""

from collections.abc import Sequence

from redraft.methods.schedule.epochs import EpochSchedule
from redraft.rollout.types import Group


class DynamicSchedule(EpochSchedule):
    """Passes over the data whose informative groups alone make batches, of any size."""

    def finished(self, groups: Sequence[Group]) -> None:
        """Keep the informative groups of a step."""
        self.waiting += [group for group in groups if group.informative]

    def batch(self) -> list[Group] | None:
        """The groups that waited longest, once a batch is full."""
        batch = super().batch()
        return None if batch is None else batch[: self.trainer.batch_prompts]
