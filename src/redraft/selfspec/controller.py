"""Control of a run's speculation: whether a pass speculates, and with how many proposals.

Source: EfficientRollout (arXiv 2606.18967). A toggle switches speculation on within a rollout (section 4.2, equation
3). It is updated before every pass with the number of decoding sequences and their mean length, and is off at the start
of each rollout. It stays off until more than `ramp` sequences have been active at once: a rollout fills its batch
request by request, and a batch that is still small would be mistaken for the tail. Once on it stays on while the batch
shrinks. In the paper it only shrinks; AR3PO's next stage fills it again, and then the rule decides again.

A ladder adapts the draft length between rollouts of training (section 4.3). It rises one rung when τ >= 1 + γ α_up in
`patience` consecutive training rollouts, and falls one rung when τ <= 1 + γ α_down in as many.

`Control` combines both. It records the passes of a rollout with the toggle's inputs, for a replay. A rollout of
thousands of passes changes its batch only a few hundred times, so consecutive passes with the same responses and the
same number of proposals are stored as one stretch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import numpy as np

from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import MARGIN, Numbers, speedup

RAMP = 32
"""The ramp guard of the released scripts, sequences."""


class SwitchRule(Protocol):
    """Decides whether speculation pays, from the batch alone."""

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether it pays with `active` sequences of mean length `length`, tokens; arguments broadcast."""


@dataclass(frozen=True)
class Roofline:
    """Speculation pays if the roofline predicts a speedup of at least 1 + margin (equation 3).

    Attributes:
        calibration: of the model on this device.
        gamma: tokens of a draft.
        accepted: mean tokens per block (τ) measured in the last rollout; None without a measurement, which counts as
            γ, as in the released code.
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
        """Expected tokens per block."""
        return self.gamma if self.accepted is None else self.accepted

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether the predicted speedup is large enough."""
        return speedup(self.calibration, active, length, self.gamma, self.tau) >= 1 + self.margin


@dataclass(frozen=True)
class Threshold:
    """Speculation pays with at most `largest` active sequences of any length; always, if that is infinite."""

    largest: float

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """Whether at most `largest` sequences are active."""
        # In the shape of both, as a roofline answers.
        return (np.asarray(active) <= self.largest) & np.full(np.shape(length), True)


@dataclass(frozen=True)
class ToggleState:
    """State of a toggle within one rollout.

    Attributes:
        ramped: whether more than `ramp` sequences have been active at once.
        on: whether speculation is on.
        active: sequences of the last pass.
    """

    ramped: bool = False
    on: bool = False
    active: float = math.inf


OFF = ToggleState()
"""First state of every rollout."""


@dataclass(frozen=True)
class Toggle:
    """The state machine; states are values, and a new rollout starts from `OFF`.

    Attributes:
        rule: decides whether speculation pays.
        ramp: number of active sequences that a rollout must have exceeded once.
    """

    rule: SwitchRule
    ramp: int = RAMP

    def after(self, state: ToggleState, active: int, length: float) -> ToggleState:
        """State for the next pass, with `active` decoding sequences of mean length `length`, prompt included."""
        return self.over(state, active, np.array([length]))[1]

    def over(self, state: ToggleState, active: int, lengths: np.ndarray) -> tuple[int, ToggleState]:
        """Passes of a constant batch until speculation is on, and the state at that point.

        Args:
            state: of the last pass.
            active: number of decoding sequences.
            lengths: their mean length before each of the passes, (n,) with n >= 1.

        Returns:
            Number of passes without speculation, n if it stays off.
        """
        ramped = state.ramped or active > self.ramp
        if state.on and active <= state.active:
            return 0, ToggleState(ramped, True, active)
        pays = self.rule.pays(active, lengths) & ramped
        # `argmax` is the first pass that pays.
        return (int(np.argmax(pays)) if pays.any() else len(lengths)), ToggleState(ramped, bool(pays.any()), active)


@dataclass(frozen=True)
class Position:
    """State of a ladder.

    Attributes:
        rung: index of the length in use.
        high: consecutive rollouts with high acceptance since the last move.
        low: the same with low acceptance.
    """

    rung: int = 0
    high: int = 0
    low: int = 0


START = Position()
"""The shortest length, as in the released scripts."""


