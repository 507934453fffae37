"""What is on its way to other ranks stays as it is until they have all of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.collectives.exchange import OneByOne
from unisono.strategies.parts import leaf_sum


class Sealed(OneByOne):
    """Sums as ever, and sees whether a sum has been written to before all have it."""

    seals = 0
    given = None

    def start(self, outs, *how):
        super().start(outs, *how)
        self.outs = outs

    def finish(self):
        self.given = [out.clone() for out in self.outs]

    def await_seal(self):
        if self.given is not None:
            assert all(torch.equal(out, given) for out, given in zip(self.outs, self.given, strict=True))
            self.given = None
            Sealed.seals += 1


class Noting(nn.Module):
    """Keeps the mean of its inputs in a buffer that is not saved: what is added up of it is no part of the record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.copy_(x.detach().mean(0))
        return self.layer(x)


@pytest.mark.parametrize("weight", [None, lambda x: float(x.sum())], ids=["plain", "weighed"])
@pytest.mark.parametrize("build", [Noting, lambda: nn.Linear(3, 2)], ids=["buffer", "no buffer"])
def test_a_sum_is_read_alone_until_all_have_it(build, weight, monkeypatch):
    """Weights scale it and buffers leave it after that: three ranks, three steps."""
    monkeypatch.setattr(leaf_sum, "exchange_over", lambda transport, **_: Sealed(transport))
    monkeypatch.setattr(Sealed, "seals", 0)
    data = unisono.ArrayDataset(torch.arange(54.0).reshape(18, 3) / 54, torch.arange(18) % 2)
    how = {} if weight is None else {"weight": lambda micro: weight(micro.x)}

    def program(transport):
        with unisono.Run(seed=0, replicas=3, transport=transport) as run:
            torch.manual_seed(0)
            model, _ = run.prepare(net := build(), torch.optim.SGD(net.parameters(), lr=0.1))
            for batch in run.steps(run.loader(data, batch_size=6), epochs=1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y), **how)

    run_threads(program, 3)
    assert Sealed.seals == 9
