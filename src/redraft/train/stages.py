"""Where a step's time goes, by the stages of SPEC-RL's Table 4."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from redraft.engines.clock import now

STAGES = (
    "verification", "rollout", "assembly", "reward", "old_log_probs", "ref", "values", "adv", "update_critic",
    "update_actor", "others",
)  # fmt: skip


class StageClock:
    """Seconds a stage; `others` is what no stage claims, so that stages always sum to the step.

    Args:
        device: whose work is counted as the stage's that gave it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._began = self.now()
        self._excluded = 0.0
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def now(self) -> float:
        """Seconds, when the device has done what it was given."""
        return now(self.device)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count a block's time as that stage."""
        began = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - began

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave a block's time out of the step: measurement that training does not need."""
        began = self.now()
        try:
            yield
        finally:
            self._excluded += self.now() - began

    def finish(self) -> dict[str, float]:
        """Seconds by stage and in `total`."""
        total = self.now() - self._began - self._excluded
        claimed = sum(seconds for name, seconds in self.seconds.items() if name != "others")
        self.seconds["others"] = max(total - claimed, 0.0)
        return {**self.seconds, "total": claimed + self.seconds["others"]}
