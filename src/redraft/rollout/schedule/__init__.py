"""Schedules: which prompts are rolled out in a step, and which groups the policy is updated from."""

from redraft.config.experiment import Run
from redraft.config.schedule import DynamicSampling, Epochs
from redraft.rollout.schedule.base import Schedule
from redraft.rollout.schedule.dynamic import DynamicSchedule
from redraft.rollout.schedule.epochs import EpochSchedule

__all__ = ["Schedule", "schedule"]


def schedule(run: Run, problems: int) -> Schedule:
    """The schedule of a run over so many problems.

    Raises:
        UserError: if the batches do not fit the problems or each other.
    """
    match run.schedule:
        case Epochs():
            return EpochSchedule(run.trainer, problems, run.seed)
        case DynamicSampling():
            return DynamicSchedule(run.trainer, problems, run.seed)
