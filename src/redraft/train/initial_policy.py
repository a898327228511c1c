"""Initial policies: initialised and warm-started, or taken from a checkpoint (rule `make_model`)."""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from redraft.config import Experiments, GgufModel, Model, PretrainedModel, TinyModel
from redraft.config.preset import parted
from redraft.errors import UserError
from redraft.layout import code_root
from redraft.provenance import SOURCE, model_files, source_record
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.pretrained.memory_check import available, check_memory
from redraft.train.progress import reporter
from redraft.train.warm_start import warm_start

THREADS = 1
"""Number of threads that make a model. It is fixed, since sums of floats depend on it. It is one, since two
models on a core each are ready sooner than one after the other on two cores."""
GGUF = "envs/gguf.txt"
"""Lock of the package that reads GGUF files."""


def make_model(preset_name: str, name: str, folder: Path) -> None:
    """Make and warm-start the preset's tiny model for a role and block (`Preset.role`), or take an existing one.

    The folder of a model that was taken from a local one has a record of that one's files (`provenance.SOURCE`).

    Raises:
        UserError: if the preset has nothing for the role, the model cannot be taken as it is, or its files change
            while they are read.
    """
    torch.set_num_threads(THREADS)
    role, block = parted(name)
    preset = Experiments().preset(preset_name).of_block(block)
    if role not in preset.models:
        raise UserError("the preset has no such model", key="models", value=role, allowed=preset.models)
    settings = preset.models[role]
    if isinstance(settings, TinyModel):
        tokenizer = make_tokenizer(settings.characters)
        model = models.initialise(settings, tokenizer)
        report = reporter(f"warm start {name}", every=150)
        warm_start(model, tokenizer, settings.warm_start, lambda i, n, loss: report(i, n, f"loss {loss:.3f}"))
        models.save(model, tokenizer, folder)
        return
    with _turn(folder.parent):
        # Hashed before and after the reading: the record has to be of the files that were read.
        source = _files(settings, source_record(folder))
        model, tokenizer = _pretrained(settings)
        if settings.untie:
            models.untie(model)
        if _files(settings, source) != source:
            raise UserError(
                "the model's files changed while they were read", key=f"models.{role}.path", hint="try again"
            )
        models.save(model, tokenizer, folder, {SOURCE: source} if source else None)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other process imports a model into this folder: large ones at once would exceed the memory."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "import.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _files(settings: Model, before: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Files of a local model, as `model_files`; empty for any other model."""
    if isinstance(settings, PretrainedModel) and (folder := Path(settings.path)).is_dir():
        return model_files(folder, before)
    return {}


def _pretrained(settings: GgufModel | PretrainedModel) -> tuple[Any, Any]:
    """Model and tokenizer."""
    if isinstance(settings, PretrainedModel):
        if settings.revision is not None and Path(settings.path).is_dir():
            raise UserError(
                "a local folder has no revision", key="models.revision", value=settings.revision, allowed="none"
            )
        size = 4 * models.parameters(settings.path, settings.revision)
        check_memory({"weights in float32": size}, available(torch.device("cpu")), Path(settings.path))
        return models.load(settings.path, settings.revision)
    from redraft.train.pretrained import gguf

    model, tokenizer = gguf.load(settings, code_root() / GGUF)
    return model.bfloat16(), tokenizer
