"""What a GGUF file says of a model besides its weights, as a configuration of transformers.

transformers reads some keys and passes over all others without a word: scaled rotary embeddings, windows, biases. Here
every key of the model and of its tokenizer is mapped, without effect, or an error; so is every tensor. The meaning and
the defaults of keys are those of llama.cpp (`llama-model.cpp`, `llama-arch.cpp`, `ggml_rope_ext`).
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from redraft.errors import UserError

ARCHITECTURES = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
"""Configurations by GGUF's architectures. transformers reads others too, but with constants of one model (partial
rotary embeddings, windows) or under names that no file has."""
REQUIRED = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""transformers' names of numbers that a file must have. Without the heads of keys, transformers takes a Llama's rows in
GGUF's order."""
HEAD_KEYS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
"""Widths that are the same number in these architectures."""
ROPE_KEYS = {
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (False,),
}
"""Values with which keys change nothing; with others the file is rejected."""
WITHOUT_EFFECT = {"rope.scaling.finetuned", "tensor_data_layout"}
TOKENIZER_KEYS = {
    *(f"ggml.{name}" for name in ("model", "pre", "tokens", "token_type", "scores", "merges", "add_space_prefix")),
    *(f"ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
    "ggml.add_bos_token",
    "chat_template",
}
"""Keys after `tokenizer.` that are read."""
TOKENIZER_WITHOUT_EFFECT = ("chat_template", "huggingface.json", "ggml.token_type_count", "ggml.add_sep_token")
"""Beginnings of keys of the tokenizer that change nothing here: other templates, a copy in another format."""
UNUSED_TOKENS = tuple(f"ggml.{name}" for name in ("cls", "mask", "seperator", "prefix", "suffix", "middle", "fim_"))
"""Special tokens that no prompt of this project has."""
ENDS = ("eos", "eot", "eom")
"""Tokens that end a response: of a sequence, a turn, a message."""
FREQUENCIES = "rope_freqs.weight"
"""Tensor of factors that divide the frequencies of a rotary embedding."""
UNREAD_TENSORS = ("attn_rot_embd.weight", "rotary_emb.inv_freq")
"""Ends of names of tensors that llama.cpp passes over too."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""Bounds of Llama 3's scaled rotary embedding, in wavelengths per original context length."""
OTHER_FORMAT = "take the model in transformers' format: kind: pretrained"


def configuration(fields: Mapping[str, Any], tensors: Mapping[str, Any], file: Path) -> Any:
    """Configuration of the model in a file.

    Args:
        fields: metadata by GGUF's keys.
        tensors: arrays by GGUF's names; only that of the frequencies is read.

    Raises:
        UserError: for another architecture, and for a key or value that transformers' model cannot have.
    """
    architecture = fields["general.architecture"]
    own = {key.removeprefix(f"{architecture}."): v for key, v in fields.items() if key.startswith(f"{architecture}.")}
    read = _Keys(own, architecture, file)
    values = {name: read.number(key) for key, name in REQUIRED.items()}
    head = own.get("attention.key_length", values["hidden_size"] // values["num_attention_heads"])
    for key in HEAD_KEYS:
        if own.get(key, head) != head:
            raise read.error(
                key, "widths of heads that differ, or partial rotary embeddings, are unsupported", str(head)
            )
    for key, value in own.items():
        wide = key == "attention.sliding_window" and value >= values["max_position_embeddings"]
        if key in NEUTRAL and value not in NEUTRAL[key] and not wide:
            raise read.error(key, "transformers' model has nothing for this value", _text(NEUTRAL[key]))
    known = {*REQUIRED, *HEAD_KEYS, *ROPE_KEYS, *NEUTRAL, *WITHOUT_EFFECT, "vocab_size"}
    for key in own.keys() - known:
        raise read.error(key, "this key is unknown, and may change the model", known)
    return ARCHITECTURES[architecture](
        **values,
        head_dim=head,
        vocab_size=own.get("vocab_size", len(fields["tokenizer.ggml.tokens"])),
        rope_parameters=_rope(read, head, values["max_position_embeddings"], tensors.get(FREQUENCIES)),
        tie_word_embeddings="output.weight" not in tensors,
        **{f"{name}_token_id": fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _IDS.items()},
    )


_IDS = {"bos": "bos", "eos": "eos", "pad": "padding"}


def ends(fields: Mapping[str, Any]) -> set[int]:
    """Tokens that end a response according to a file's metadata."""
    found = {fields.get(f"tokenizer.ggml.{name}_token_id") for name in ENDS}
    return {int(token) for token in found if token is not None}


def check_other_keys(fields: Mapping[str, Any], file: Path) -> None:
    """Reject keys of the file and of the tokenizer that this project does not know to be without effect.

    Keys of other beginnings, such as a quantiser's, are read by no program that runs the model.

    Raises:
        UserError: for an unsupported architecture, a part of a model, an adapter, or a tokenizer's further rules.
    """

    def error(key: str, problem: str, allowed: Any = None) -> UserError:
        return UserError(problem, file=file, key=key, value=fields.get(key), allowed=allowed, hint=OTHER_FORMAT)

    if fields.get("general.architecture") not in ARCHITECTURES:
        raise error("general.architecture", "GGUF files of this architecture cannot be read exactly", ARCHITECTURES)
    if fields.get("general.type", "model") != "model":
        raise error("general.type", "this file holds no model", "model")
    if fields.get("split.count", 0) > 1:
        raise error("split.count", "this file is a part of a model", "one file (`llama-gguf-split --merge`)")
    for key, value in fields.items():
        if key.startswith(("adapter.", "clip.", "diffusion.", "xielu.")):
            raise error(key, "this key changes the model in a way that transformers' model does not have")
        name = key.removeprefix("tokenizer.")
        unused = name.startswith(UNUSED_TOKENS) and name.endswith("_id")
        known = name in TOKENIZER_KEYS or name.startswith(TOKENIZER_WITHOUT_EFFECT) or unused
        if key.startswith("tokenizer.") and not known and _set(value):
            raise error(key, "this key is unsupported, and may change how text becomes tokens", TOKENIZER_KEYS)
    if fields.get("tokenizer.ggml.model") not in ("gpt2", "llama"):
        raise error("tokenizer.ggml.model", "tokenizers of this kind are unsupported", "gpt2, llama")


def _text(values: Collection[Any]) -> str:
    return " or ".join(map(str, values))


def _set(value: Any) -> bool:
    return bool(len(value)) if hasattr(value, "__len__") else bool(value)


def check_tensors(names: Collection[str], mapped: Collection[str], file: Path) -> None:
    """Reject a file with a tensor that no weight of the model is read from, such as a bias.

    Args:
        mapped: GGUF's names of the model's weights.
    """
    surplus = sorted(name for name in {*names} - {*mapped, FREQUENCIES} if not name.endswith(UNREAD_TENSORS))
    if surplus:
        raise UserError(
            "transformers' model has no such weights, so they would be left out",
            file=file,
            key="tensors",
            value=", ".join(surplus[:3]),
            allowed="weights of the architecture",
            hint=OTHER_FORMAT,
        )


class _Keys:
    """The keys of an architecture, without its name in front."""

    def __init__(self, own: Mapping[str, Any], architecture: str, file: Path) -> None:
        self.own, self.architecture, self.file = own, architecture, file

    def number(self, key: str, default: float | None = None) -> Any:
        """A number above 0; without a default the key must be there."""
        value = self.own.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, "this must be one number, the same for all layers", "a number above 0")
        return value

    def error(self, key: str, problem: str, allowed: Any) -> UserError:
        name, hint = f"{self.architecture}.{key}", OTHER_FORMAT
        return UserError(problem, file=self.file, key=name, value=self.own.get(key), allowed=allowed, hint=hint)


def _rope(keys: _Keys, width: int, context: int, factors: Any) -> dict[str, Any]:
    """transformers' parameters of the rotary embedding.

    A factor without a type is linear. A factor of 0 is none.

    Args:
        width: of a head.
        factors: the tensor of `FREQUENCIES`, or None.
    """
    theta, kind = keys.number("rope.freq_base", 10_000.0), keys.own.get("rope.scaling.type", "linear")
    factor_key = "rope.scaling.factor" if "rope.scaling.factor" in keys.own else "rope.scale_linear"
    factor = keys.number(factor_key) if keys.own.get(factor_key) else 1.0
    if kind not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", "this scaling of rotary embeddings is unsupported", "none, linear, yarn")
    scaled = kind != "none" and factor != 1
    if scaled and factor < 1:
        raise keys.error(factor_key, "a scaling of rotary embeddings must not shrink the context", "at least 1")
    if factors is not None:
        if scaled:
            raise keys.error(factor_key, f"a scaling beside the tensor {FREQUENCIES} is unsupported", "one of them")
        return {"rope_theta": theta} | _llama3(np.asarray(factors, np.float64), theta, width, context, keys)
    if not scaled:
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": keys.number("rope.scaling.original_context_length", context),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _llama3(factors: np.ndarray, theta: float, width: int, context: int, keys: _Keys) -> dict[str, Any]:
    """Parameters of Llama 3's scaling, of which a file only has the factors (`convert_hf_to_gguf.py`)."""
    if np.allclose(factors, 1):
        return {"rope_type": "default"}
    factor, low, high = round(float(factors.max()), 4), LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    wavelengths = 2 * math.pi * theta ** (np.arange(0, width, 2) / width)
    for original in dict.fromkeys((8192, context, round(context / factor))):
        smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
        if factors.shape == smooth.shape and np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
            found = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": original}
            return found | LLAMA3
    raise UserError(
        "these factors of the rotary embedding's frequencies are not those of Llama 3",
        file=keys.file,
        key="tensors",
        value=FREQUENCIES,
        allowed="Llama 3's",
        hint=OTHER_FORMAT,
    )
