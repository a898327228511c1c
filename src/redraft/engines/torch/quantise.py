"""Round-to-nearest quantisation of weights: asymmetric, in groups along the input, without any data.

Source: EfficientRollout (arXiv 2606.18967), section 4.1: W4 of groups of 128, "following prior practice" (AWQ, arXiv
2306.00978). A group's range always holds 0, so that the zero point is one of the codes.
"""

from dataclasses import dataclass

import torch

SCALE_BITS = 16
"""Bits of a group's scale where weights are packed."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """A weight of a linear layer as integers.

    Attributes:
        codes: uint8 (outputs, groups, group size), 0 to 2^bits - 1; the last group is padded.
        scales: float32 (outputs, groups, 1).
        zeros: float32 (outputs, groups, 1), the code of 0, a whole number.
        inputs: of the layer.
        bits: of a code.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    inputs: int
    bits: int

    def dequantised(self) -> torch.Tensor:
        """The weight that the codes stand for, float32 (outputs, inputs)."""
        return ((self.codes - self.zeros) * self.scales).flatten(1)[:, : self.inputs]

    @property
    def bytes(self) -> float:
        """Size where codes, scales and zero points are packed."""
        codes = self.codes.shape[0] * self.inputs * self.bits
        return (codes + self.scales.numel() * (SCALE_BITS + self.bits)) / 8


def round_to_nearest(weight: torch.Tensor, bits: int, group: int) -> Quantised:
    """Quantise a weight (outputs, inputs); a group is `group` inputs of one output."""
    outputs, inputs = weight.shape
    size = min(group, inputs)
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    low, high = padded.amin(2, keepdim=True).clamp(max=0), padded.amax(2, keepdim=True).clamp(min=0)
    most = 2**bits - 1
    scales = ((high - low) / most).clamp(min=torch.finfo(torch.float32).tiny)
    zeros = (-low / scales).round()
    codes = ((padded / scales).round() + zeros).clamp(0, most).to(torch.uint8)
    return Quantised(codes, scales, zeros, inputs, bits)
