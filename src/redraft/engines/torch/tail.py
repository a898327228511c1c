"""The tail of a rollout: the time in which few responses still decode and most of the engine idles."""

from dataclasses import dataclass, field

FEW = 0.1
"""Share of the most responses that decoded at once below which a pass is one of the tail."""


@dataclass
class Activity:
    """Decoding passes of a rollout.

    Attributes:
        seconds: of all passes by the number of responses that decoded in them.
    """

    seconds: dict[int, float] = field(default_factory=dict)

    def add(self, active: int, seconds: float) -> None:
        """Count a pass."""
        self.seconds[active] = self.seconds.get(active, 0.0) + seconds

    @property
    def tail_share(self) -> float | None:
        """Share of the passes' seconds with fewer than a tenth of the most active responses; None without a pass."""
        total, most = sum(self.seconds.values()), max(self.seconds, default=0)
        if not total:
            return None
        return sum(seconds for active, seconds in self.seconds.items() if active < FEW * most) / total
