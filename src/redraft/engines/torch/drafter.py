"""The policy as its own drafter: with quantised feed-forward and attention projections, and all other weights shared.

A block takes n forward passes of the drafter, one token each. The drafter uses the policy's cache: it attends to the
policy's keys and values, and its own occupy the slots of its proposals until verification overwrites them.

The drafter has no trained parameters: `refresh` quantises the policy's current weights into the same tensors. Quantised
weights are stored as floats here ("fake-quantised"). They propose the same tokens as packed weights would, but save no
time, since kernels for packed weights exist on GPUs only.

Weights are rounded to the nearest of 2^bits values: asymmetrically, in groups along the input, without data. A group's
range always contains 0, so that the zero point is one of the codes.

Source: EfficientRollout (arXiv 2606.18967), section 4.1: FFN and QKVO projections are quantised; embeddings, norms and
the output layer are not; 4 bits in groups of 128, "following prior practice" (AWQ, arXiv 2306.00978).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from redraft.engines.torch.loop import now
from redraft.engines.torch.speculation import Block, Drafter, Proposals, SpeculativeEngine
from redraft.errors import UserError

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Names of the quantised linear layers in transformers' dense decoders."""
SCALE_BITS = 16
"""Bits of a group's scale in packed weights."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """A weight of a linear layer as integers.

    Attributes:
        codes: uint8 (outputs, groups, group size), 0 to 2^bits - 1; the last group is padded.
        scales: float32 (outputs, groups, 1).
        zeros: float32 (outputs, groups, 1), the code of 0, a whole number.
        inputs: number of inputs, without padding.
        bits: bits of a code.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    inputs: int
    bits: int

    def dequantised(self) -> torch.Tensor:
        """The dequantised weight, float32 (outputs, inputs)."""
        return ((self.codes - self.zeros) * self.scales).flatten(1)[:, : self.inputs]

    @property
    def bytes(self) -> float:
        """Size of packed codes, scales and zero points, bytes."""
        codes = self.codes.shape[0] * self.inputs * self.bits
        return (codes + self.scales.numel() * (SCALE_BITS + self.bits)) / 8


def round_to_nearest(weight: torch.Tensor, bits: int, group: int) -> Quantised:
    """Quantise a weight (outputs, inputs). `group` inputs of an output share a scale."""
    outputs, inputs = weight.shape
    size = min(group, inputs)
    # Padding with zeros changes no scale, since every range holds 0.
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    low, high = padded.amin(2, keepdim=True).clamp(max=0), padded.amax(2, keepdim=True).clamp(min=0)
    most = 2**bits - 1
    # A group of zeros has no range, and its codes are divided by the scale.
    scales = ((high - low) / most).clamp(min=torch.finfo(torch.float32).tiny)
    zeros = (-low / scales).round()
    codes = ((padded / scales).round() + zeros).clamp(0, most).to(torch.uint8)
    return Quantised(codes, scales, zeros, inputs, bits)


class QuantisedDrafter(Drafter):
    """Drafter that computes with the policy's quantised projections in place of the original ones.

    Call `refresh` after the policy's weights have changed.

    Args:
        model: the policy.
        bits: bits of a quantised weight.
        group: number of weights that share a scale.

    Attributes:
        bytes: size of the quantised weights if packed.
        error: relative error of the weights: root of the sum of squared errors over the sum of squared weights.
        seconds: duration of the last `refresh`, by `redraft.engines.torch.loop.now`.

    Raises:
        UserError: for a model without such projections.
    """

    has_distribution = True

    def __init__(self, model: torch.nn.Module, bits: int = 4, group: int = 128) -> None:
        self._bits, self._group = bits, group
        layers = [m for name, m in model.named_modules() if name.rpartition(".")[2] in PROJECTIONS]
        if not layers:
            raise UserError(
                "this model has no projections to quantise for self-speculation",
                key="model",
                value=type(model).__name__,
                allowed=f"layers named {', '.join(PROJECTIONS)}",
            )
        self._layers = [(layer, torch.nn.Parameter(layer.weight.detach().clone(), False)) for layer in layers]
        self.bytes = self.error = self.seconds = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Quantise the policy's current weights, in place."""
        device = self._layers[0][1].device
        began = now(device)
        size = squared_error = squared_weight = 0.0
        with torch.no_grad():
            for layer, own in self._layers:
                quantised = round_to_nearest(layer.weight, self._bits, self._group)
                own.copy_(quantised.dequantised())
                size += quantised.bytes
                squared_error += float((own - layer.weight).float().square().sum())
                squared_weight += float(layer.weight.float().square().sum())
        self.bytes, self.error = size, (squared_error / squared_weight) ** 0.5 if squared_weight else 0.0
        self.seconds = now(device) - began

    def propose(self, engine: SpeculativeEngine, block: Block, count: int) -> Proposals:
        """Sample proposals from the quantised policy, one token of every row at a time."""
        rows = slice(0, engine.rows.decoding)
        tokens_B, tokens, log_probs = engine.rows.tokens[rows], [], []
        with self.drafting():
            for i in range(count):
                positions_B = engine.rows.positions[rows] + i
                log_probs_BV = engine._distributions(tokens_B[:, None], positions_B, block.longest + i)[:, 0]
                tokens_B = block.propose(log_probs_BV, i)
                tokens.append(tokens_B)
                log_probs.append(log_probs_BV)
        proposed_B = torch.full_like(tokens_B, count)
        return Proposals(torch.stack(tokens, 1), proposed_B, torch.stack(log_probs, 1))

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """Context in which the model computes with the quantised weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        """Exchange each projection's weight with its quantised one, or back; the tensors keep their addresses."""
        for i, (layer, own) in enumerate(self._layers):
            self._layers[i] = (layer, layer._parameters["weight"])
            layer._parameters["weight"] = own
