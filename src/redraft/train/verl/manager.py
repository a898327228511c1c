"""The processes that roll out: verl's manager of agent loops, with this project's workers."""

from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from redraft.train.verl.worker import WorkerProcess


class GroupManager(AgentLoopManagerTQ):
    """Spreads prompts over workers that run group strategies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = WorkerProcess

    def check(self) -> None:
        """Raise Ray's error if a worker is gone, for whose groups verl would wait for ever."""
        ray.get([worker.check.remote() for worker in self.agent_loop_workers])

    def fresh_rewards(self, prompts: list[int], step: int) -> list[float]:
        """Rewards of new samples of the current policy on these prompts."""
        workers = self.agent_loop_workers
        parts = [prompts[i :: len(workers)] for i in range(len(workers))]
        calls = [w.fresh_rewards.remote(part, step) for w, part in zip(workers, parts, strict=True) if part]
        return [reward for part in ray.get(calls) for reward in part]
