"""verl's manager of agent loops with this project's rollout workers."""

from collections.abc import Sequence
from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from redraft.config.base import GENERATION_STAGES
from redraft.rollout.storage import unpack_groups
from redraft.rollout.types import Group, Task
from redraft.train.verl.rollout_worker import RolloutWorker


class RolloutManager(AgentLoopManagerTQ):
    """Distributes tasks over workers. If a worker fails or dies, Ray's error ends the run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # verl creates its workers from this class, after the constructor.
        self.agent_loop_workers_class = ray.remote(RolloutWorker)

    def _spread(self, method: str, tasks: Sequence[Task], step: int) -> list[Any]:
        """Call a method of all n workers, each on every n-th task; returns the results."""
        workers = self.agent_loop_workers
        parts = [list(tasks[i :: len(workers)]) for i in range(len(workers))]
        calls = [getattr(w, method).remote(part, step) for w, part in zip(workers, parts, strict=True) if part]
        return ray.get(calls)

    def roll_out(self, tasks: Sequence[Task], step: int) -> tuple[list[Group], dict[str, float], int, float]:
        """Groups in the order of their tasks, wait in seconds by stage, cached tokens, and CPU seconds of grading."""
        parts = self._spread("roll_out", tasks, step)
        groups = {group.prompt: group for part in parts for group in unpack_groups(part.groups)}
        seconds = {stage: sum(part.seconds[stage] for part in parts) for stage in GENERATION_STAGES}
        grading = sum(part.grading_seconds for part in parts)
        return [groups[task.prompt] for task in tasks], seconds, sum(part.cached for part in parts), grading

    def fresh(self, tasks: Sequence[Task], step: int) -> list[Group]:
        """Groups of new samples of the current policy, in the order of their tasks."""
        groups = {group.prompt: group for part in self._spread("fresh", tasks, step) for group in unpack_groups(part)}
        return [groups[task.prompt] for task in tasks]
