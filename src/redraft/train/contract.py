"""A trainer's part of a step. The campaign loop (`redraft.train.loop`) does the rest, for every trainer alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from redraft.rollout.types import Group, Task

Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class RolloutResult:
    """Groups of a step, and what they cost.

    Attributes:
        groups: in the order of their tasks.
        seconds: by stage.
        cached: tokens of prompts and kept prefixes that engines did not compute again.
        grading_seconds: processor seconds that graders worked, mostly beside the engine.
        unseen: seconds of `seconds` in which the trainer's clock stood still.
        measured: further fields of the step's record.
    """

    groups: list[Group]
    seconds: Mapping[str, float]
    cached: int
    grading_seconds: float
    unseen: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateResult:
    """Measurements of an update, and its seconds by stage."""

    metrics: Metrics
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FreshSamples:
    """New samples of the current policy, which nothing is trained on."""

    rewards: list[float]
    kl: float | None = None
    """Of the policy from the reference policy, on these samples, nats a token; None without a reference."""


class Trainer(Protocol):
    """Computes steps. A trainer keeps models, optimizers and memory; it knows neither schedule nor records."""

    @property
    def no_update(self) -> Metrics:
        """Metrics of a step that only rolls out: those of an update, all None."""
        ...

    def now(self) -> float:
        """Clock that steps are timed by, seconds."""
        ...

    def roll_out(self, tasks: Sequence[Task], step: int) -> RolloutResult:
        """Roll tasks out under the current policy and remember what the method retains."""
        ...

    def update(self, groups: Sequence[Group]) -> UpdateResult:
        """Update the policy from graded groups; a UserError if it has diverged."""
        ...

    def publish(self) -> None:
        """Let the engine sample from the updated policy."""
        ...

    def fresh(self, tasks: Sequence[Task], step: int) -> FreshSamples:
        """Measure new samples of the current policy, as many for each task as it says."""
        ...

    def save(self, folder: Path) -> None:
        """Write models, optimizers, random state and memory into a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        ...

    def save_policy(self, checkpoint: Path, folder: Path) -> None:
        """Write the policy in transformers' format, whole or not at all; `checkpoint` holds this step's `save`."""
        ...
