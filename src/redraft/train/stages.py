"""Clock of a step's stages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from redraft.config.base import STEP_STAGES


class StageClock:
    """Seconds of a step by stage; `others` is what no stage claims, so that stages always sum to the step.

    Args:
        now: seconds, of the device or machine that does the work.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._began = now()
        self._left_out = 0.0
        self.seconds = dict.fromkeys(STEP_STAGES, 0.0)

    def add(self, seconds: Mapping[str, float], unseen: float = 0.0) -> None:
        """Claim seconds for stages; `unseen` of them passed while the clock stood still."""
        for stage, value in seconds.items():
            self.seconds[stage] += value
        self._left_out -= unseen

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
        """Leave a block's time out of the step: measurement and checkpoints, which training itself does not need."""
        began = self.now()
        try:
            yield
        finally:
            self._left_out += self.now() - began

    def finish(self) -> dict[str, float]:
        """Seconds by stage and in `total`."""
        total = self.now() - self._began - self._left_out
        claimed = sum(seconds for name, seconds in self.seconds.items() if name != "others")
        self.seconds["others"] = max(total - claimed, 0.0)
        return {**self.seconds, "total": claimed + self.seconds["others"]}
