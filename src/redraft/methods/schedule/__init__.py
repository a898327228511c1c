"""Schedules: which prompts are rolled out in a step, and which groups the policy is updated from."""

from redraft.config.experiment import Run
from redraft.config.schedule import DynamicSampling, Epochs, Speed
from redraft.methods.schedule.base import Schedule, ScheduleState
from redraft.methods.schedule.dynamic import DynamicSchedule
from redraft.methods.schedule.epochs import EpochSchedule
from redraft.methods.schedule.speed import SpeedSchedule

__all__ = ["Schedule", "ScheduleState", "schedule"]


def schedule(run: Run, problems: int) -> Schedule:
    """The schedule of a run over so many problems.

    Raises:
        UserError: if the batches do not fit the problems or each other.
    """
    run.schedule.check(run.trainer, problems)
    match run.schedule:
        case Epochs():
            return EpochSchedule(run.trainer, problems, run.seed)
        case DynamicSampling():
            return DynamicSchedule(run.trainer, problems, run.seed)
        case Speed() as speed:
            return SpeedSchedule(speed, run.trainer, problems, run.seed)
