"""How far a run under verl is, and which of its checkpoints are whole.

verl writes a checkpoint's files and a marker of the latest one, and then goes on with the step. Here a checkpoint
counts when its `redraft.json` is there, which is written last: after verl's files, the drafts, and the step's record.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.train.checkpoint import KEPT


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        updates: verl's steps done.
        fetched: prompts taken from the data so far.
        records: generation steps done, each with a record.
        seconds: that they took, in whichever process.
        commits: of the code that took the steps, in order; None where it was no checkout.
    """

    updates: int = 0
    fetched: int = 0
    records: int = 0
    seconds: float = 0.0
    commits: list[str | None] = field(default_factory=list)


class VerlCheckpoints:
    """The checkpoints that verl and this project write together.

    Args:
        folder: where they lie, `global_step_N` each.
        run: fingerprint of the run; a checkpoint of another experiment is refused.
        inputs: hashes of what it started from, by name; checkpoints that started from others are removed.
    """

    def __init__(self, folder: Path, run: str, inputs: Mapping[str, str]) -> None:
        self.folder, self.identity = folder, {"run": run, "inputs": dict(inputs)}

    def path(self, updates: int) -> Path:
        """The checkpoint after so many of verl's steps."""
        return self.folder / f"global_step_{updates}"

    def drafts(self, updates: int, shard: int) -> Path:
        """A shard's file in it."""
        return self.path(updates) / "drafts" / f"shard-{shard}.safetensors"

    def draft_files(self, updates: int) -> list[Path]:
        """All shards' files in it."""
        return sorted((self.path(updates) / "drafts").glob("*"))

    def finish(self, progress: Progress) -> None:
        """Declare a checkpoint whole, and remove what is older than the last two."""
        folder = self.path(progress.updates)
        hashes = {str(f.relative_to(folder)): sha256(f) for f in self.draft_files(progress.updates)}
        write_json(folder / "redraft.json", {**self.identity, **asdict(progress), "sha256": hashes})
        for old in self._whole()[:-KEPT]:
            shutil.rmtree(old)

    def _whole(self) -> list[Path]:
        """Checkpoints that were finished, the oldest first."""
        found = self.folder.glob("global_step_*/redraft.json")
        return sorted((file.parent for file in found), key=lambda path: int(path.name.rpartition("_")[2]))

    def latest(self) -> tuple[Path | None, Progress]:
        """The last whole checkpoint and how far it is; what is not whole or started from other inputs is removed.

        Raises:
            UserError: if the last belongs to another experiment or its drafts are damaged.
        """
        for other in set(self.folder.glob("global_step_*")) - set(self._whole()):
            shutil.rmtree(other)
        if not (whole := self._whole()):
            return None, Progress()
        state: dict[str, Any] = read_json(file := whole[-1] / "redraft.json")
        if state["run"] != self.identity["run"]:
            raise UserError("this checkpoint belongs to another experiment", file=file, key="run", value=state["run"],
                            allowed=f"{self.identity['run']}; remove {whole[-1]}")  # fmt: skip
        if state["inputs"] != self.identity["inputs"]:
            shutil.rmtree(self.folder)
            return None, Progress()
        for name, expected in state["sha256"].items():
            if not (part := whole[-1] / name).exists() or sha256(part) != expected:
                raise UserError("this file of a checkpoint is missing or damaged", file=part, key="sha256",
                                allowed=f"{expected}; remove {whole[-1]} to go on from the one before it")  # fmt: skip
        return whole[-1], Progress(**{name: state[name] for name in asdict(Progress())})
