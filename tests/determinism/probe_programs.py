"""What the ranks of the probe's tests run."""

import torch
from torch import nn

import unisono
from train.live_programs import take_other_kernels


def begin(_, unlike):
    """Begin a run; return why that cannot be, and whether this rank computes with other kernels."""
    is_other = False
    with unisono.Run(seed=0, replicas=4) as run:
        if run.world.rank in unlike:
            is_other = take_other_kernels()
        model = nn.Linear(4, 2)
        try:
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        except unisono.RankDivergence as error:
            return [str(error), is_other]
    return ["", is_other]
