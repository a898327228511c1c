"""Muon, an optimizer of matrices: the step is the momentum with all its singular values near one.

Jordan et al. (2024), "Muon: An optimizer for hidden layers in neural networks". `torch.optim.Muon` computes the same,
but in bfloat16: a processor without instructions for it takes 17 times as long.
"""

import math
from collections.abc import Iterable

import torch

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the odd polynomial that each iteration applies to all singular values; the fastest growth near zero."""
EPSILON = 1e-7


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with singular values of 0.5 to 1.5 in place of those of at least a hundredth of its norm.

    Args:
        matrix: (rows, columns), float.

    Returns:
        A new tensor of the same shape and type.
    """
    first, second, third = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    wide = wide / wide.norm().clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=second, alpha=third), wide, beta=first)
    return wide.T if tall else wide


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and decoupled weight decay.

    The step's root mean square is 0.2 of the learning rate, about that of AdamW, so that both can share a learning rate
    (Liu et al., 2025, "Muon is scalable for LLM training", Section 2.2).

    Args:
        matrices: parameters of two dimensions.
        lr: learning rate.
        momentum: of the running mean of gradients.
        weight_decay: share of the learning rate by which weights shrink in a step.
    """

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["mean"] = torch.zeros_like(matrix)
                mean = state["mean"]
                mean.lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(mean, group["momentum"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                size = 0.2 * math.sqrt(max(matrix.shape))
                matrix.add_(orthogonal(ahead), alpha=-group["lr"] * size)
