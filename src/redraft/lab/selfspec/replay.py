"""Replay of a toggle and a ladder on the passes that a run with self-speculation recorded.

Before the run switches speculation on, its passes do not depend on the control, so the replay is exact. After the
switch each recorded pass is a block of several tokens. A toggle that switches later is then called once per block
instead of once per token, and its blocks are counted too low. The ladder receives the measured tokens per block τ. If
its draft length differs from the run's, τ follows from the measured acceptance α at that length (equation 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, FiniteFloat, Strict, TypeAdapter, model_validator

from redraft.config.base import MOST_ROWS, MOST_TOKENS
from redraft.config.decoding import LONGEST_DRAFT
from redraft.errors import UserError
from redraft.lab.selfspec.simulate import check_selfspec
from redraft.result_files import Typed, check_record, read_steps
from redraft.selfspec.controller import Control, Stretch, passes_of
from redraft.selfspec.roofline import block_efficiency, token_acceptance

RecordedStretch = tuple[
    Annotated[int, Field(ge=1, le=MOST_ROWS)],
    Annotated[int, Field(ge=0, le=LONGEST_DRAFT)],
    Annotated[int, Field(ge=1, le=MOST_TOKENS)],
    FiniteFloat,
    FiniteFloat,
]
"""The fields of `Stretch`. Nothing could compute with larger numbers of passes, each of which has a length."""


class PassFields(Typed):
    """Type of the field of a step's record that has its passes."""

    # JSON has lists only, which strict types reject as tuples.
    passes: list[Annotated[RecordedStretch, Strict(strict=False)]]


class TraceFields(PassFields):
    """Types of the fields of a step's record that a replay computes with."""

    draft_length: Annotated[int, Field(ge=1, le=LONGEST_DRAFT)]
    block_efficiency: FiniteFloat | None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.block_efficiency is not None and not 1 <= self.block_efficiency <= self.draft_length + 1:
            raise ValueError("a block_efficiency from 1 to draft_length + 1")
        return self


TRACE_FIELDS: TypeAdapter[Any] = TypeAdapter(TraceFields)


@dataclass(frozen=True)
class TracedRollout:
    """The passes of one training step's rollout, recorded or replayed.

    Attributes:
        step: counts from 0.
        gamma: draft length γ.
        tau: mean tokens per block; None without blocks.
        trace: consecutive passes of equal batch size.
    """

    step: int
    gamma: int
    tau: float | None
    trace: tuple[Stretch, ...]

    @property
    def switch(self) -> Stretch | None:
        """The first passes with speculation; None without any."""
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
        """Mean tokens per block at another draft length, by equation 1."""
        if self.tau is None or gamma == self.gamma:
            return self.tau
        # τ counts the token after the kept proposals, which is always there.
        alpha = float(token_acceptance(self.tau - 1, self.gamma))
        return float(block_efficiency(alpha, gamma))


def read_rollouts(file: Path) -> list[TracedRollout]:
    """Rollouts of a run's `steps.jsonl`.

    Raises:
        UserError: if the file is missing or damaged, records no passes, or lacks a field that belongs to them.
    """
    # Plain decoding has passes only, and other trainers none; `read_steps` checks the rest of the file.
    others = ("draft_length", "block_efficiency")
    records = [record for record in read_steps(file) if "passes" in record and any(name in record for name in others)]
    if not records:
        raise UserError(
            "these records have no passes with speculation",
            file=file,
            key="passes",
            allowed="steps.jsonl of a run with self-speculation",
        )
    for record in records:
        check_record(record, TRACE_FIELDS, file)
        check_selfspec(record, file)
    return [
        TracedRollout(
            record["step"],
            record["draft_length"],
            record["block_efficiency"],
            tuple(Stretch(*stretch) for stretch in record["passes"]),
        )
        for record in records
    ]


def replay(control: Control, rollouts: Sequence[TracedRollout]) -> list[TracedRollout]:
    """The rollouts as another control would have run them; mutates the control, as training does."""
    replayed = []
    for rollout in rollouts:
        control.begin()
        # Only active responses and lengths enter; the control decides and records by itself.
        for active, length in passes_of(rollout.trace):
            control.draft_length(active, length)
        rollout_now = TracedRollout(rollout.step, control.gamma, rollout.tau_at(control.gamma), tuple(control.trace))
        replayed.append(rollout_now)
        # Without a block of its own the replayed control has measured nothing, whatever the run did.
        control.adapt(rollout_now.tau if rollout_now.speculated else None)
    return replayed
