"""A shard of the memory in a separate process: the retained rollouts of some prompts.

Prompts are assigned to shards by their index in the data, so that no process holds the whole memory.
"""

from pathlib import Path

from redraft.config.retention import Retention
from redraft.rollout.memory import Memory
from redraft.rollout.storage import unpack_groups


class Shard:
    """Memory of some prompts. Ray runs its methods one at a time."""

    def __init__(self, retention: Retention) -> None:
        self.memory = Memory(retention)

    def find(self, prompt: int) -> bytes:
        """Memory of one prompt, packed."""
        return self.memory.part(prompt).packed()

    def put(self, groups: bytes) -> None:
        """Remember packed groups."""
        for group in unpack_groups(groups):
            self.memory.put(group)

    def save(self, file: str) -> None:
        """Write the memory to a file, atomically."""
        self.memory.save(Path(file))

    def load(self, files: list[str], number: int, of: int) -> None:
        """Load this shard's prompts from saved memory.

        Args:
            files: all saved files; the number of shards may have been different.
            number: index of this shard.
            of: current number of shards.
        """
        retention = self.memory.retention
        self.memory = Memory(retention)
        for file in files:
            self.memory.take(Memory.load(Path(file), retention), lambda prompt: prompt % of == number)


def name_of(number: int) -> str:
    """Ray's name of a shard."""
    return f"redraft-memory-{number}"
