"""Sizes of the papers' models, from the configurations that their authors publish with the weights."""

from pathlib import Path

from redraft.config.model import Model, PretrainedModel
from redraft.selfspec.constants import ModelConstants, read_model

_QWEN2_7B = ModelConstants(3584, 28, 28, 4, 128, 18944, 152064, tied=False)
SHAPES = {
    "Qwen/Qwen3-1.7B-Base": ModelConstants(2048, 28, 16, 8, 128, 6144, 151936, tied=True),
    "Qwen/Qwen3-8B-Base": ModelConstants(4096, 36, 32, 8, 128, 12288, 151936, tied=False),
    "Qwen/Qwen3-14B-Base": ModelConstants(5120, 40, 40, 8, 128, 17408, 151936, tied=False),
    "Qwen/Qwen2.5-Math-1.5B": ModelConstants(1536, 28, 12, 2, 128, 8960, 151936, tied=True),
    "Qwen/Qwen2.5-Math-7B": _QWEN2_7B,
    "Qwen/Qwen2.5-7B": _QWEN2_7B,
    "Qwen/Qwen2.5-14B": ModelConstants(5120, 48, 40, 8, 128, 13824, 152064, tied=False),
    "Qwen/Qwen2.5-32B": ModelConstants(5120, 64, 40, 8, 128, 27648, 152064, tied=False),
    "meta-llama/Llama-3.2-1B-Instruct": ModelConstants(2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": ModelConstants(4096, 32, 32, 8, 128, 14336, 128256, tied=False),
}
"""By hub id: hidden size, layers, heads, heads of keys and values, size of a head, feed-forward size, vocabulary."""


def shape_of(model: Model) -> ModelConstants | None:
    """Sizes of a model; None if they are not known without its files.

    Raises:
        UserError: if a local folder's `config.json` is damaged or of an architecture that is not covered.
    """
    if not isinstance(model, PretrainedModel):
        return None
    folder = Path(model.path)
    return SHAPES.get(model.path) or (read_model(folder) if (folder / "config.json").is_file() else None)


def parameters_of(shape: ModelConstants) -> int:
    """Number of parameters, without biases and the norms of queries and keys (below 0.01 %)."""
    return shape.ffn_parameters + shape.qkvo_parameters + shape.kept_parameters


def layer_parameters(shape: ModelConstants) -> float:
    """Number of parameters of one decoder layer."""
    return (shape.ffn_parameters + shape.qkvo_parameters) / shape.layers
