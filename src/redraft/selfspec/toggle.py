"""When speculation is switched on within a rollout (EfficientRollout, arXiv 2606.18967, section 4.2, equation 3).

A toggle is asked before every pass, with the sequences that decode and their mean length. It starts off at each
rollout. It stays off until more than `ramp` sequences have been active at once: a rollout fills its batch request by
request, and a batch that is still small would look like the end. Once on it stays on, since the batch only shrinks.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import MARGIN, Numbers, speedup

RAMP = 32
"""The ramp guard of the released scripts."""


class Rule(Protocol):
    """Whether speculation pays in a state."""

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether it pays with so many active sequences of this mean length; arguments broadcast."""


@dataclass(frozen=True)
class Roofline:
    """Speculation pays where the roofline promises a speedup of 1 + margin (equation 3).

    Attributes:
        calibration: of the model on this device.
        gamma: tokens of a draft.
        accepted: tokens of a block (τ), measured in the last rollout; None, if there is none, counts as γ, as in the
            released code.
        margin: δ.

    Raises:
        ValueError: for τ outside [1, γ + 1] or γ < 1.
    """

    calibration: Calibration
    gamma: int
    accepted: float | None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if self.gamma < 1 or not 1 <= self.tau <= self.gamma + 1:
            raise ValueError(f"a block of gamma = {self.gamma} cannot have {self.tau} tokens")

    @property
    def tau(self) -> float:
        """Tokens of a block that are expected."""
        return self.gamma if self.accepted is None else self.accepted

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether the promised speedup is large enough."""
        return speedup(self.calibration, active, length, self.gamma, self.tau) >= 1 + self.margin


@dataclass(frozen=True)
class Threshold:
    """Speculation pays at this many active sequences or fewer, whatever their length; always, if that is infinite."""

    largest: float

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether few enough sequences are active."""
        return (np.asarray(active) <= self.largest) & np.full(np.shape(length), True)


@dataclass(frozen=True)
class State:
    """State of a toggle within one rollout.

    Attributes:
        ramped: whether more than `ramp` sequences have been active at once.
        on: whether speculation is on.
    """

    ramped: bool = False
    on: bool = False


OFF = State()
"""Every rollout's first state."""


@dataclass(frozen=True)
class Toggle:
    """The state machine; states are values, and a new rollout begins with `OFF`.

    Attributes:
        rule: whether speculation pays.
        ramp: sequences that must have been exceeded once.
    """

    rule: Rule
    ramp: int = RAMP

    def after(self, state: State, active: int, length: float) -> State:
        """State for the next pass, with `active` sequences that decode, of this mean length with the prompt."""
        return self.over(state, active, np.array([length]))[1]

    def over(self, state: State, active: int, lengths: np.ndarray) -> tuple[int, State]:
        """Passes of a constant batch until speculation is on, and the state then.

        Args:
            state: that of the last pass.
            active: sequences that decode.
            lengths: their mean length before each of the passes, (n,) with n >= 1.

        Returns:
            Number of passes without speculation, n if it stays off.
        """
        ramped = state.ramped or active > self.ramp
        if state.on:
            return 0, State(ramped, on=True)
        pays = self.rule.pays(active, lengths) & ramped
        return (int(np.argmax(pays)) if pays.any() else len(lengths)), State(ramped, on=bool(pays.any()))
