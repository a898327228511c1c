"""Adaptive length of drafts: a ladder that is climbed while acceptance is high.

Source: EfficientRollout (arXiv 2606.18967), section 4.3. The length changes between rollouts only. It rises one rung
when τ >= 1 + γ α_up in `patience` consecutive training rollouts, and falls one rung when τ <= 1 + γ α_down in as many.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """State of a ladder.

    Attributes:
        rung: index of the length in use.
        high: consecutive rollouts with high acceptance since the last move.
        low: likewise with low acceptance.
    """

    rung: int = 0
    high: int = 0
    low: int = 0


START = Position()
"""The shortest length, as in the released scripts."""


@dataclass(frozen=True)
class Ladder:
    """Lengths and when to move; defaults are those of the released scripts and Appendix E.3, which leaves out γ = 3.

    Attributes:
        lengths: γ by rung, rising.
        raise_at: α_up.
        lower_at: α_down.
        patience: consecutive rollouts that a move takes.

    Raises:
        ValueError: for lengths that do not rise from 1 or more, thresholds not in 0 <= lower_at < raise_at <= 1, or a
            patience below 1.
    """

    lengths: tuple[int, ...] = (5, 7, 9, 11)
    raise_at: float = 0.94
    lower_at: float = 0.85
    patience: int = 2

    def __post_init__(self) -> None:
        rising = bool(self.lengths) and sorted({*self.lengths, 0}) == [0, *self.lengths]
        if not rising or not 0 <= self.lower_at < self.raise_at <= 1 or self.patience < 1:
            raise ValueError(f"needs rising lengths, 0 <= lower_at < raise_at <= 1 and patience >= 1, got {self}")

    def gamma(self, position: Position) -> int:
        """Length of drafts at a position."""
        return self.lengths[position.rung]

    def after(self, position: Position, tau: float | None) -> Position:
        """Position for the next rollout.

        Args:
            position: that of this rollout.
            tau: tokens of a block that this rollout measured; None if it did not speculate, which changes nothing.

        Raises:
            ValueError: for τ outside [1, γ + 1].
        """
        if tau is None:
            return position
        gamma = self.gamma(position)
        if not 1 <= tau <= gamma + 1:
            raise ValueError(f"a block of gamma = {gamma} cannot have {tau} tokens")
        high = position.high + 1 if tau >= 1 + gamma * self.raise_at else 0
        low = position.low + 1 if tau <= 1 + gamma * self.lower_at else 0
        if high >= self.patience:
            return Position(min(position.rung + 1, len(self.lengths) - 1))
        if low >= self.patience:
            return Position(max(position.rung - 1, 0))
        return Position(position.rung, high, low)
