"""What all strategies share: the mean over a batch, clipping by a known norm, models that can learn."""

import math

import pytest
import torch
from torch import nn

from unisono.errors import ConfigError
from unisono.strategies.base import Shares, check_trainable, scale_gradients


def test_the_mean_is_over_samples():
    """Micro-batches weigh by their samples; one without samples does not count, whatever its loss."""
    shares = Shares(7, 3)
    assert (shares.sizes, shares.leaves, shares.mean([7.0, 0.0, 14.0])) == ([3, 2, 2], 3, 7.0)
    assert math.isnan(shares.mean([1.0, math.nan, 1.0]))
    few = Shares(2, 4)
    assert (few.sizes, few.weights, few.leaves) == ([1, 1, 0, 0], [0.5, 0.5, 0.0, 0.0], 2)
    assert few.mean([1.0, 5.0, math.nan, math.nan]) == 3.0


@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_scaling_is_clipping_as_torch_does_it(clip_norm):
    """The same bits as torch's own function, also where nothing needs clipping."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    ours = [parameter.grad.clone() for parameter in parameters]
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=True)
    scale_gradients(ours, norm, clip_norm)
    assert all(torch.equal(mine, parameter.grad) for mine, parameter in zip(ours, parameters, strict=True))


def test_a_model_must_have_something_to_learn():
    """Frozen and empty models are refused by name."""
    model = nn.Linear(2, 2)
    check_trainable(model)
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="got Linear with 2 parameters, none with requires_grad"):
        check_trainable(model)
    with pytest.raises(ConfigError, match="got ReLU with 0 parameters"):
        check_trainable(nn.ReLU())
