"""Responses of each prompt's last passes, which the suffix drafter searches; prompts are identified by their tokens."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from redraft.errors import UserError
from redraft.files import atomic
from redraft.rollout.storage import described

SCHEMA = pa.schema(
    [("prompt", pa.list_(pa.int32())), ("pass", pa.int32()), ("tokens", pa.list_(pa.int32()))],
    metadata={"content": "responses of a suffix drafter"},
)


class ResponseHistory:
    """The responses of each prompt's last `window` passes.

    A pass of a prompt is one training rollout of it. Epochs in which a prompt is skipped do not count, so it keeps its
    responses. A response takes four bytes per token.

    Args:
        window: number of passes that are kept, 1 or more.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window has one pass at least, not {window}")
        self.window = window
        self._passes: dict[tuple[int, ...], list[list[np.ndarray]]] = {}

    @property
    def tokens(self) -> int:
        """Number of kept tokens."""
        return sum(len(r) for passes in self._passes.values() for responses in passes for r in responses)

    def add(self, prompt: Sequence[int], responses: Sequence[np.ndarray]) -> None:
        """Add the responses of a pass, int32 (n,) each, and drop passes that are no longer in the window."""
        passes = self._passes.setdefault(tuple(map(int, prompt)), [])
        passes.append([np.array(response, dtype=np.int32) for response in responses])
        del passes[: -self.window]

    def add_rollout(self, made: Iterable[tuple[Sequence[int], Sequence[np.ndarray]]]) -> None:
        """Add the responses of a rollout, with their prompts.

        Groups of equal prompts are one pass, so that none displaces another. Without a response there is no pass.
        """
        by_prompt: dict[tuple[int, ...], list[np.ndarray]] = {}
        for prompt, responses in made:
            by_prompt.setdefault(tuple(map(int, prompt)), []).extend(responses)
        for key, responses in by_prompt.items():
            if responses:
                self.add(key, responses)

    def passes(self, prompt: Sequence[int]) -> list[list[np.ndarray]]:
        """Responses of a prompt's kept passes, oldest first."""
        return self._passes.get(tuple(prompt), [])

    def save(self, file: Path) -> None:
        """Write the history to an Arrow file, atomically."""
        columns = list(zip(*self._lines(), strict=True)) or [(), (), ()]
        table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        with (
            atomic(file) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, SCHEMA) as writer,
        ):
            writer.write_table(table)

    def _lines(self) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """Prompt, number of the pass and tokens of each response; an empty pass has no line."""
        for prompt, passes in self._passes.items():
            for number, responses in enumerate(passes):
                for response in responses:
                    yield np.array(prompt, dtype=np.int32), number, response

    @classmethod
    def load(cls, file: Path, window: int) -> "ResponseHistory":
        """Read a history that `save` wrote.

        Raises:
            UserError: if the file is missing, damaged or of another kind.
        """
        if not file.is_file():
            raise UserError("this file of responses is missing", file=file)
        with described(file), pa.OSFile(str(file), "rb") as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(SCHEMA):
                raise ValueError("it has other columns")
            lines = reader.read_all()
        history = cls(window)
        made: dict[tuple[int, ...], dict[int, list[np.ndarray]]] = {}
        for prompt, number, tokens in zip(*(lines.column(name) for name in SCHEMA.names), strict=True):
            passes = made.setdefault(tuple(prompt.values.to_pylist()), {})
            passes.setdefault(number.as_py(), []).append(tokens.values.to_numpy())
        for key, passes in made.items():
            for number in sorted(passes):
                history.add(key, passes[number])
        return history
