"""Where a step's time goes, by the stages of SPEC-RL's Table 4."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = (
    "verification", "rollout", "assembly", "reward", "old_log_probs", "ref", "values", "adv", "update_critic",
    "update_actor", "others",
)  # fmt: skip


class StageClock:
    """Seconds a stage; `others` is what no stage claims, so that stages always sum to the step."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._excluded = 0.0
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count a block's time as that stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave a block's time out of the step: measurement that training does not need."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._excluded += time.perf_counter() - began

    def finish(self) -> dict[str, float]:
        """Seconds by stage and in `total`."""
        total = time.perf_counter() - self._began - self._excluded
        claimed = sum(seconds for name, seconds in self.seconds.items() if name != "others")
        self.seconds["others"] = max(total - claimed, 0.0)
        return {**self.seconds, "total": claimed + self.seconds["others"]}
