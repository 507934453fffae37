"""A small fit with callbacks, alone or on loopback ranks: ten steps, five an epoch, the last one short."""

import torch
from torch import nn

import unisono
from ranks import run_threads
from unisono.callbacks import Profiler

STEPS = 10


def data():
    generator = torch.Generator().manual_seed(0)
    return unisono.ArrayDataset(
        torch.randn(56, 6, generator=generator), torch.randint(0, 4, (56,), generator=generator)
    )


def fit(callbacks=(), *, transport="auto", epochs=2, test=True, schedule=None, lr=0.1, out=None, run=None, loss=None,
        train=None, deadline_s=60.0, **settings):  # fmt: skip
    """Fit and return (result, trainer)."""
    with unisono.Run(**{"seed": 0, "replicas": 4, "out": out, **(run or {})}, transport=transport) as a_run:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        trainer = unisono.Trainer(
            a_run, model, optimizer, loss=loss or nn.CrossEntropyLoss(), callbacks=callbacks,
            scheduler=schedule(optimizer) if schedule else None, callback_deadline_s=deadline_s,
        )  # fmt: skip
        settings = {"batch_size": 12, "log_every": 2, "show_progress": False, **settings}
        result = trainer.fit(train or data(), epochs=epochs, test_set=data() if test else None, **settings)
        return result, trainer


def everywhere(program, worlds=(1, 2, 3)):
    """Return what `program` (given a transport) returns on every rank of every world; it must be one and the same."""
    expected = run_threads(program, 1)[0]
    for world_size in worlds:
        assert run_threads(program, world_size) == [expected] * world_size
    return expected


def profiled(transport, out, first, number):
    """Fit with a profiler; return the fingerprint."""
    return fit([Profiler(first, number)], transport=transport or "auto", out=out)[0]["fingerprint"]


def predicted(transport, strategy):
    """Fit a model without buffers, and return the bits of what it says of the data, uneven batches of them."""
    with unisono.Run(seed=0, replicas=4, strategy=strategy, transport=transport or "auto") as run:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
        trainer.fit(data(), epochs=1, batch_size=12, show_progress=False)
        return [value.hex() for value in trainer.predict(data(), batch_size=12).flatten().tolist()]
