"""Checkpoints: everything a run needs to continue as if it had not been interrupted.

A checkpoint is a folder that is renamed into place when complete, with the size and hash of every file in it, of its
`state.json` itself and of the run's step records up to then. The last two are kept; one that was damaged since is set
aside. The trainer decides what it stores in the folder.

Sizes are compared first: they detect a truncated file without reading it. Then every byte is hashed, several files at a
time, since a flipped bit in the middle of an optimizer's state would train on unnoticed (costs: docs/faults.md).
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, PositiveFloat

from redraft.config.identity import fingerprint
from redraft.config.read import parse
from redraft.errors import UserError
from redraft.files import atomic_folder, read_json, sha256, steps_in, sync, write_json
from redraft.messages import echo
from redraft.methods.schedule import ScheduleState
from redraft.rollout.storage import load_groups, save_groups

KEPT = 2
FORMAT = 4
"""Version of a checkpoint's files. The first kept drafts by epoch; their visits are unknown. The second had no
weights and no lenience. The third had no hash of `state.json` and of the step records: damage there went unnoticed."""
STATE = "state.json"
OWN_HASH = "fingerprint"
"""Key of `state.json` with the hash of all its other keys and values."""
VALUES = "schedule/counters.json"
THREADS = min(16, os.cpu_count() or 1)
"""Files that are hashed at once, in threads: hashing releases the GIL."""


@dataclass
class TrainingState:
    """Progress of a run.

    Attributes:
        step: steps done.
        training_step: number of steps that updated the policy.
        seconds: total wall time of the steps, over all processes.
        commits: of the code that ran the steps, in order; None if it was not a checkout.
        lenience: of the next step, set by a controller; None without one.
        records: SHA-256 of the records of these steps; empty before the first checkpoint.
    """

    step: int = 0
    training_step: int = 0
    seconds: float = 0.0
    commits: list[str | None] = field(default_factory=list)
    lenience: float | None = None
    records: str = ""


class _StateFile(BaseModel):
    """Types of the content of `state.json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str
    inputs: dict[str, str]
    format: int
    step: NonNegativeInt
    training_step: NonNegativeInt
    seconds: FiniteFloat
    commits: list[str | None]
    lenience: PositiveFloat | None
    records: str
    bytes: dict[str, NonNegativeInt]
    sha256: dict[str, str]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        run: fingerprint of the run; a checkpoint of another experiment is an error.
        inputs: hashes of the files' contents that it starts from, by name; checkpoints that started from others are
            set aside, since a regenerated model or problem file does not change the fingerprint.
        screen: checks a complete checkpoint before any of its files is loaded; raises a UserError to reject it.
    """

    def __init__(
        self, folder: Path, run: str, inputs: dict[str, str], screen: Callable[[Path], None] = lambda _: None
    ) -> None:
        self.folder, self.inputs, self.screen = folder, inputs, screen
        self.run = {"run": run, "inputs": inputs, "format": FORMAT}

    @contextmanager
    def written(self, step: int, state: TrainingState) -> Iterator[Path]:
        """A checkpoint's folder, to be filled in the block; it counts, with the state of then, when the block ends."""
        with atomic_folder(self.folder / step_name(step)) as unfinished:
            yield unfinished
            # After the block, which may still change files and state: the checkpoint is that after the step's record.
            files = measure(unfinished, (file for file in unfinished.rglob("*") if file.is_file()))
            progress = asdict(state) | {"seconds": round(state.seconds, 3)}
            content = {**self.run, **progress, **files}
            write_json(unfinished / STATE, {**content, OWN_HASH: fingerprint(content)})
        complete = self._complete()
        # Only now that the new one has its name, so that a crash leaves at least one whole checkpoint.
        for old in complete[:-KEPT]:
            shutil.rmtree(old)
        if len(complete) >= KEPT:  # enough whole ones
            for aside in self.folder.glob("damaged-*"):
                shutil.rmtree(aside)

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
        return list(steps_in(self.folder).values())

    def latest(self, *, hashes: bool) -> tuple[Path | None, TrainingState]:
        """The last undamaged checkpoint and its state; None and the start of the run if there is none.

        Damaged checkpoints are set aside. All are if they started from other inputs.

        Args:
            hashes: read every file, and screen the checkpoint; else compare sizes only, which is enough once this was
                done.

        Raises:
            UserError: if the latest belongs to another experiment or to an earlier version, or is rejected.
        """
        for folder in self.folder.glob("global_step_*"):  # of verl's naming, which the first version left to verl
            raise _earlier(folder, "state.json")
        complete = self._complete()
        for folder in reversed(complete):
            content, wrong = self._read(folder)
            if not wrong and content["inputs"] != self.inputs:
                self.folder.rename(self.folder.with_name(f".{self.folder.name}"))  # at once; removing takes longer
                return None, TrainingState()
            if not (wrong := wrong or damage(folder, content, sizes_only=not hashes)):
                if hashes:
                    self.screen(folder)
                return folder, TrainingState(**{name: content[name] for name in asdict(TrainingState())})
            set_aside(folder, wrong)
        if complete:
            echo(f"{self.folder}: no undamaged checkpoint is left; the run starts again", err=True)
        return None, TrainingState()

    def _read(self, folder: Path) -> tuple[dict[str, Any], str]:
        """State of a checkpoint, and what is wrong with it; nothing in a damaged file is believed.

        Raises:
            UserError: if it belongs to another experiment or version, or holds a value of the wrong type.
        """
        file = folder / STATE
        try:
            content = read_json(file)
            own_hash = content.pop(OWN_HASH, None) if isinstance(content, dict) else ""
            intact = own_hash == fingerprint(content)
        except (UserError, TypeError) as error:  # a TypeError for what has no hash, such as NaN
            return {}, f"{STATE}: {error.message if isinstance(error, UserError) else error}"
        # A state without its own hash may be of an earlier version, which is another error than damage.
        if not intact and (own_hash is not None or "run" not in content):
            return {}, f"{STATE} is damaged: its hash is not the one in it"
        if (version := content.get("format", 1)) != FORMAT:
            raise _earlier(folder, version)
        if not intact:
            return {}, f"{STATE} is damaged: it lacks its hash"
        state = parse(_StateFile, content, file)
        if state.run != self.run["run"]:
            hint = f"remove {folder} to go on from the checkpoint before it, or from the start"
            raise UserError(
                "this checkpoint belongs to another experiment",
                file=file,
                key="run",
                value=state.run,
                allowed=str(self.run["run"]),
                hint=hint,
            )
        if folder.name != step_name(state.step):
            return {}, f"{STATE} is of step {state.step}, not of its folder's"
        return content, ""


def step_name(step: int) -> str:
    """Name of the checkpoint after that many steps."""
    return f"step-{step:06d}"


def _earlier(folder: Path, version: Any) -> UserError:
    remedy = f"finish the run with the version that began it, or remove {folder.parent}"
    return UserError(
        "this checkpoint is of another version of redraft, whose files this one cannot continue",
        file=folder / STATE,
        key="format",
        value=version,
        allowed=str(FORMAT),
        hint=remedy,
    )


def measure(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Sizes in bytes and hashes of these files of a folder, by their names in it; they are on the disk then."""
    names = [str(file.relative_to(folder)) for file in sorted(files)]
    for name in names:
        sync(folder / name)
    return {"bytes": {name: (folder / name).stat().st_size for name in names}, "sha256": _hashes(folder, names)}


def damage(folder: Path, recorded: Mapping[str, Mapping[str, Any]], *, sizes_only: bool = False) -> str:
    """Describe the first damage among the files of a folder; empty if there is none.

    Args:
        recorded: the result of `measure`; without sizes if it was written before they were recorded.
    """
    for name in recorded["sha256"]:
        if not (folder / name).is_file():
            return f"{name} is missing"
    for name, size in recorded.get("bytes", {}).items():
        if (found := (folder / name).stat().st_size) != size:
            return f"{name} is damaged: it has {found} bytes and had {size}"
    if not sizes_only:
        found_hashes = _hashes(folder, list(recorded["sha256"]))
        for name, expected in recorded["sha256"].items():
            if found_hashes[name] != expected:
                return f"{name} is damaged: its SHA-256 is not what it was"
    return ""


def _hashes(folder: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: sha256(folder / name), names), strict=True))


def set_aside(checkpoint: Path, why: str) -> Path:
    """Rename a damaged checkpoint, so that it is not loaded again; returns its new path.

    Prints one line to standard error.
    """
    aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}-{number}")
    checkpoint.rename(aside)
    echo(f"{checkpoint}: {why}; set aside as {aside.name}", err=True)
    return aside
