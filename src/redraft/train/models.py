"""Making the tiny model and loading any."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from redraft.config.model import TinyModel
from redraft.errors import UserError
from redraft.files import atomic_folder

# Before transformers' models are loaded, which import scikit-learn for one threshold of assisted decoding and SciPy for
# the losses of object detection. Nothing here uses these, and they are a quarter of the time that a job takes to start.
transformers.utils.is_sklearn_available = lambda: False
transformers.utils.is_scipy_available = lambda: False

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
    with torch.random.fork_rng():
        torch.manual_seed(model.warm_start.seed)
        return model_class(config)


transformers.utils.logging.disable_progress_bar()

NO_CODE = {"trust_remote_code": False}
"""Without it transformers asks on the terminal whether a model's own code may run."""
NO_PICKLE = {"use_safetensors": True}


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Raise a UserError instead of what transformers raises where there is nothing that it can load."""
    if isinstance(path, Path) and not path.is_dir():  # else the hub is queried for a minute
        raise UserError("no model can be loaded from here (there is no such folder)", file=path)
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"no model can be loaded from here ({str(error).splitlines()[0]})", file=path) from None
    except Exception as error:  # safetensors raises its own type for a truncated file
        if type(error).__module__.startswith("safetensors"):
            raise UserError(f"the weights are damaged ({error})", file=path) from None
        raise


def load(path: Path | str, revision: str | None = None, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Model, in float32 by default, and tokenizer from a local folder or the hub.

    Raises:
        UserError: if there is nothing that can be loaded.
    """
    with _naming(path):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, revision=revision, dtype=dtype, **NO_CODE, **NO_PICKLE
        )
        return model, transformers.AutoTokenizer.from_pretrained(path, revision=revision, **NO_CODE)


def load_critic(path: Path, seed: int) -> Any:
    """A critic in float32: the model at `path` with a value head in place of the vocabulary, drawn from `seed`."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # that the head is new is what is wanted
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = transformers.AutoConfig.from_pretrained(path, num_labels=1, **NO_CODE)
            config.classifier_dropout = 0.0
            return transformers.AutoModelForTokenClassification.from_pretrained(
                path, config=config, dtype=torch.float32, **NO_CODE, **NO_PICKLE
            )
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


def load_generation(path: Path | str) -> Any:
    """A stand-in for a model of which only the generation settings are wanted; none if it has none."""
    try:
        return SimpleNamespace(generation_config=transformers.GenerationConfig.from_pretrained(path))
    except OSError:
        return SimpleNamespace(generation_config=None)


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a response: the tokenizer's end of sequence, and those of the model's generation settings."""
    settings = getattr(model, "generation_config", None)
    ends = getattr(settings, "eos_token_id", None)
    several = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in (tokenizer.eos_token_id, *several) if token is not None)


def untie(model: Any) -> None:
    """Give the head weights of its own, equal to the embeddings', if it shares theirs; distributions stay as they
    are."""
    if model.config.tie_word_embeddings:
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write both in transformers' format, whole or not at all."""
    with atomic_folder(folder) as unfinished:
        model.save_pretrained(unfinished, max_shard_size="1000GB")  # one file, which the workflow knows by name
        tokenizer.save_pretrained(unfinished)


def device_of(choice: str) -> torch.device:
    """The torch device of a configured choice."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU is available", key="engine.device", value=choice, allowed="auto, cpu")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")
