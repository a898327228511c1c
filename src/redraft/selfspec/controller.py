"""Control of a run's speculation: whether a pass speculates, and with how many proposals.

It composes the toggle, which decides within a rollout, and the ladder, which moves between rollouts of training.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from redraft.selfspec.draft_length import START, Ladder, Position
from redraft.selfspec.roofline import Numbers
from redraft.selfspec.toggle import OFF, Rule, Toggle
from redraft.selfspec.trace import Stretch, extend


@dataclass(frozen=True)
class Always:
    """Speculation pays in every state."""

    def pays(self, active: Numbers, length: Numbers) -> np.ndarray:
        """True, in the shape of the arguments."""
        return np.full(np.broadcast_shapes(np.shape(active), np.shape(length)), True)


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

    def __init__(self, ladder: Ladder, rule: Callable[[int, float | None], Rule], ramp: int) -> None:
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