@dataclass(frozen=True)
class Ladder:
    """Draft lengths and the thresholds between them.

    Defaults are those of the released scripts and Appendix E.3, which omits γ = 3.

    Attributes:
        lengths: γ by rung, rising.
        raise_at: α_up.
        lower_at: α_down.
        patience: number of consecutive rollouts before a move.

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
            position: in this rollout.
            tau: mean tokens per block, measured in this rollout; None without speculation, which changes nothing.

        Raises:
            ValueError: for τ outside [1, γ + 1].
        """
        if tau is None:
            return position
        gamma = self.gamma(position)
        if not 1 <= tau <= gamma + 1:
            raise ValueError(f"a block of gamma = {gamma} cannot have {tau} tokens")
        # Consecutive rollouts: any other one starts the count again.
        high = position.high + 1 if tau >= 1 + gamma * self.raise_at else 0
        low = position.low + 1 if tau <= 1 + gamma * self.lower_at else 0
        if high >= self.patience:
            return Position(min(position.rung + 1, len(self.lengths) - 1))
        if low >= self.patience:
            return Position(max(position.rung - 1, 0))
        return Position(position.rung, high, low)


class Stretch(NamedTuple):
    """Consecutive passes with the same responses.

    Attributes:
        active: number of decoding responses.
        proposals: per response and pass; 0 without speculation.
        passes: number of passes, 1 or more.
        first: mean length of responses and prompts before the first pass, tokens.
        last: the same before the last pass.
    """

    active: int
    proposals: int
    passes: int
    first: float
    last: float

    @property
    def lengths(self) -> np.ndarray:
        """Mean length before each pass, float64 (passes,): exact without speculation, else interpolated."""
        return np.linspace(self.first, self.last, self.passes)

    def followed_by(self, active: int, proposals: int, length: float) -> bool:
        """Whether a pass belongs to this stretch: the same responses have grown, by one token without speculation."""
        grown = length - self.last
        # A mean of many lengths is rounded, hence the tolerance. A speculated pass adds any number of tokens.
        same = grown > 0 if proposals else abs(grown - 1) < 1e-6
        return same and (active, proposals) == (self.active, self.proposals)


def extend(trace: list[Stretch], active: int, proposals: int, length: float) -> None:
    """Add a pass to a trace."""
    if trace and trace[-1].followed_by(active, proposals, length):
        trace[-1] = trace[-1]._replace(passes=trace[-1].passes + 1, last=length)
    else:
        trace.append(Stretch(active, proposals, 1, length, length))


def passes_of(trace: Iterable[Stretch]) -> Iterator[tuple[int, float]]:
    """Active responses and their mean length before each pass."""
    for stretch in trace:
        for length in stretch.lengths.tolist():
            yield stretch.active, length


class Control:
    """Speculation of a run; a `redraft.engines.torch.speculation.Controller`.

    Args:
        ladder: draft lengths; with one rung the length is fixed.
        rule: returns the rule of a rollout from its draft length and the last rollout's mean tokens per block (τ),
            clipped to the draft length + 1; None before the first measurement.
        ramp: number of active responses that a rollout must have exceeded once.

    Attributes:
        trace: passes of this rollout so far.
    """

    def __init__(self, ladder: Ladder, rule: Callable[[int, float | None], SwitchRule], ramp: int) -> None:
        self._ladder, self._rule, self._ramp = ladder, rule, ramp
        self._position, self._accepted = START, None
        self.begin()

    _accepted: float | None
    trace: list[Stretch]

    @property
    def gamma(self) -> int:
        """Length of drafts in this rollout."""
        return self._ladder.gamma(self._position)

    def begin(self) -> None:
        """Start a rollout, without speculation."""
        # The ladder may have moved to a shorter draft since τ was measured.
        accepted = None if self._accepted is None else min(self._accepted, self.gamma + 1)
        self._toggle, self._state = Toggle(self._rule(self.gamma, accepted), self._ramp), OFF
        self.trace = []

    def draft_length(self, active: int, mean_length: float) -> int:
        """Number of proposals per response in the next pass; 0 for a plain one."""
        self._state = self._toggle.after(self._state, active, mean_length)
        proposals = self.gamma if self._state.on else 0
        extend(self.trace, active, proposals, mean_length)
        return proposals

    def adapt(self, tau: float | None) -> None:
        """Update the ladder with the τ of a training rollout; None without speculation, which changes nothing."""
        self._position = self._ladder.after(self._position, tau)
        self._accepted = self._accepted if tau is None else tau

    def state(self) -> dict[str, float | None]:
        """State for a checkpoint."""
        return {**asdict(self._position), "accepted": self._accepted}

    def restore(self, state: Mapping[str, float | None]) -> None:
        """Restore the state of a checkpoint."""
        self._position = Position(*(int(state[name] or 0) for name in ("rung", "high", "low")))
        self._accepted = state["accepted"]
