"""Linear layers with packed weights, on a CPU, while an engine runs.

A product with few rows, as in a decoding pass, spends a third of its time on rearranging the weight for the processor.
oneDNN, which PyTorch contains, rearranges a weight once and multiplies by the packed copy; PyTorch's compiler does the
same with constant weights (`torch/_inductor/fx_passes/mkldnn_fusion.py`). The copies exist only while an engine runs,
since training changes the weights.

A packed product may add in another order than a plain one, and pays only where weights do not stay in the processor's
cache. Smaller models keep plain products, and the bits of their results.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Linear
from torch.nn.functional import linear

LEAST_WEIGHTS = 1 << 23
"""Weights of linear layers from which a model is packed: 32 MiB in float32, about the cache of a processor."""
ROWS = 32
"""Rows of the products for which the layout is chosen; it fits any number of rows."""


def large(model: torch.nn.Module) -> bool:
    """Whether a pass spends most of its time on weights; the time of a small model's passes is overhead."""
    return sum(layer.weight.numel() for layer in model.modules() if type(layer) is Linear) >= LEAST_WEIGHTS


def packable(model: torch.nn.Module) -> list[Linear]:
    """The linear layers to pack: none on a GPU, in a small model, or in a precision that oneDNN lacks here."""
    if not torch.backends.mkldnn.is_available():
        return []
    layers = [layer for layer in model.modules() if type(layer) is Linear]
    known = {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}
    fits = all(layer.weight.device.type == "cpu" and layer.weight.dtype in known for layer in layers)
    return layers if fits and large(model) else []


@contextmanager
def packed_weights(model: torch.nn.Module) -> Iterator[None]:
    """Let a model compute with packed copies of its present weights within the block.

    A layer whose weight is exchanged within the block, as by a drafter, computes with the other weight, unpacked. A
    weight must not change in place.
    """
    layers = packable(model)
    try:
        for layer in layers:
            layer.__dict__["forward"] = _Packed(layer)  # where a module looks first
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


class _Packed:
    """Replaces the `forward` of a linear layer."""

    def __init__(self, layer: Linear) -> None:
        self._layer, self._weight = layer, layer.weight
        self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """Output (..., outputs) of an input (..., inputs)."""
        weight, bias = self._layer.weight, self._layer.bias
        if weight is not self._weight:
            return linear(input, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, bias, "none", [], "")
