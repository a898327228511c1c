"""A part of the memory as a process of its own: what the method retains of some prompts.

Prompts are spread over shards by their index in the data, so that no process holds all.
"""

from pathlib import Path

from redraft.config.retention import Retention
from redraft.rollout.memory import Memory
from redraft.rollout.storage import unpack_groups


class Shard:
    """Memory of a part of the prompts. Ray runs its methods one after the other."""

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
        """Go on from the memory in these files.

        Args:
            files: all that were saved, by however many shards.
            number: of this shard, which keeps what is of its prompts.
            of: shards that there are now.
        """
        retention = self.memory.retention
        self.memory = Memory(retention)
        for file in files:
            self.memory.take(Memory.load(Path(file), retention), lambda prompt: prompt % of == number)


def name_of(number: int) -> str:
    """Ray's name of a shard."""
    return f"redraft-memory-{number}"
