"""Making the tiny model and loading any."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from redraft.config.model import TinyModel
from redraft.engines.torch.head import check_constant_rotation
from redraft.errors import UserError
from redraft.files import atomic_folder, write_json
from redraft.train.model_files import (
    check_finite,
    check_index,
    check_tokens,
    check_types,
    check_vocabulary,
    named_tokens,
    stored_weights,
)

_ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}


def initialise(model: TinyModel, tokenizer: Any) -> Any:
    """A model of the configured shape with random weights from the warm start's seed.

    Embeddings are untied, since vLLM's CPU build keeps tied ones stale after a weight update.
    """
    config_class, model_class = _ARCHITECTURES[model.architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=model.hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    # The seed below must not change the random numbers of the caller.
    with torch.random.fork_rng():
        torch.manual_seed(model.warm_start.seed)
        return model_class(config)


transformers.utils.logging.disable_progress_bar()

NO_CODE = {"trust_remote_code": False}
"""Without it transformers asks on the terminal whether a model's own code may run."""
NO_PICKLE = {"use_safetensors": True}
NO_RESIZING = {"ignore_mismatched_sizes": True}
"""Lets `check_weights` name the weights of another shape; transformers' own error prints a table."""
WITHOUT_EFFECT = re.compile(r"^- `(\w+)`", re.MULTILINE)
"""Names of settings in transformers' list of those that do nothing, such as a temperature without sampling."""


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Raise a UserError instead of what transformers raises where there is nothing that it can load.

    Besides OSError and ValueError these are errors of many types that a wrong value in a JSON file leads to.
    """
    if isinstance(path, Path) and not path.is_dir():  # else the hub is queried for a minute
        raise UserError("no model can be loaded from here (there is no such folder)", file=path)
    try:
        check_index(path)
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if type(error).__module__.startswith("safetensors"):  # its own type for a truncated file
            raise UserError(f"the weights are damaged ({error})", file=path) from None
        lines = " ".join(str(error).splitlines()[:2]) or "no message"
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise UserError(f"no model can be loaded from here ({kind}{lines})", file=path) from None


def load(path: Path | str, revision: str | None = None, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Model, in float32 by default, and tokenizer from a local folder or the hub.

    The model's generation settings name all tokens of `ends`, and none without effect, which cannot be saved.

    Raises:
        UserError: if there is nothing that can be loaded, the weights do not fit the configuration or are no finite
            floating-point numbers, or files name tokens outside of the vocabulary.
    """
    with _naming(path):
        check_tokens(
            config := transformers.AutoConfig.from_pretrained(path, revision=revision, **NO_CODE), path, revision
        )
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, revision=revision, dtype=dtype, output_loading_info=True, **NO_CODE, **NO_PICKLE, **NO_RESIZING
        )
        check_weights(model, info, path)
        check_finite(model.named_parameters(), check_types(model, path, revision), path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, revision=revision, **NO_CODE)
        if len(tokenizer) < 2:  # what transformers makes where there are no files of one
            raise UserError("this model has no tokenizer", file=path, allowed="a folder with tokenizer.json")
        check_vocabulary(tokenizer, config, path)
        _drop_without_effect(model.generation_config)
        set_ends(model, ends(path, tokenizer, revision))
        return model, tokenizer


def check_weights(model: Any, info: Mapping[str, Any], path: Path | str, new: tuple[str, ...] = ()) -> None:
    """Reject files whose weights are not those that the configuration describes.

    transformers fills weights that are missing with random numbers, and leaves out those that the model has no use for,
    such as biases or further layers; both without an error.

    Args:
        info: transformers' account of the loading.
        new: prefixes of weights that the files need not have.

    Raises:
        UserError: for weights that are missing, of another shape, of no use though a part of the model, or two heads.
    """
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers applies an adapter without a word
        raise UserError(
            "this model has an adapter, whose weights are not among the model's own",
            file=path,
            key="adapter_config.json",
            allowed="a model into which the adapter was merged",
        )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(new))
    shapes = [f"{name} {list(found)}" for name, found, _ in sorted(info["mismatched_keys"])]
    modules = dict(model.named_modules()).keys() - {"", model.base_model_prefix}
    surplus = sorted(n for n in info["unexpected_keys"] if any(n.startswith(f"{module}.") for module in modules))
    for names, problem, allowed in (
        (missing, "the files lack weights, which would be random numbers", "all weights of the architecture"),
        (shapes, "these weights have another shape than config.json says", "weights that fit config.json"),
        (
            surplus,
            "config.json describes a model without these weights, which would be left out",
            "a fitting config.json",
        ),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(problem, file=path, key="weights", value=", ".join(names[:3]) + more, allowed=allowed)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if getattr(model.config, "tie_word_embeddings", False) and head and head.weight is not embeddings.weight:
        raise UserError(
            "the files have a head that differs from the embeddings, and config.json says that the two are one",
            file=path,
            key="tie_word_embeddings",
            value=True,
            allowed="false, which takes the head of the files",
        )


def check_weights_of(path: Path | str) -> None:
    """Check a model's files for another program that loads it, one weight at a time; errors as of `load`."""
    with _naming(path):
        config = transformers.AutoConfig.from_pretrained(path, **NO_CODE)
        check_tokens(config, path)
        check_vocabulary(transformers.AutoTokenizer.from_pretrained(path, **NO_CODE), config, path)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, device_map="meta", output_loading_info=True, **NO_CODE, **NO_PICKLE, **NO_RESIZING
        )
        check_weights(model, info, path)
        files = check_types(model, path)
        check_finite(stored_weights(files), files, path)


