"""Control of a run's speculation: whether a pass speculates, and with how many proposals.

Source: EfficientRollout (arXiv 2606.18967). A toggle switches speculation on within a rollout (section 4.2, equation
3). It is asked before every pass, with the sequences that decode and their mean length. It starts off at each rollout.
It stays off until more than `ramp` sequences have been active at once: a rollout fills its batch request by request,
and a batch that is still small would look like the end. Once on it stays on, since the batch only shrinks.

A ladder adapts the length of drafts between rollouts of training (section 4.3). It rises one rung when τ >= 1 + γ α_up
in `patience` consecutive training rollouts, and falls one rung when τ <= 1 + γ α_down in as many.

`Control` composes them. It records the passes of a rollout as the toggle saw them, for a replay. A rollout of thousands
of passes changes its batch a few hundred times. So passes are kept in stretches: those that follow each other with the
same responses, and propose equally many tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import numpy as np

from redraft.selfspec.calibration import Calibration
from redraft.selfspec.roofline import MARGIN, Numbers, speedup

RAMP = 32
"""The ramp guard of the released scripts."""


class SwitchRule(Protocol):
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
class ToggleState:
    """State of a toggle within one rollout.

    Attributes:
        ramped: whether more than `ramp` sequences have been active at once.
        on: whether speculation is on.
    """

    ramped: bool = False
    on: bool = False


OFF = ToggleState()
"""Every rollout's first state."""


@dataclass(frozen=True)
class Toggle:
    """The state machine; states are values, and a new rollout begins with `OFF`.

    Attributes:
        rule: whether speculation pays.
        ramp: sequences that must have been exceeded once.
    """

    rule: SwitchRule
    ramp: int = RAMP

    def after(self, state: ToggleState, active: int, length: float) -> ToggleState:
        """State for the next pass, with `active` sequences that decode, of this mean length with the prompt."""
        return self.over(state, active, np.array([length]))[1]

    def over(self, state: ToggleState, active: int, lengths: np.ndarray) -> tuple[int, ToggleState]:
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
            return 0, ToggleState(ramped, on=True)
        pays = self.rule.pays(active, lengths) & ramped
        return (int(np.argmax(pays)) if pays.any() else len(lengths)), ToggleState(ramped, on=bool(pays.any()))


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


class Stretch(NamedTuple):
    """Consecutive passes with the same responses.

    Attributes:
        active: responses that decode.
        proposals: of each response in a pass; 0 without speculation.
        passes: 1 or more.
        first: mean length of the responses with their prompts before the first pass, tokens.
        last: the same before the last pass.
    """

    active: int
    proposals: int
    passes: int
    first: float
    last: float

    @property
    def lengths(self) -> np.ndarray:
        """Mean length before each pass, float64 (passes,): exact without speculation, else evenly between the ends."""
        return np.linspace(self.first, self.last, self.passes)

    def followed_by(self, active: int, proposals: int, length: float) -> bool:
        """Whether a pass belongs to this stretch: the same responses are longer, by one token without speculation."""
        grown = length - self.last
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
    """Speculation of a run, as an engine asks for it (`redraft.engines.torch.self_speculation.Controller`).

    Args:
        ladder: lengths of drafts; with one the length is fixed.
        rule: gives the rule of a rollout from its draft length and from the tokens of a block that the last rollout
            measured (τ), at most one more than the draft length; None before there is one.
        ramp: active responses that must have been exceeded once in a rollout.

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
        accepted = None if self._accepted is None else min(self._accepted, self.gamma + 1)
        self._toggle, self._state = Toggle(self._rule(self.gamma, accepted), self._ramp), OFF
        self.trace = []

    def draft_length(self, active: int, mean_length: float) -> int:
        """Proposals of each response in the next pass; 0 for a plain one."""
        self._state = self._toggle.after(self._state, active, mean_length)
        proposals = self.gamma if self._state.on else 0
        extend(self.trace, active, proposals, mean_length)
        return proposals

    def adapt(self, tau: float | None) -> None:
        """Hear what a rollout of training measured; None if it did not speculate, which changes nothing."""
        self._position = self._ladder.after(self._position, tau)
        self._accepted = self._accepted if tau is None else tau

    def state(self) -> dict[str, float | None]:
        """What a run that goes on needs."""
        return {**asdict(self._position), "accepted": self._accepted}

    def restore(self, state: Mapping[str, float | None]) -> None:
        """Go on from `state`."""
        self._position = Position(*(int(state[name] or 0) for name in ("rung", "high", "low")))
        self._accepted = state["accepted"]
