"""Checkpoints: everything a run needs to go on as if it had not been stopped.

A checkpoint is a folder that is renamed into place when complete, with the hash of every file in it. Tensors are
safetensors, so that loading one never executes code. The last two are kept; one that was damaged since is set aside.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from redraft.errors import UserError
from redraft.files import read_json, write_atomically, write_json
from redraft.rollout.drafts import DraftStore, load_rollouts, save_rollouts
from redraft.rollout.types import Rollout
from redraft.train.folders import atomic_folder
from redraft.train.integrity import damage, measure, remove_set_aside, set_aside

KEPT = 2
PENDING = "pending.safetensors"


@dataclass
class State:
    """How far a run is.

    Attributes:
        step: steps done.
        training_step: those of them that updated the policy.
        seconds: that they took, in whichever process.
        drafts: rollouts of the last epochs.
        pending: rollouts of whole groups that wait for an update.
        pending_rewards: of these, float32 (rollouts,).
        commits: of the code that took the steps, in order; None where it was no checkout.
    """

    step: int = 0
    training_step: int = 0
    seconds: float = 0.0
    drafts: DraftStore = field(default_factory=DraftStore)
    pending: list[Rollout] = field(default_factory=list)
    pending_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    commits: list[str | None] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        fingerprint: of the run; a checkpoint of another experiment is refused.
        inputs: hashes of the files' contents that it starts from, by name; checkpoints that started from others are
            set aside, since a model or a problem file made anew leaves the fingerprint as it was.
    """

    def __init__(self, folder: Path, fingerprint: str, inputs: dict[str, str]) -> None:
        self.folder = folder
        self.run = {"run": fingerprint, "inputs": inputs}

    def save(self, state: State, parts: Mapping[str, Any]) -> None:
        """Write the state of a run and of its models and optimizers, one file each."""
        with atomic_folder(self.folder / f"step-{state.step:06d}") as unfinished:
            for name, part in parts.items():
                write_atomically(unfinished / f"{name}.safetensors", save(_tensors(part)))
            write_atomically(unfinished / "random.safetensors", save({"torch": torch.get_rng_state()}))
            state.drafts.save(unfinished / "drafts.safetensors")
            save_rollouts(unfinished / PENDING, state.pending, rewards=state.pending_rewards)
            files = measure(unfinished, unfinished.iterdir())
            progress = {"step": state.step, "training_step": state.training_step, "seconds": round(state.seconds, 3),
                        "commits": state.commits}  # fmt: skip
            write_json(unfinished / "state.json", {**self.run, **progress, **files})
        complete = self._complete()
        for old in complete[:-KEPT]:
            shutil.rmtree(old)
        if len(complete) >= KEPT:
            remove_set_aside(self.folder)

    def _complete(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def restore(self, parts: Mapping[str, Any]) -> State:
        """Load the latest undamaged state into models and optimizers, and return the rest of it.

        A run without a checkpoint, or whose checkpoints started from other inputs or are all damaged, is at its start.

        Raises:
            UserError: if the latest belongs to another experiment.
        """
        latest, state = self._latest_undamaged()
        if latest is None:
            return State()
        for name, part in parts.items():
            _restore(part, load((latest / f"{name}.safetensors").read_bytes()))
        torch.set_rng_state(load((latest / "random.safetensors").read_bytes())["torch"])
        pending, others = load_rollouts(latest / PENDING)
        return State(
            state["step"], state["training_step"], state["seconds"], DraftStore.load(latest / "drafts.safetensors"),
            pending, others["rewards"], state["commits"],
        )  # fmt: skip

    def _latest_undamaged(self) -> tuple[Path | None, dict[str, Any]]:
        """The last checkpoint that is what it was when it was written, and its state; damaged ones are set aside."""
        complete = self._complete()
        for latest in reversed(complete):
            state, wrong = self._read(latest)
            if not wrong and state["inputs"] != self.run["inputs"]:
                # At once; removing takes longer.
                self.folder.rename(self.folder.with_name(f".{self.folder.name}"))
                return None, {}
            if not (wrong := wrong or damage(latest, state)):
                return latest, state
            set_aside(latest, wrong)
        if complete:
            print(f"{self.folder}: no undamaged checkpoint is left; the run starts anew", file=sys.stderr, flush=True)
        return None, {}

    def _read(self, folder: Path) -> tuple[dict[str, Any], str]:
        """What a checkpoint says of itself, and what is wrong with that.

        Raises:
            UserError: if it belongs to another experiment.
        """
        try:
            state = read_json(folder / "state.json")
        except UserError as error:
            return {}, f"state.json: {error.message}"
        if not isinstance(state, dict) or not {"run", "inputs", "sha256", "step"} <= set(state):
            return {}, "state.json is damaged: it lacks a key"
        self._check_run(folder, state)
        return state, ""

    def _check_run(self, folder: Path, state: dict[str, Any]) -> None:
        if state["run"] != self.run["run"]:
            raise UserError(
                "this checkpoint belongs to another experiment",
                file=folder / "state.json",
                key="run",
                value=state["run"],
                allowed=f"{self.run['run']}; {_remedy(folder)}",
            )


def _remedy(folder: Path) -> str:
    return f"remove {folder} to go on from the checkpoint before it, or from the start"


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    return _flat(part) if isinstance(part, torch.optim.Optimizer) else _contiguous(part.state_dict())


def _restore(part: Any, tensors: dict[str, torch.Tensor]) -> None:
    if isinstance(part, torch.optim.Optimizer):
        _unflatten(part, tensors)
    else:
        part.load_state_dict(tensors)


def _contiguous(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies, since safetensors refuses tensors that share memory, as tied embeddings do."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """AdamW's state as named tensors."""
    state = optimizer.state_dict()["state"]
    flat = {f"{i}.{name}": torch.as_tensor(value) for i, entry in state.items() for name, value in entry.items()}
    return {name: tensor.cpu().contiguous() for name, tensor in flat.items()}


def _unflatten(optimizer: torch.optim.Optimizer, flat: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in flat.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def append_record(file: Path, record: dict[str, Any]) -> None:
    """Add one line of JSON, on the disk before a checkpoint counts on it."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record, allow_nan=False) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def truncate_records(file: Path, count: int) -> None:
    """Keep the first `count` lines: those of the checkpoint that is resumed from.

    Raises:
        UserError: if there are fewer.
    """
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if len(lines) < count:
        raise UserError(
            "records of finished steps are missing", file=file, value=len(lines), allowed=f"at least {count}"
        )
    write_atomically(file, "".join(line + "\n" for line in lines[:count]))
