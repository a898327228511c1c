"""A part of the draft store as a process of its own: drafts of some prompts, and the groups of the step in progress.

Prompts are spread over shards by their index in the data, so that no process holds all. A shard is bounded by what a
method can use: the last epoch's rollouts of its prompts, the last two for delayed reuse, none for vanilla.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from redraft.config.reuse import Reuse
from redraft.rollout.drafts import DraftStore, pack, unpack
from redraft.rollout.types import Rollout

GENERATION_STAGES = ("verification", "rollout", "assembly", "reward")
"""Stages of a step that groups go through by themselves, at the same time."""


@dataclass(frozen=True, eq=False)
class Group:
    """The finished rollouts of one prompt.

    Attributes:
        step: generation step, from 0.
        epoch: pass over the data, from 0.
        rollouts: of the prompt, in the order of their samples.
        rewards: of these, float32 (rollouts,), before any shaping.
        seconds: waited for each of `GENERATION_STAGES`.
        cached: tokens of continuations' prompts and prefixes that the engine did not compute again.
    """

    step: int
    epoch: int
    rollouts: list[Rollout]
    rewards: np.ndarray
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached: int = 0

    def packed(self) -> dict[str, Any]:
        """As flat arrays and numbers, which processes exchange without pickling every rollout."""
        return {**vars(self), "rollouts": pack(self.rollouts)}

    @classmethod
    def unpacked(cls, content: Mapping[str, Any]) -> "Group":
        """The inverse of `packed`."""
        return cls(**{**content, "rollouts": unpack(content["rollouts"])})


def epochs_kept(method: Reuse) -> int:
    """How many epochs' rollouts a method can find drafts in."""
    return method.retention.visits


class Shard:
    """Drafts and finished groups of a part of the prompts. Ray runs its methods one after the other.

    Args:
        epochs: of drafts that are kept; 0 keeps none.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.drafts = DraftStore(max(epochs, 1))
        self.groups: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def find(self, prompt: int, group_size: int, epochs: list[int]) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Drafts of a prompt's samples in these epochs, packed, by epoch."""
        found = []
        for epoch in epochs:
            drafts = [self.drafts.get(prompt, sample, epoch) for sample in range(group_size)]
            found.append((epoch, pack([draft for draft in drafts if draft])))
        return found

    def finish(self, group: dict[str, Any]) -> None:
        """Take in a finished group: for the step's record and, where the method reuses any, as drafts."""
        self.groups.append(group)
        if self.epochs:
            for rollout in unpack(group["rollouts"]):
                self.drafts.put(rollout, group["epoch"])

    def fail(self, reason: str) -> None:
        """Note that a group could not be rolled out."""
        self.failures.append(reason)

    def failed(self) -> list[str]:
        """Why groups failed so far."""
        return self.failures

    def drain(self) -> list[dict[str, Any]]:
        """The groups finished since the last call, packed."""
        groups, self.groups = self.groups, []
        return groups

    def save(self, file: str) -> None:
        """Write the drafts to a file, atomically."""
        self.drafts.save(Path(file))

    def load(self, files: list[str], number: int, of: int) -> None:
        """Go on from the drafts in these files, and from no group.

        Args:
            files: all that were saved, by however many shards.
            number: of this shard, which keeps the drafts of its prompts.
            of: shards that there are now.

        Raises:
            UserError: if a file is missing or damaged.
        """
        self.drafts = DraftStore(max(self.epochs, 1))
        self.groups = []
        for file in files:
            saved = DraftStore.load(Path(file), max(self.epochs, 1))
            for rollout, epoch in saved.items():
                if rollout.prompt % of == number:
                    self.drafts.put(rollout, epoch)


def name_of(number: int) -> str:
    """Ray's name of a shard."""
    return f"redraft-drafts-{number}"
