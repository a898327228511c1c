"""Muon: its distribution and PyTorch's own within bfloat16's rounding."""

import numpy as np
import pytest
import torch

from redraft.train.warm_start import Muon, orthogonal

SHAPES = [(24, 24), (12, 40), (40, 12), (1, 7)]


def drawn(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_step_has_singular_values_near_one_and_the_matrix_own_directions(shape, scale):
    left, values, right = torch.linalg.svd(drawn(shape), full_matrices=False)
    matrix = left @ torch.linspace(1.0, 0.1, len(values)).diag() @ right
    result = orthogonal(matrix * scale)
    own = left.T @ result @ right.T
    values = own.diagonal()
    assert result.shape == matrix.shape
    assert values.min() > 0.5
    assert values.max() < 1.5
    torch.testing.assert_close(own, values.diag(), atol=2e-3, rtol=0)


def test_the_steps_of_a_matrix_and_of_its_transpose_are_transposes():
    matrix = drawn((12, 40))
    torch.testing.assert_close(orthogonal(matrix.T), orthogonal(matrix).T)


def test_a_matrix_of_zeros_has_a_step_of_zeros():
    assert not orthogonal(torch.zeros(3, 5)).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_decay", [0.0, 5.0])
def test_steps_are_those_of_pytorch_but_for_its_bfloat16(shape, weight_decay):
    start = drawn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings = {"lr": 0.02, "momentum": 0.9, "weight_decay": weight_decay}
    optimizers = (Muon([ours], **settings), torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **settings))
    for step in range(6):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = drawn(shape, seed=1 + step)
            optimizer.step()
    moved = (theirs.detach() - start).norm()
    assert (ours.detach() - theirs.detach()).norm() < 0.02 * moved


def test_a_matrix_without_a_gradient_stays():
    parameter = torch.nn.Parameter(drawn((4, 4)))
    before = parameter.detach().clone()
    Muon([parameter], lr=1.0, weight_decay=0.5).step()
    assert torch.equal(parameter.detach(), before)
