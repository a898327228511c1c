"""How far a run under verl is, and which of its checkpoints are whole.

verl writes a checkpoint's files and a marker of the latest one, and then goes on with the step. Here a checkpoint
counts when its `redraft.json` is there, which is written last: after verl's files, the drafts, and the step's record.
It holds the size and the hash of every other file, verl's own included.
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json, write_json
from redraft.train.checkpoint import KEPT
from redraft.train.integrity import damage, measure, remove_set_aside, set_aside
from redraft.train.verl.pickles import refuse_code

STATE = "redraft.json"


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
        check: raises an error if this process may not write any more.
    """

    def __init__(
        self, folder: Path, run: str, inputs: Mapping[str, str], check: Callable[[], None] = lambda: None
    ) -> None:
        self.check = check
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
        self.check()
        folder = self.path(progress.updates)
        files = [file for file in folder.rglob("*") if file.is_file() and file != folder / STATE]
        write_json(folder / STATE, {**self.identity, **asdict(progress), **measure(folder, files)})
        whole = self._whole()
        for old in whole[:-KEPT]:
            shutil.rmtree(old)
        if len(whole) >= KEPT:
            remove_set_aside(self.folder)

    def _whole(self) -> list[Path]:
        """Checkpoints that were finished, the oldest first."""
        found = self.folder.glob(f"global_step_*/{STATE}")
        return sorted((file.parent for file in found), key=lambda path: int(path.name.rpartition("_")[2]))

    def latest(self, *, hashes: bool = False) -> tuple[Path | None, Progress]:
        """The last undamaged checkpoint and how far it is.

        What is not whole or started from other inputs is removed; what is damaged is set aside.

        Args:
            hashes: read every file, and refuse code in those of verl's. Else only sizes are compared, which is enough
                for whoever looks after this was done.

        Raises:
            UserError: if the last belongs to another experiment or would execute code.
        """
        whole = self._whole()
        for other in set(self.folder.glob("global_step_*")) - set(whole):
            shutil.rmtree(other)
        for folder in reversed(whole):
            state, wrong = self._read(folder)
            if not wrong and state["inputs"] != self.identity["inputs"]:
                shutil.rmtree(self.folder)
                return None, Progress()
            if not (wrong := wrong or damage(folder, state, sizes_only=not hashes)):
                if hashes:
                    refuse_code(folder)
                return folder, Progress(**{name: state[name] for name in asdict(Progress())})
            set_aside(folder, wrong)
        if whole:
            print(f"{self.folder}: no undamaged checkpoint is left; the run starts anew", file=sys.stderr, flush=True)
        return None, Progress()

    def _read(self, folder: Path) -> tuple[dict[str, Any], str]:
        """What a checkpoint says of itself, and what is wrong with that.

        Raises:
            UserError: if it belongs to another experiment.
        """
        try:
            state = read_json(file := folder / STATE)
        except UserError as error:
            return {}, f"{STATE}: {error.message}"
        if not isinstance(state, dict) or not {"run", "inputs", "sha256", *asdict(Progress())} <= set(state):
            return {}, f"{STATE} is damaged: it lacks a key"
        if state["run"] != self.identity["run"]:
            raise UserError("this checkpoint belongs to another experiment", file=file, key="run", value=state["run"],
                            allowed=f"{self.identity['run']}; remove {folder}")  # fmt: skip
        return state, ""
