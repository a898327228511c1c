"""A toggle and a ladder replayed on the traces that a run with self-speculation has recorded.

Up to the pass at which the run itself switched speculation on, its passes do not depend on what controlled it: another
toggle would have seen the same ones. Behind that pass a block made several tokens; a toggle that switches later is
asked there once a block and not once a token. A ladder hears the tokens of a block that were measured; where it has
another draft length than the run, those that the measured acceptance α gives with it (equation 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json_lines
from redraft.selfspec.controller import Control, Stretch, passes_of
from redraft.selfspec.roofline import block_efficiency, token_acceptance


@dataclass(frozen=True)
class Rollout:
    """A rollout of training as it was recorded, or replayed, with its draft length γ and its passes.

    `step` counts from 0; `tau` is the mean number of tokens of a block, None without one.
    """

    step: int
    gamma: int
    tau: float | None
    trace: tuple[Stretch, ...]

    @property
    def switch(self) -> Stretch | None:
        """The passes at which speculation began; None if it did not."""
        return next((stretch for stretch in self.trace if stretch.proposals), None)

    @property
    def plain(self) -> int:
        """Passes without speculation."""
        return sum(stretch.passes for stretch in self.trace if not stretch.proposals)

    @property
    def speculated(self) -> int:
        """Passes with speculation."""
        return sum(stretch.passes for stretch in self.trace if stretch.proposals)

    def tau_at(self, gamma: int) -> float | None:
        """Mean tokens of a block with another draft length."""
        if self.tau is None or gamma == self.gamma:
            return self.tau
        alpha = float(token_acceptance(self.tau - 1, self.gamma))
        return float(block_efficiency(alpha, gamma))


def read_rollouts(file: Path) -> list[Rollout]:
    """Rollouts of a run's `steps.jsonl`.

    Raises:
        UserError: if it is missing or damaged, or holds no trace.
    """
    records: list[Mapping[str, Any]] = [record for record in read_json_lines(file) if "passes" in record]
    if not records:
        raise UserError(
            "these records hold no trace of passes",
            file=file,
            key="passes",
            allowed="steps.jsonl of a run with self-speculation",
        )
    return [
        Rollout(
            record["step"],
            record["draft_length"],
            record["block_efficiency"],
            tuple(Stretch(*stretch) for stretch in record["passes"]),
        )
        for record in records
    ]


def replay(control: Control, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same passes under another control, which is asked before each pass, hears of each rollout, and is changed."""
    found = []
    for rollout in rollouts:
        control.begin()
        for active, length in passes_of(rollout.trace):
            control.draft_length(active, length)
        again = Rollout(rollout.step, control.gamma, rollout.tau_at(control.gamma), tuple(control.trace))
        found.append(again)
        control.adapt(again.tau if again.speculated else None)
    return found
