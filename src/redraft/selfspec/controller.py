"""Control of a run's speculation: whether a pass speculates, and with how many proposals.

It composes the toggle, which decides within a rollout, and the ladder, which moves between rollouts of training. It
records the passes of a rollout as the toggle saw them, for a replay. A rollout of thousands of passes changes its batch
a few hundred times. So passes are kept in stretches: those that follow each other with the same responses, and propose
equally many tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from redraft.selfspec.draft_length import START, Ladder, Position
from redraft.selfspec.toggle import OFF, Rule, Toggle


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
