"""Checks of a model's files: that its weights are numbers, and that token ids are those of its vocabulary."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from redraft.errors import UserError
from redraft.files import read_json

SETTINGS = ("config.json", "generation_config.json")
"""Files that name tokens."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of weights that are read. Others are codes of a quantiser, which mean nothing without its scales."""
TOKENS = re.compile(r".*_token_ids?|(begin_)?suppress_tokens|bad_words_ids")
"""Names of settings that are token ids, or lists of them."""


def check_index(path: Path | str) -> None:
    """Reject an index of shards in other folders: whether a model changed is seen from the files in its own."""
    index = Path(path) / INDEX
    shards = read_json(index).get("weight_map", {}).values() if index.is_file() else ()
    if elsewhere := [name for name in shards if Path(str(name)).name != name]:
        raise UserError(
            "the index names weights outside of its folder",
            file=index,
            key="weight_map",
            value=elsewhere[0],
            allowed="names of files in the folder",
        )


def check_types(model: Any, path: Path | str, revision: str | None = None) -> dict[str, Path]:
    """Reject weights that are stored as integers or in another type that transformers would convert without a word.

    Returns:
        The files of the model's stored weights, by the names of the weights in the files.

    Raises:
        UserError: with the first such weight.
    """
    prefix, files = f"{model.base_model_prefix}.", {}
    names = {name.removeprefix(prefix) for name, _ in model.named_parameters(remove_duplicate=False)}
    for file in _weight_files(path, revision):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - this is no dictionary
                if name.removeprefix(prefix) not in names:
                    continue
                files[name] = file
                if (kind := stored.get_slice(name).get_dtype()) not in FLOATS:
                    raise UserError(
                        "this weight is stored in a type that is no plain floating-point number",
                        file=file,
                        key=name,
                        value=kind,
                        allowed=FLOATS,
                        hint="take the model before it was quantised",
                    )
    return files


def check_finite(weights: Iterable[tuple[str, torch.Tensor]], files: Mapping[str, Path], path: Path | str) -> None:
    """Reject weights that are not finite.

    Args:
        weights: with their names.
        files: of the weights, if known, for the error.
        path: file or folder of all others.

    Raises:
        UserError: with the first such weight and the number of its values that are not finite.
    """
    for name, weight in weights:
        # A sum is several times as fast as a look at each value, and finite unless a value is not or it overflows.
        if weight.sum().isfinite() or not (wrong := int((~weight.isfinite()).sum())):
            continue
        raise UserError(
            f"{wrong:,} of the {weight.numel():,} values of this weight are not finite",
            file=files.get(name, path),
            key=name,
            value=f"{int(weight.isnan().sum()):,} NaN, {int(weight.isinf().sum()):,} infinite",
            allowed="finite numbers",
        )


def stored_weights(files: Mapping[str, Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by their names as they are stored in files, one at a time."""
    for file in dict.fromkeys(files.values()):
        with safe_open(file, framework="pt") as stored:
            yield from ((name, stored.get_tensor(name)) for name, its_file in files.items() if its_file == file)


def check_tokens(config: Any, path: Path | str, revision: str | None = None) -> None:
    """Reject settings that name tokens outside of the vocabulary, in config.json or generation_config.json.

    Args:
        config: configuration of the model.

    Raises:
        UserError: with file, setting and value.
    """
    size = config.get_text_config().vocab_size
    for file, key, value, tokens in named_tokens(path, revision):
        if any(token >= size for token in tokens):
            raise UserError(
                "this token is not in the model's vocabulary",
                file=file,
                key=key,
                value=value,
                allowed=f"0 to {size - 1} (vocab_size is {size})",
            )


def check_vocabulary(tokenizer: Any, config: Any, path: Path | str) -> None:
    """Reject a tokenizer with ids for which the model has no embeddings."""
    size = config.get_text_config().vocab_size
    beyond = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number >= size)
    if beyond:
        number, token = beyond[0]
        raise UserError(
            f"{len(beyond):,} tokens of the tokenizer are not in the model's vocabulary",
            file=path,
            key="tokenizer",
            value=f"{token} is {number}",
            allowed=f"ids from 0 to {size - 1} (vocab_size is {size})",
        )


def named_tokens(path: Path | str, revision: str | None = None) -> Iterator[tuple[Path, str, Any, list[int]]]:
    """Settings of `SETTINGS` that name tokens: file, key, value, and the tokens in it.

    Raises:
        UserError: for a file that is damaged, or a setting that is no token id and no list of them.
    """
    for name in SETTINGS:
        if not (file := _cached(path, name, revision)):
            continue
        content = read_json(file)
        if not isinstance(content, dict):
            raise UserError("this is no object of settings", file=file, value=content, allowed="{…}")
        for part in (content, content.get("text_config")):
            for key, value in part.items() if isinstance(part, dict) else ():
                if not TOKENS.fullmatch(key):
                    continue
                tokens = [token for token in _flat(value) if token is not None]
                if any(type(token) is not int or token < 0 for token in tokens):
                    raise UserError(
                        "this is no token", file=file, key=key, value=value, allowed="a token id or a list of them"
                    )
                yield file, key, value, tokens


def _flat(value: Any) -> list[Any]:
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]


def _weight_files(path: Path | str, revision: str | None) -> list[Path]:
    if whole := _cached(path, WEIGHTS, revision):
        return [whole]
    index = _cached(path, INDEX, revision)
    shards = sorted(set(read_json(index)["weight_map"].values())) if index else []
    return [file for shard in shards if (file := _cached(path, shard, revision))]


def _cached(path: Path | str, name: str, revision: str | None) -> Path | None:
    """A file of a model in a local folder or on the hub, or None."""
    file = transformers.utils.cached_file(
        path,
        name,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(file) if file else None
