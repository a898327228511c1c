"""A model's bytes and operations in a forward pass, from its transformers configuration.

Source: EfficientRollout (arXiv 2606.18967), section 4.2 and Appendix D.2. Values have two bytes. Biases and the norms
of queries and keys, below 0.01 % of the weights, are omitted, as in the authors' constants; so are the scales and zero
points of the quantised drafter, whose cost is part of a fitted factor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.errors import UserError
from redraft.files import read_json

VALUE_BYTES = 2
"""Bytes of a weight, key or value."""
TIED_BY_DEFAULT = {
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen3": False,
    "phi3": False,
    "granite": False,
    "gemma": True,
    "smollm3": True,
}
"""Decoders that the roofline covers: full attention of grouped queries, a gated FFN, two norms a layer. The value is
whether head and embedding are tied if a configuration does not say."""
LARGEST_SIZE = 10**9
"""Largest size of a layer or a vocabulary."""
WINDOWED_BY_DEFAULT = {"mistral", "phi3"}
"""Decoders whose `sliding_window` applies without `use_sliding_window`."""
COVERED = f"a dense decoder with full attention and 16-bit weights: {', '.join(sorted(TIED_BY_DEFAULT))}"


@dataclass(frozen=True)
class Costs:
    """A model's bytes and operations in the roofline.

    Attributes:
        target_bytes: weights of the target, bytes (W_t).
        draft_bytes: weights of the quantised drafter, bytes (W_d).
        kv_bytes: keys and values of one position, bytes (κ).
        dense_flops: operations of all projections for one token (C_dense).
        attention_flops: operations of attention for one token and one position before it (C_attn).
    """

    target_bytes: float
    draft_bytes: float
    kv_bytes: float
    dense_flops: float
    attention_flops: float


@dataclass(frozen=True)
class ModelConstants:
    """A decoder's sizes, and the costs that follow from them.

    Attributes:
        hidden: width of the residual stream.
        heads: heads of queries.
        kv_heads: heads of keys and values.
        head_dim: width of a head.
        intermediate: width of the FFN.
        vocabulary: rows of the embedding.
        tied: whether the head is the embedding.
        name: of the model.
        draft_bits: bits of the drafter's FFN and attention projections; all else keeps 16 (section 4.1).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    name: str = ""
    draft_bits: int = 4

    @property
    def ffn_parameters(self) -> int:
        """Weights of gate, up and down projections, all layers."""
        return self.layers * 3 * self.hidden * self.intermediate

    @property
    def qkvo_parameters(self) -> int:
        """Weights of attention's four projections, all layers."""
        return self.layers * 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def head_parameters(self) -> int:
        """Weights of the language-model head."""
        return self.hidden * self.vocabulary

    @property
    def kept_parameters(self) -> int:
        """Weights that the drafter shares: embedding, head and norms."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.head_parameters * (1 if self.tied else 2) + norms

    @property
    def costs(self) -> Costs:
        """Bytes and operations, as in the authors' constants."""
        quantised = self.ffn_parameters + self.qkvo_parameters
        return Costs(
            target_bytes=VALUE_BYTES * (quantised + self.kept_parameters),
            draft_bytes=quantised * self.draft_bits / 8 + VALUE_BYTES * self.kept_parameters,
            # A key and a value.
            kv_bytes=2 * self.layers * self.kv_heads * self.head_dim * VALUE_BYTES,
            # A multiplication and an addition for each weight and token; the embedding is looked up instead.
            dense_flops=2 * (quantised + self.head_parameters),
            # Two products of each head, for scores and for values, of a multiplication and an addition each.
            attention_flops=4 * self.layers * self.heads * self.head_dim,
        )


def model_constants(config: Any, *, draft_bits: int = 4, file: Path | None = None) -> ModelConstants:
    """Sizes of a decoder from its transformers configuration.

    Args:
        config: a mapping, as in `config.json`, or a configuration object.
        draft_bits: bits of the drafter's quantised weights, 4 (W4) or 8 (W8).
        file: file of the configuration, for messages.

    Raises:
        UserError: for a model that the roofline does not cover, or a size that is missing or invalid.
    """
    keys = config if isinstance(config, Mapping) else config.to_dict()
    _check_covered(keys, file)
    heads = _size(keys, "num_attention_heads", file)
    # Without the key each head of queries has its own keys, as in transformers.
    kv_heads = _size(keys, "num_key_value_heads", file, default=heads)
    hidden = _size(keys, "hidden_size", file)
    if heads % kv_heads:
        raise UserError(
            "heads of queries must share heads of keys evenly",
            file=file,
            key="num_key_value_heads",
            value=kv_heads,
            allowed=f"a divisor of {heads}",
        )
    if draft_bits not in (4, 8):
        raise UserError("no such drafter", key="draft_bits", value=draft_bits, allowed="4, 8")
    kind = keys["model_type"]
    tied = keys.get("tie_word_embeddings")
    # A text such as "false" would count as true.
    if not isinstance(tied, bool | None):
        problem = "the configuration does not say whether head and embedding are tied"
        raise UserError(problem, file=file, key="tie_word_embeddings", value=tied, allowed="true or false")
    return ModelConstants(
        hidden=hidden,
        layers=_size(keys, "num_hidden_layers", file),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(keys, "head_dim", file, default=hidden // heads),
        intermediate=_size(keys, "intermediate_size", file),
        vocabulary=_size(keys, "vocab_size", file),
        tied=TIED_BY_DEFAULT[kind] if tied is None else tied,
        name=str(keys.get("_name_or_path") or kind),
        draft_bits=draft_bits,
    )


def read_model(path: Path, *, draft_bits: int = 4) -> ModelConstants:
    """Sizes of the model of a folder or a `config.json`; a UserError if it is missing, damaged or not covered."""
    file = path / "config.json" if path.is_dir() else path
    content = read_json(file)
    if not isinstance(content, dict):
        raise UserError("this file is no configuration of a model", file=file, allowed="a JSON object")
    return model_constants(content, draft_bits=draft_bits, file=file)


def _check_covered(keys: Mapping[str, Any], file: Path | None) -> None:
    experts = [key for key, value in keys.items() if ("expert" in key or "moe" in key) and value]
    if experts:
        raise UserError(
            "a mixture of experts reads other weights in every pass, which the roofline does not cover",
            file=file,
            key=experts[0],
            value=keys[experts[0]],
            allowed=COVERED,
        )
    kind = keys.get("model_type")
    if not isinstance(kind, str) or kind not in TIED_BY_DEFAULT:
        raise UserError(
            "the roofline does not cover this architecture", file=file, key="model_type", value=kind, allowed=COVERED
        )
    if keys.get("quantization_config"):
        raise UserError(
            "the roofline does not cover a quantised target", file=file, key="quantization_config", allowed=COVERED
        )
    # Qwen's configurations name a window that `use_sliding_window: false` switches off.
    windowed = keys.get("use_sliding_window", kind in WINDOWED_BY_DEFAULT) and keys.get("sliding_window")
    if windowed or set(keys.get("layer_types") or ()) - {"full_attention"}:
        raise UserError(
            "the roofline does not cover attention to a part of the positions",
            file=file,
            key="sliding_window" if windowed else "layer_types",
            allowed=COVERED,
        )


def _size(keys: Mapping[str, Any], key: str, file: Path | None, default: int | None = None) -> int:
    value = default if keys.get(key) is None else keys[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
        allowed = f"a whole number, at most {LARGEST_SIZE}"
        raise UserError("this configuration lacks a size", file=file, key=key, value=value, allowed=allowed)
    return value
