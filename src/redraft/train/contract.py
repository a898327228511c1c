"""A trainer's part of a step. The training loop (`redraft.train.loop`) does the rest, the same for every trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from redraft.rollout.types import Group, Task

Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class RolloutResult:
    """Groups of a step, and their cost.

    Attributes:
        groups: in the order of their tasks.
        seconds: by stage.
        cached: tokens of prompts and kept prefixes that engines did not compute again.
        grading_seconds: processor time of the graders, most of it while the engine was decoding.
        unseen: part of `seconds` during which the trainer's clock did not advance.
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
    """Metrics of an update, and its wall time by stage, in seconds."""

    metrics: Metrics
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FreshSamples:
    """Samples of the current policy that are only measured, not trained on."""

    rewards: list[float]
    kl: float | None = None
    """KL divergence of the policy from the reference policy on these samples, nats per token; None without one."""


class Trainer(Protocol):
    """Computes steps. A trainer keeps models, optimizers and memory; it knows neither schedule nor records."""

    @property
    def no_update(self) -> Metrics:
        """Metrics of a step without an update: the keys of an update's metrics, all None."""
        ...

    def now(self) -> float:
        """Clock that times the steps, in seconds."""
        ...

    def roll_out(self, tasks: Sequence[Task], step: int) -> RolloutResult:
        """Roll out tasks under the current policy, and store in memory what the method retains."""
        ...

    def update(self, groups: Sequence[Group]) -> UpdateResult:
        """Update the policy from graded groups; raises a UserError if it has diverged."""
        ...

    def publish(self) -> None:
        """Let the engine sample from the updated policy."""
        ...

    def fresh(self, tasks: Sequence[Task], step: int) -> FreshSamples:
        """Measure new samples of the current policy, `task.samples` for each task."""
        ...

    def save(self, folder: Path) -> None:
        """Write models, optimizers, random state and memory into a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Load what `save` wrote."""
        ...

    def save_policy(self, checkpoint: Path, folder: Path) -> None:
        """Write the policy atomically in transformers' format; the folder `checkpoint` holds this step's `save`."""
        ...
