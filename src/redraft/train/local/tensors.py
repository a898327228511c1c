"""Models, optimizers and PyTorch's random state as safetensors files, so that loading one never executes code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from redraft.files import write_atomically

RANDOM = "random.safetensors"


def save_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Write modules and AdamW optimizers, a file each, and the random state."""
    for name, part in parts.items():
        write_atomically(folder / f"{name}.safetensors", save(_tensors(part)))
    write_atomically(folder / RANDOM, save({"torch": torch.get_rng_state()}))


def restore_parts(folder: Path, parts: Mapping[str, Any]) -> None:
    """Load what `save_parts` wrote into the same parts."""
    for name, part in parts.items():
        tensors = load((folder / f"{name}.safetensors").read_bytes())
        if isinstance(part, torch.optim.Optimizer):
            _unflatten(part, tensors)
        else:
            part.load_state_dict(tensors)
    torch.set_rng_state(load((folder / RANDOM).read_bytes())["torch"])


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    return _flat(part) if isinstance(part, torch.optim.Optimizer) else _contiguous(part.state_dict())


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