def load_critic(path: Path, seed: int) -> Any:
    """A critic in float32: the model at `path` with a value head, sampled with `seed`, instead of the vocabulary.

    Raises:
        UserError: as of `load`; only the weights of the new head may be missing.
    """
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # that the head is new is what is wanted
    try:
        with torch.random.fork_rng(), _naming(path):
            torch.manual_seed(seed)
            config = transformers.AutoConfig.from_pretrained(path, num_labels=1, **NO_CODE)
            check_tokens(config, path)
            # transformers would drop a tenth of the hidden states before this head while it trains.
            config.classifier_dropout = 0.0
            critic, info = transformers.AutoModelForTokenClassification.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                **NO_CODE,
                **NO_PICKLE,
                **NO_RESIZING,
            )
            check_weights(critic, info, path, new=("score.", "classifier."))
            check_finite(critic.named_parameters(), check_types(critic, path), path)
            return critic
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


def load_tokenizer(path: Path | str) -> Any:
    """The tokenizer of a model in a local folder or on the hub; errors as of `load`."""
    with _naming(path):
        return transformers.AutoTokenizer.from_pretrained(path, **NO_CODE)


def load_config(path: Path | str) -> Any:
    """The configuration of a model in a local folder or on the hub, without its weights; errors as of `load`."""
    with _naming(path):
        return transformers.AutoConfig.from_pretrained(path, **NO_CODE)


def parameters(path: Path | str, revision: str | None = None) -> int:
    """Number of parameters of a model in a local folder or on the hub, from its configuration; errors as of `load`."""
    with _naming(path), torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(path, revision=revision, **NO_CODE)
        return transformers.AutoModelForCausalLM.from_config(config, **NO_CODE).num_parameters()


def check_rotation(path: Path | str, positions: int) -> None:
    """Reject a model whose rotary embeddings change within `positions` positions (`check_constant_rotation`)."""
    check_constant_rotation(load_config(path), positions, path)


def ends(path: Path | str, tokenizer: Any, revision: str | None = None) -> frozenset[int]:
    """Tokens that end a response of a model in a local folder or on the hub, for every engine and backend.

    They are the ends of sequence that its tokenizer, config.json and generation_config.json name. Each of the three may
    be missing or incomplete: base models often name one end, and chat models that of a turn in one file only. Defaults
    of configuration classes do not count.

    Raises:
        UserError: for a file that is damaged or names something else than token ids.
    """
    named = [tokens for _, key, _, tokens in named_tokens(path, revision) if key == "eos_token_id"]
    return frozenset({tokenizer.eos_token_id, *(token for tokens in named for token in tokens)} - {None})


def set_ends(model: Any, tokens: Collection[int]) -> None:
    """Name these tokens, and no others, as ends of a response in a model's generation settings."""
    several = sorted(tokens)
    model.generation_config.eos_token_id = several[0] if len(several) == 1 else several or None


def stop_tokens(model: Any) -> frozenset[int]:
    """Tokens that end a response of a loaded model: those of `ends`, which `load` writes into its settings."""
    named = model.generation_config.eos_token_id
    return frozenset(named if isinstance(named, list) else [] if named is None else [named])


def _drop_without_effect(settings: Any) -> None:
    """Unset generation settings that do nothing beside the others; raises ValueError for contradictory ones.

    transformers loads but does not save a temperature without sampling, which some published models have.
    """
    try:
        settings.validate(strict=True)
    except ValueError as error:
        names = WITHOUT_EFFECT.findall(str(error))
        if not names:
            raise
        for name in names:
            setattr(settings, name, None)
        settings.validate(strict=True)


def untie(model: Any) -> None:
    """Give the head a copy of the embeddings' weights if it shares them; distributions stay as they are."""
    if model.config.tie_word_embeddings:
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


def save(model: Any, tokenizer: Any, folder: Path, records: Mapping[str, Any] | None = None) -> None:
    """Write both in transformers' format, whole or not at all, with further JSON files by their names."""
    with atomic_folder(folder) as unfinished:
        model.save_pretrained(unfinished, max_shard_size="1000GB")  # one file, which the workflow knows by name
        tokenizer.save_pretrained(unfinished)
        for name, content in (records or {}).items():
            write_json(unfinished / name, content)


def device_of(choice: str) -> torch.device:
    """The torch device of a configured choice."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU is available", key="engine.device", value=choice, allowed="auto, cpu")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")
