"""Checkpoints: everything a run needs to go on as if it had not been stopped.

A checkpoint is a folder that is renamed into place when complete, with the hash of every file in it. Tensors are
safetensors, so that loading one never executes code. The last two are kept.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from redraft.errors import UserError
from redraft.files import read_json, sha256, write_atomically, write_json
from redraft.rollout.drafts import DraftStore

KEPT = 2


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        fingerprint: of the run; a checkpoint of another experiment is refused.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer, drafts: DraftStore) -> None:
        """Write the state after `step` steps."""
        target = self.folder / f"step-{step:06d}"
        unfinished = self.folder / f".step-{step:06d}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            write_atomically(unfinished / "model.safetensors", save(_contiguous(model.state_dict())))
            write_atomically(unfinished / "optimizer.safetensors", save(_flat(optimizer)))
            write_atomically(unfinished / "random.safetensors", save({"torch": torch.get_rng_state()}))
            drafts.save(unfinished / "drafts.safetensors")
            hashes = {file.name: sha256(file) for file in sorted(unfinished.iterdir())}
            write_json(unfinished / "state.json", {"step": step, "run": self.fingerprint, "sha256": hashes})
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        for old in self._complete()[:-KEPT]:
            shutil.rmtree(old)

    def remove_others(self) -> None:
        """Remove the checkpoints beside these, of other experiments in the same run folder.

        This one overwrites their records and rollouts: going on from them later would mix two experiments.
        """
        for other in set(self.folder.parent.glob("*")) - {self.folder}:
            shutil.rmtree(other)

    def _complete(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def restore(self, model: Any, optimizer: torch.optim.Optimizer) -> tuple[int, DraftStore]:
        """Load the latest state into model and optimizer.

        Returns:
            steps done and the draft store; (0, empty) if there is no checkpoint.

        Raises:
            UserError: if the latest is damaged, or belongs to another experiment.
        """
        complete = self._complete()
        if not complete:
            return 0, DraftStore()
        latest = complete[-1]
        state = self._checked(latest)
        model.load_state_dict(load((latest / "model.safetensors").read_bytes()))
        _unflatten(optimizer, load((latest / "optimizer.safetensors").read_bytes()))
        torch.set_rng_state(load((latest / "random.safetensors").read_bytes())["torch"])
        return state["step"], DraftStore.load(latest / "drafts.safetensors")

    def _checked(self, folder: Path) -> dict[str, Any]:
        state = read_json(folder / "state.json")
        remedy = f"remove {folder} to go on from the checkpoint before it, or from the start"
        if state["run"] != self.fingerprint:
            raise UserError(
                "this checkpoint belongs to another experiment",
                file=folder / "state.json",
                key="run",
                value=state["run"],
                allowed=f"{self.fingerprint}; {remedy}",
            )
        for name, expected in state["sha256"].items():
            file = folder / name
            if not file.exists():
                raise UserError("this file of a checkpoint is missing", file=file, allowed=remedy)
            if sha256(file) != expected:
                raise UserError(
                    "this file of a checkpoint is damaged",
                    file=file,
                    key="sha256",
                    value=sha256(file),
                    allowed=f"{expected}; {remedy}",
                )
        return state


def _contiguous(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


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
