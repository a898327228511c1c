"""Checkpoints: everything a run needs to go on as if it had not been stopped.

A checkpoint is a folder that is renamed into place when complete, with the size and hash of every file in it. The last
two are kept; one that was damaged since is set aside. What a trainer puts into it is the trainer's.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json, write_json
from redraft.methods.schedule import ScheduleState
from redraft.rollout.storage import load_groups, save_groups
from redraft.train.folders import atomic_folder
from redraft.train.integrity import damage, measure, remove_set_aside, set_aside

KEPT = 2
FORMAT = 3
"""Version of a checkpoint's files. The first kept drafts by epoch; nobody can tell their visits. The second had no
weights and no lenience."""
STATE = "state.json"
VALUES = "schedule/counters.json"


@dataclass
class State:
    """Progress of a run.

    Attributes:
        step: steps done.
        training_step: those of them that updated the policy.
        seconds: that they took, in whichever process.
        commits: of the code that took the steps, in order; None where it was no checkout.
        lenience: that a controller has set for the next step; None where there is none.
    """

    step: int = 0
    training_step: int = 0
    seconds: float = 0.0
    commits: list[str | None] = field(default_factory=list)
    lenience: float | None = None


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        fingerprint: of the run; a checkpoint of another experiment is refused.
        inputs: hashes of the files' contents that it starts from, by name; checkpoints that started from others are
            set aside, since a model or a problem file made anew leaves the fingerprint as it was.
        screen: looks at a whole checkpoint before any of its files is loaded; raises a UserError to refuse it.
    """

    def __init__(
        self, folder: Path, fingerprint: str, inputs: dict[str, str], screen: Callable[[Path], None] = lambda _: None
    ) -> None:
        self.folder, self.inputs, self.screen = folder, inputs, screen
        self.run = {"run": fingerprint, "inputs": inputs, "format": FORMAT}

    @contextmanager
    def written(self, step: int, state: State) -> Iterator[Path]:
        """A checkpoint's folder, to be filled in the block; it counts, with the state of then, when the block ends."""
        with atomic_folder(self.folder / f"step-{step:06d}") as unfinished:
            yield unfinished
            files = measure(unfinished, (file for file in unfinished.rglob("*") if file.is_file()))
            progress = asdict(state) | {"seconds": round(state.seconds, 3)}
            write_json(unfinished / STATE, {**self.run, **progress, **files})
        complete = self._complete()
        for old in complete[:-KEPT]:
            shutil.rmtree(old)
        if len(complete) >= KEPT:
            remove_set_aside(self.folder)

    def save_schedule(self, folder: Path, state: ScheduleState) -> None:
        """Write the groups that wait, a file a name, and the other values."""
        for name, groups in state.waiting.items():
            save_groups(folder / "schedule" / f"{name}.arrow", groups)
        if state.values:
            write_json(folder / VALUES, dict(state.values))

    def schedule(self, folder: Path) -> ScheduleState:
        """State of the schedule when a checkpoint was written."""
        waiting = {file.stem: load_groups(file) for file in sorted((folder / "schedule").glob("*.arrow"))}
        return ScheduleState(waiting, read_json(folder / VALUES) if (folder / VALUES).exists() else {})

    def _complete(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def latest(self, *, hashes: bool) -> tuple[Path | None, State]:
        """The last undamaged checkpoint and its state; None and the start of the run if there is none.

        Damaged checkpoints are set aside. All are if they started from other inputs.

        Args:
            hashes: read every file, and screen the checkpoint; else compare sizes only, which is enough once this was
                done.

        Raises:
            UserError: if the latest belongs to another experiment or to an earlier version, or is refused.
        """
        self._refuse_earlier_versions()
        complete = self._complete()
        for folder in reversed(complete):
            content, wrong = self._read(folder)
            if not wrong and content["inputs"] != self.inputs:
                self.folder.rename(self.folder.with_name(f".{self.folder.name}"))  # at once; removing takes longer
                return None, State()
            if not (wrong := wrong or damage(folder, content, sizes_only=not hashes)):
                if hashes:
                    self.screen(folder)
                return folder, State(**{name: content[name] for name in asdict(State())})
            set_aside(folder, wrong)
        if complete:
            print(f"{self.folder}: no undamaged checkpoint is left; the run starts anew", file=sys.stderr, flush=True)
        return None, State()

    def _refuse_earlier_versions(self) -> None:
        """Refuse checkpoints of verl's naming, which the first version left to verl.

        Raises:
            UserError: if there is one.
        """
        for folder in self.folder.glob("global_step_*"):
            raise _earlier(folder, "state.json")

    def _read(self, folder: Path) -> tuple[dict[str, Any], str]:
        """State of a checkpoint, and what is wrong with it.

        Raises:
            UserError: if it belongs to another experiment or version.
        """
        try:
            content = read_json(folder / STATE)
        except UserError as error:
            return {}, f"{STATE}: {error.message}"
        if not isinstance(content, dict) or not {"run", "inputs", "sha256", "step"} <= set(content):
            return {}, f"{STATE} is damaged: it lacks a key"
        if content["run"] != self.run["run"]:
            raise UserError("this checkpoint belongs to another experiment", file=folder / STATE, key="run",
                            value=content["run"], allowed=str(self.run["run"]), hint=_remedy(folder))  # fmt: skip
        if content.get("format", 1) != FORMAT:
            raise _earlier(folder, content.get("format", 1))
        return content, ""


def _earlier(folder: Path, version: Any) -> UserError:
    remedy = f"finish the run with the version that began it, or remove {folder.parent}"
    return UserError("this checkpoint is of another version of redraft, whose files this one cannot continue",
                     file=folder / STATE, key="format", value=version, allowed=str(FORMAT), hint=remedy)  # fmt: skip


def _remedy(folder: Path) -> str:
    return f"remove {folder} to go on from the checkpoint before it, or from the start"
