"""Base of all schedules. Their state is groups that wait and a few values; all else follows from the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.methods.registry import Registered

if TYPE_CHECKING:
    from redraft.rollout.types import Group, Task


@dataclass(frozen=True)
class ScheduleState:
    """What a schedule continues from.

    Attributes:
        waiting: groups, by what they wait for.
        values: anything that JSON holds, by name.
    """

    waiting: Mapping[str, Sequence["Group"]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class Schedule(Protocol):
    """Decides, in the process that drives a run, what is rolled out and what is trained on.

    `tests/test_schedule_conformance.py` tests these properties of every registered schedule.
    """

    def epoch(self, step: int) -> int:
        """Pass over the data, from 0, that the next step is in."""
        ...

    def next(self, step: int) -> list["Task"]:
        """Tasks of a step, from 0; no prompt twice. Asking changes nothing."""
        ...

    def finished(self, groups: Sequence["Group"]) -> None:
        """Take the groups of those tasks, in their order."""
        ...

    def batch(self) -> list["Group"] | None:
        """Groups to update from, or None while there are not enough; called once a step, after `finished`."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Counts of the step that was finished last, for its record."""
        ...

    def state(self) -> ScheduleState:
        """All that the next step depends on, but for its number; later steps leave it as it is."""
        ...

    def restore(self, state: ScheduleState) -> None:
        """Continue from a state."""
        ...


class ScheduleMethod(Registered):
    """Selection of the prompts that a step rolls out, and of the groups that the policy is updated from."""

    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that the schedule adds to each step's record (`Schedule.counts`). Tables and figures may name
    them."""

    def check(self, trainer: TrainerConfig, problems: int) -> None:
        """Reject sizes that do not fit each other.

        Raises:
            UserError: for the first such size.
        """

    def schedule(self, trainer: TrainerConfig, problems: int, seed: int) -> Schedule:
        """The schedule of a run over `problems` prompts.

        Raises:
            UserError: as of `check`.
        """
        raise NotImplementedError

    @classmethod
    def examples(cls) -> list[Self]:
        """Settings that the conformance tests try, with a trainer of 3 prompts a step and groups of 3."""
        return [cls()]


def check_steps(trainer: TrainerConfig, problems: int) -> None:
    """Reject a step that does not divide the data.

    Raises:
        UserError: if it does not.
    """
    if problems % trainer.prompts_per_step:
        raise UserError(
            "prompts_per_step must divide the number of problems",
            key="trainer.prompts_per_step",
            value=trainer.prompts_per_step,
            allowed=f"divisors of {problems}",
        )
