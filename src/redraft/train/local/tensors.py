"""Models, optimizers and PyTorch's random state as safetensors files, so that loading one never executes code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from redraft.errors import UserError
from redraft.files import write_atomically

RANDOM = "random.safetensors"


def save_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Write modules and AdamW optimizers, a file each, and the random state."""
    for name, part in parts.items():
        state = part.state_dict()
        if isinstance(part, torch.optim.Optimizer):
            state = {f"{i}.{k}": torch.as_tensor(v) for i, entry in state["state"].items() for k, v in entry.items()}
        # Copies, since safetensors refuses tensors that share memory, as tied embeddings do.
        tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in state.items()}
        write_atomically(folder / f"{name}.safetensors", save(tensors))
    write_atomically(folder / RANDOM, save({"torch": torch.get_rng_state()}))


def restore_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Load what `save_parts` wrote into the same parts."""
    for name, part in parts.items():
        tensors = load((folder / f"{name}.safetensors").read_bytes())
        if isinstance(part, torch.optim.Optimizer):
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, tensor in tensors.items():
                index, _, entry = key.partition(".")
                state.setdefault(int(index), {})[entry] = tensor
            # The groups' settings come from the configuration; `Learner.warm_up` sets the rate before each update.
            part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})
        else:
            try:
                part.load_state_dict(tensors)
            except RuntimeError as error:
                raise UserError(
                    "this part of a checkpoint does not fit the run's model",
                    file=folder / f"{name}.safetensors",
                    value=str(error).replace("\n", " "),
                    hint="remove the checkpoint to start the run again",
                ) from None
    torch.set_rng_state(load((folder / RANDOM).read_bytes())["torch"])
