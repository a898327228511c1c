"""Checkpoints: everything a run needs to go on as if it had not been stopped.

A checkpoint is a folder that is renamed into place when complete, with the hash of every file in it. Tensors are
safetensors, so that loading one never executes code. The last two are kept.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from redraft.errors import UserError
from redraft.files import read_json, sha256, write_atomically, write_json
from redraft.rollout.drafts import DraftStore, load_rollouts, save_rollouts
from redraft.rollout.types import Rollout
from redraft.train.folders import atomic_folder

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
            hashes = {file.name: sha256(file) for file in sorted(unfinished.iterdir())}
            progress = {"step": state.step, "training_step": state.training_step, "seconds": round(state.seconds, 3),
                        "commits": state.commits}  # fmt: skip
            write_json(unfinished / "state.json", {**self.run, **progress, "sha256": hashes})
        for old in self._complete()[:-KEPT]:
            shutil.rmtree(old)

    def _complete(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def restore(self, parts: Mapping[str, Any]) -> State:
        """Load the latest state into models and optimizers, and return the rest of it.

        A run without a checkpoint, or whose checkpoints started from other inputs, is at its start.

        Raises:
            UserError: if the latest is damaged, or belongs to another experiment.
        """
        complete = self._complete()
        if not complete:
            return State()
        latest = complete[-1]
        state = read_json(latest / "state.json")
        self._check_run(latest, state)
        if state.get("inputs") != self.run["inputs"]:
            self.folder.rename(self.folder.with_name(f".{self.folder.name}"))  # at once; removing takes longer
            return State()
        self._check_files(latest, state)
        for name, part in parts.items():
            _restore(part, load((latest / f"{name}.safetensors").read_bytes()))
        torch.set_rng_state(load((latest / "random.safetensors").read_bytes())["torch"])
        pending, others = load_rollouts(latest / PENDING)
        return State(
            state["step"], state["training_step"], state["seconds"], DraftStore.load(latest / "drafts.safetensors"),
            pending, others["rewards"], state["commits"],
        )  # fmt: skip

    def _check_run(self, folder: Path, state: dict[str, Any]) -> None:
        if state["run"] != self.run["run"]:
            raise UserError(
                "this checkpoint belongs to another experiment",
                file=folder / "state.json",
                key="run",
                value=state["run"],
                allowed=f"{self.run['run']}; {_remedy(folder)}",
            )

    def _check_files(self, folder: Path, state: dict[str, Any]) -> None:
        for name, expected in state["sha256"].items():
            file = folder / name
            if not file.exists():
                raise UserError("this file of a checkpoint is missing", file=file, allowed=_remedy(folder))
            if sha256(file) != expected:
                raise UserError(
                    "this file of a checkpoint is damaged",
                    file=file,
                    key="sha256",
                    value=sha256(file),
                    allowed=f"{expected}; {_remedy(folder)}",
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
    """Add one line of JSON."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record, allow_nan=False) + "\n")


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
