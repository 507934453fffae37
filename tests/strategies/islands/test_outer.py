"""The outer step: torch's own SGD, bit for bit."""

import pytest
import torch

from reference import bits, random_leaves
from unisono.strategies.islands.outer import outer_step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_torchs_nesterov(momentum):
    """Three rounds, with and without momentum."""
    weights = random_leaves(3, (7,), torch.float32, seed=0)
    plain = [torch.nn.Parameter(weight.clone()) for weight in weights]
    velocity = [torch.zeros_like(weight) for weight in weights] if momentum else []
    reference = torch.optim.SGD(plain, lr=0.7, momentum=momentum, nesterov=momentum > 0, foreach=True)
    for number in range(3):
        moved = random_leaves(3, (7,), torch.float32, seed=number + 1)
        for parameter, value in zip(plain, moved, strict=True):
            parameter.grad = value.clone()
        reference.step()
        outer_step(weights, moved, velocity, lr=0.7, momentum=momentum)
        assert [bits(weight) for weight in weights] == [bits(parameter) for parameter in plain]


def test_what_nobody_has_moved_keeps_its_bits():
    """The signs of zeros too; and no weights are no error."""
    weights = [torch.tensor([-0.0, 0.0, 1.5])]
    outer_step(weights, [weights[0] - weights[0]], [torch.zeros(3)], lr=0.7, momentum=0.9)
    assert bits(weights[0]) == bits(torch.tensor([-0.0, 0.0, 1.5]))
    outer_step([], [], [], lr=0.7, momentum=0.9)
