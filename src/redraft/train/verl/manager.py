"""The processes that roll out, as verl starts them: its manager of agent loops, with this project's workers."""

from collections.abc import Sequence
from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from redraft.config.base import GENERATION_STAGES
from redraft.rollout.storage import unpack_groups
from redraft.rollout.types import Group, Task
from redraft.train.verl.rollout_worker import RolloutWorker


class RolloutManager(AgentLoopManagerTQ):
    """Spreads tasks over workers. Ray's error of a worker that fails or dies ends the run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(RolloutWorker)

    def _spread(self, method: str, tasks: Sequence[Task], step: int) -> list[Any]:
        """Results of a worker's method on parts of the tasks: every n-th task is in one."""
        workers = self.agent_loop_workers
        parts = [list(tasks[i :: len(workers)]) for i in range(len(workers))]
        calls = [getattr(w, method).remote(part, step) for w, part in zip(workers, parts, strict=True) if part]
        return ray.get(calls)

    def roll_out(self, tasks: Sequence[Task], step: int) -> tuple[list[Group], dict[str, float], int, float]:
        """Groups in the order of their tasks, seconds waited by stage, tokens found in the cache, grading seconds."""
        parts = self._spread("roll_out", tasks, step)
        groups = {group.prompt: group for part in parts for group in unpack_groups(part.groups)}
        seconds = {stage: sum(part.seconds[stage] for part in parts) for stage in GENERATION_STAGES}
        grading = sum(part.grading_seconds for part in parts)
        return [groups[task.prompt] for task in tasks], seconds, sum(part.cached for part in parts), grading

    def fresh(self, tasks: Sequence[Task], step: int) -> list[Group]:
        """Groups of new samples of the current policy, in the order of their tasks."""
        groups = {group.prompt: group for part in self._spread("fresh", tasks, step) for group in unpack_groups(part)}
        return [groups[task.prompt] for task in tasks]
