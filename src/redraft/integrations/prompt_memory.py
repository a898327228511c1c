"""A bounded memory of rollouts for trainers whose prompts have tokens but no numbers."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from redraft.config.base import Config
from redraft.config.retention import Retention
from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.rollout.memory import Memory
from redraft.rollout.types import Group, Task

ROLLOUTS, INDEX = "rollouts.arrow", "index.json"


@dataclass
class _Known:
    """A prompt with stored responses.

    Attributes:
        number: of the prompt in the memory; never used again for another prompt.
        visits: number of rollouts of the prompt since it was first stored.
        tokens: number of stored response tokens.
    """

    number: int
    visits: int
    tokens: int = 0


class _Index(Config):
    """Content of the index file: everything but the rollouts, and the hash of their file."""

    owner: dict[str, Any]
    retention: Retention
    counters: dict[str, int]
    next_number: int = Field(ge=0)
    prompts: dict[str, tuple[int, int]]
    """Number and visits by the hash of the prompt's tokens, the least recently rolled out prompt first."""
    sha256: str


class PromptMemory:
    """Earlier rollouts by the tokens of their prompts.

    A prompt is identified by a hash of its tokens, so a changed prompt has no drafts.

    Args:
        retention: rollouts that are kept of each prompt.
        most_tokens: a prompt is dropped if as many response tokens of more recently rolled out prompts are stored.
            Its own do not count: if long drafts were dropped and short ones kept, a kept draft would no longer be
            distributed as the policy samples.

    Attributes:
        memory: the rollouts, by the prompt numbers that `tasks` returns.
        counters: counters that are saved with the memory.
    """

    def __init__(self, retention: Retention, most_tokens: int) -> None:
        self.memory, self.most_tokens = Memory(retention), most_tokens
        self.counters: dict[str, int] = {}
        self._next_number, self._known = 0, dict[str, _Known]()

    def __len__(self) -> int:
        """Number of stored response tokens."""
        return sum(known.tokens for known in self._known.values())

    def tasks(self, prompts: Iterable[Sequence[int]]) -> dict[int, tuple[Task, list[int]]]:
        """Rollout tasks for these prompts, by prompt number.

        Args:
            prompts: prompt tokens of each requested response. Equal prompts become one task with several samples.

        Returns:
            for each prompt number, the task and the indices in `prompts` of its samples, in order.
        """
        rows: dict[str, list[int]] = {}
        for row, prompt in enumerate(prompts):
            rows.setdefault(_hash(prompt), []).append(row)
        found = {}
        for name, indices in rows.items():
            # Taken out and put in again at the end, as the most recently rolled out prompt.
            known = self._known.pop(name, None) or _Known(self._next_number, 0)
            self._next_number = max(self._next_number, known.number + 1)
            self._known[name] = known
            found[known.number] = Task(known.number, known.visits, len(indices)), indices
        return found

    def put(self, groups: Iterable[Group]) -> int:
        """Store the groups of all tasks of the last call of `tasks`, and drop prompts above the token limit.

        Returns:
            number of prompts that were dropped.
        """
        by_number = {known.number: known for known in self._known.values()}
        for group in groups:
            self.memory.put(group)
            known = by_number[group.prompt]
            known.visits, known.tokens = group.visit + 1, self._tokens_of(group.prompt)
        newer, dropped = 0, 0
        for name, known in reversed(list(self._known.items())):
            if newer >= self.most_tokens or not known.tokens:
                dropped += known.tokens > 0
                self.memory.drop(known.number)
                del self._known[name]
            else:
                newer += known.tokens
        return dropped

    def save(self, folder: Path, owner: dict[str, Any]) -> None:
        """Write the memory into a folder.

        Args:
            owner: identity of model and tokenizer, as JSON; `load` requires the same.
        """
        folder.mkdir(exist_ok=True)
        # A crash between the two files leaves a hash that does not fit, which `load` reports.
        self.memory.save(folder / ROLLOUTS)
        index = _Index(
            owner=owner,
            retention=self.memory.retention,
            counters=self.counters,
            next_number=self._next_number,
            prompts={name: (known.number, known.visits) for name, known in self._known.items()},
            sha256=sha256(folder / ROLLOUTS),
        )
        write_json(folder / INDEX, index.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path, owner: dict[str, Any], retention: Retention, most_tokens: int) -> "PromptMemory":
        """Read a memory that `save` wrote.

        Raises:
            UserError: if a file is missing or damaged, or if the memory has another owner or retention.
        """
        file = folder / INDEX
        try:
            index = _Index.model_validate(read_json(file), strict=False)
        except ValidationError as error:
            raise UserError(f"this file is damaged ({error.errors()[0]['msg']})", file=file) from None
        for key, value in owner.items():
            if index.owner.get(key) != value:
                raise UserError(
                    f"this memory holds rollouts of another {key}",
                    file=file,
                    key=f"owner.{key}",
                    value=index.owner.get(key),
                    allowed=str(value),
                )
        if index.retention != retention:
            raise UserError(
                "this memory is of another rule of reuse, which stores other data",
                file=file,
                key="retention",
                value=index.retention.model_dump(),
                allowed=str(retention.model_dump()),
                hint="resume with the earlier rule, or remove the folder to go on without drafts",
            )
        if sha256(folder / ROLLOUTS) != index.sha256:
            raise UserError("this file is not the one that was saved with the index", file=folder / ROLLOUTS)
        memory = cls(retention, most_tokens)
        memory.memory = Memory.load(folder / ROLLOUTS, retention)
        memory.counters, memory._next_number = dict(index.counters), index.next_number
        for name, (number, visits) in index.prompts.items():
            memory._known[name] = _Known(number, visits, memory._tokens_of(number))
        memory.put(())  # the bound may be smaller than it was
        return memory

    def _tokens_of(self, number: int) -> int:
        return sum(draft.length for draft in self.memory.drafts(number).values())


def _hash(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=16).hexdigest()
