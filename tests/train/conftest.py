"""Small runs, alone in this process or on loopback ranks."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono


def build_mlp():
    """Return a small model, from the generators as they stand."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def build_batch_norm():
    """Return a small model with buffers."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


class Killed(BaseException):
    """What `die` raises."""


def die(micro):
    raise Killed


class Toy:
    """A data set of 56 samples and ways to train on it."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(56, 6, generator=generator)
        self.y = torch.randint(0, 4, (56,), generator=generator)

    @property
    def data(self):
        return unisono.ArrayDataset(self.x, self.y)

    @contextlib.contextmanager
    def run(self, *, build=build_mlp, lr=0.1, **settings):
        """Yield (run, model, optimizer), prepared."""
        with unisono.Run(**{"seed": 0, "replicas": 4, **settings}) as run:
            model = build()
            model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
            yield run, model, optimizer

    def train(self, *, epochs=2, stop_after=None, batch_size=12, loss=None, **settings):
        """Train (five steps an epoch, the last one short) and return the fingerprint and the steps done.

        After `stop_after` steps the following one ends in the middle, as by a kill: nothing of it is kept.
        """
        with self.run(**settings) as (run, model, _):
            done = []
            for batch in run.steps(run.loader(self.data, batch_size=batch_size), epochs=epochs):
                if stop_after is not None and batch.step > stop_after:
                    with contextlib.suppress(Killed):
                        run.step(batch, die)
                    break
                run.step(batch, loss or (lambda micro: F.cross_entropy(model(micro.x), micro.y)))
                done.append(batch.step)
            return run.fingerprint(), done


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture(params=[build_mlp, build_batch_norm], ids=["mlp", "batch_norm"])
def build(request):
    return request.param
